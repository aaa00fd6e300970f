"""CUDA graphs of single layers for prompts: how arguments are copied in, and what keeps a layer from being recorded. A
recorded layer is the model's own, but for where keys go and what rows see.

Letters: `B` rows of a recording, `R` of a pass, `E` hidden size.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from torch import Tensor
from torch.utils._pytree import KeyPath, key_get, tree_flatten_with_path, tree_unflatten

from blend.run.context import Segment
from blend.run.gpu_rows import GpuRows, GpuRowTables
from blend.run.recorded_cache import CannotRecord, RecordedCache
from blend.run.recordings import Recorder, Recordings
from blend.run.rows_cache import Arguments, RowsCache, active

Call = Callable[..., object]


@dataclass(frozen=True, slots=True)
class _RecordedLayer:
    replay: Callable[[], None]
    ports: Sequence[tuple[KeyPath, Tensor]]  # which arguments go where
    is_tuple: bool


@dataclass(slots=True)
class _LayersRoom:
    """What recorded layers of so many rows read and write."""

    table: GpuRows
    hidden: Tensor | None = None  # (1, B, E)
    layers: dict[int, _RecordedLayer] = field(default_factory=dict[int, _RecordedLayer])


class LayerGraphs:
    """The recorded layers of one model on one device."""

    def __init__(self, tables: GpuRowTables, recorder: Recorder, *, layers: frozenset[int], most: int) -> None:
        """`layers`: those whose attention takes keys as they are cached. `most`: slots that a row may see."""
        self.recordings = Recordings(tables, recorder, room=_LayersRoom)
        self.layers = layers
        self.most = most

    @contextmanager
    def replaying(self, segments: Sequence[Segment]) -> Generator["LayersPass | None"]:
        """What a pass over these rows replays; None where it runs as the model does."""
        with self.recordings.held(segments) as room:
            yield room and LayersPass(self, room, rows=segments[-1].stop)


class LayersPass:
    """One pass over recorded layers, and such that are not."""

    def __init__(self, graphs: LayerGraphs, room: _LayersRoom, *, rows: int) -> None:
        self._graphs = graphs
        self._room = room
        self._rows = rows
        self._fed: dict[int, tuple[object, Tensor]] = {}  # what went where in this pass, by who it is

    @property
    def table(self) -> GpuRows:
        """Where the rows stand."""
        return self._room.table

    def layer(self, index: int, inner: Call, *, hidden: Tensor, more: Arguments) -> tuple[object] | None:
        """What the layer returns, alone in a tuple; None where it has to run by itself."""
        recordings, room = self._graphs.recordings, self._room
        is_fit = recordings.can_record and index in self._graphs.layers
        if not is_fit or hidden.shape[:2] != (1, self._rows):
            return None
        recorded = room.layers.get(index)
        if recorded is None:
            hidden = hidden.clone()  # where it may be, the layer writes
            recorded = recordings.tried(partial(self._record, index, inner, hidden=hidden, more=more))
            if recorded is None:
                return (inner(hidden, *more[0], **more[1]),)
            room.layers[index] = recorded
        else:
            for path, there in recorded.ports:
                source = key_get(more, path)
                if not isinstance(source, Tensor):
                    return None
                self._feed(source, there)
        self._enter(hidden)
        recorded.replay()
        assert room.hidden is not None
        left = room.hidden[:, : self._rows]
        return ((left,),) if recorded.is_tuple else (left,)

    def _enter(self, hidden: Tensor) -> None:
        room = self._room
        if room.hidden is None:
            room.hidden = hidden.new_zeros((1, len(room.table.slots), hidden.shape[2]))
        if hidden.data_ptr() != room.hidden.data_ptr():
            room.hidden[:, : self._rows].copy_(hidden)

    def _feed(self, source: Tensor, there: Tensor) -> None:
        known = self._fed.get(id(source))
        if known is None or known[1] is not there:
            along = 0 if source.ndim == 1 else 1
            there.narrow(along, 0, self._rows).copy_(source)
            self._fed[id(source)] = source, there

    def _record(self, index: int, inner: Call, *, hidden: Tensor, more: Arguments) -> _RecordedLayer:
        room, ports = self._room, list[tuple[KeyPath, Tensor]]()
        cache, kinds = RecordedCache(room.table, index, most=self._graphs.most), set[bool]()
        leaves, form = tree_flatten_with_path(more)
        own = [each for _, each in leaves]
        for place, (path, source) in enumerate(leaves):
            if isinstance(source, Tensor):
                known = self._fed.get(id(source))
                own[place] = there = self._port(source) if known is None else known[1]
                self._feed(source, there)
                ports.append((path, there))
            elif isinstance(source, RowsCache):
                own[place] = cache
        args, kwargs = cast("Arguments", tree_unflatten(own, form))

        def work() -> None:
            assert room.hidden is not None
            with active(cache):
                out = inner(room.hidden, *args, **kwargs)
            kinds.add(isinstance(out, tuple))
            [left] = cast("tuple[object, ...]", out) if isinstance(out, tuple) else (out,)
            if not isinstance(left, Tensor) or left.shape != room.hidden.shape:
                raise CannotRecord(f"layer {index} returns more than hidden states")
            room.hidden.copy_(left)

        self._enter(hidden)
        return _RecordedLayer(self._graphs.recordings.made(work), ports, True in kinds)

    def _port(self, source: Tensor) -> Tensor:
        """What a recording reads in the place of an argument."""
        along = 0 if source.ndim == 1 else 1
        if not source.ndim or source.shape[along] != self._rows or (along and source.shape[0] != 1):
            raise CannotRecord(f"a layer is given a tensor of {tuple(source.shape)} for {self._rows} rows")
        return source.new_zeros([*source.shape[:along], len(self._room.table.slots), *source.shape[along + 1 :]])
