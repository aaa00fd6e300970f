"""Layers recorded once for each number of rows, and replayed by one call each: a GPU's calls cost more than their work.

A recorded layer is the model's own, but for where keys go and what rows see: two kernels read that from a table in the
device's memory, which each pass fills. So one recording serves all prompts. Who comes while another pass is under way,
and whatever cannot be recorded, runs as it would without.
Letters: `B` rows of a recording, `R` of a pass, `N` contexts, `L` layers, `E` hidden size.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from blend.model.context import Branch, Context, LayerShape, Segment, span
from blend.model.step import Arguments, Step, active

try:
    from blend.model import attend_rows
except ImportError:
    attend_rows = None  # without Triton, which comes with torch nearly everywhere where there is a GPU

log = logging.getLogger(__name__)

LEAST, MOST = 8, 2048  # rows of a recording; more of them keep a GPU busy for longer than their calls take
POWERS = 64  # rows from which on powers of two waste too much
TOGETHER = 64  # contexts of a pass
_COLUMNS = 4  # of the table of contexts

Call = Callable[..., object]
Path = tuple[int | str, ...]


class Recorder(Protocol):
    """Makes of some work on fixed tensors what does it again."""

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]: ...


class CudaRecorder:
    """Records CUDA graphs, which share memory: one after the other they are replayed."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Records without waiting for the device, as other threads go on with their own work."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph.replay


class CannotRecord(Exception):
    """A layer does what no recording holds."""


@dataclass(slots=True)
class _Size:
    """What recordings of so many rows read and write."""

    rows: int
    block: int  # rows of a block
    blocks: int
    splits: int
    table: Tensor  # int64: owners (B,), blocks (_, 2), contexts (N, L, 4)
    parts: tuple[int, int, int]  # how many numbers each of them has
    slots: Tensor  # (B,) int64
    passes: int = 0
    hidden: Tensor | None = None  # (1, B, E)
    layers: dict[int, "_Recorded"] = field(default_factory=dict[int, "_Recorded"])


@dataclass(frozen=True, slots=True)
class _Recorded:
    replay: Callable[[], None]
    ports: Sequence[tuple[Path, Tensor]]  # which arguments go where
    is_tuple: bool


class LayerGraphs:
    """The recordings of one model on one device. One pass at a time uses them."""

    def __init__(
        self,
        shapes: Sequence[LayerShape | None],
        limits: tuple[int, int],
        *,
        direct: frozenset[int],
        recorder: Recorder,
    ) -> None:
        """`limits`: how many query heads to each key head there are at most, and slots. `direct` layers are those whose
        attention asks the step.
        """
        self.is_whole = attend_rows is not None  # until something cannot be recorded
        self.layers = len(shapes)
        self._groups, self.most = limits
        self._heads = max([shape.key_heads for shape in shapes if shape], default=1)
        self._fit = {*direct}
        self.recorder = recorder
        self._sizes: dict[int, _Size] = {}
        self._held = Lock()

    def begin(self, segments: Sequence[Segment], positions: Tensor) -> "RecordedPass | None":
        """A pass over these rows, which somebody ends; None where recordings do not suit it."""
        rows, contexts = segments[-1].stop, {id(each.context): each.context for each in segments}
        if not self.is_whole or rows > MOST or len(segments) > TOGETHER:
            return None
        if any(isinstance(each, Branch) for each in contexts.values()) or not self._held.acquire(blocking=False):
            return None
        replay = None
        try:
            size = self._sizes.get(number := size_of(rows))
            if size is None:
                size = self._sizes[number] = self._sized(number, device=positions.device)
            size.passes += 1
            if size.passes > 1:  # few sizes come twice; those that do are recorded the second time
                _fill(size, segments, positions=positions)
                replay = RecordedPass(self, size, rows=rows)
        finally:
            if replay is None:
                self._held.release()
        return replay

    def end(self) -> None:
        """Let others use them."""
        self._held.release()

    def suits(self, layer: int) -> bool:
        """Whether a layer is recorded, or may yet be."""
        return self.is_whole and layer in self._fit

    def without(self, layer: int, reason: Exception) -> None:
        """Leave out a layer that does what no recording holds."""
        self._fit.discard(layer)
        log.info("layer %d is not recorded: %s", layer, reason)

    def _sized(self, rows: int, *, device: torch.device) -> _Size:
        assert attend_rows is not None
        block = attend_rows.block_for(rows, self._groups)
        contexts = min(rows, TOGETHER)
        blocks = -(-rows // block) + contexts - 1
        splits = attend_rows.splits_for(-(-rows // block) * self._heads)
        parts = rows, 2 * blocks, contexts * self.layers * _COLUMNS
        table, slots = torch.zeros(sum(parts), dtype=torch.int64), torch.full((rows,), -1)
        return _Size(rows, block, blocks, splits, table.to(device), parts, slots.to(device))


def size_of(rows: int) -> int:
    """The rows of the recording that has room for so many: the next power of two, large ones in finer steps."""
    size = max(LEAST, 1 << (rows - 1).bit_length())
    step = size // 8 if size > POWERS else size
    return -(-rows // step) * step


def _fill(size: _Size, segments: Sequence[Segment], *, positions: Tensor) -> None:
    """Tell the device where a pass' rows stand."""
    numbers: dict[int, int] = {}
    contexts = list[Context]()
    owners = np.zeros(size.rows, np.int64)
    blocks = np.zeros((size.blocks, 2), np.int64)
    filled = 0
    for each in segments:
        number = numbers.setdefault(id(each.context), len(contexts))
        if number == len(contexts):
            contexts.append(each.context)
        owners[each.start : each.stop] = number
        for start in range(each.start, each.stop, size.block):
            blocks[filled] = start, min(size.block, each.stop - start)
            filled += 1
    told = np.concatenate([owners, blocks.ravel(), *(each.addresses.ravel() for each in contexts)])
    held = torch.empty(len(told), dtype=torch.int64, pin_memory=size.table.is_cuda)
    held.numpy()[:] = told
    size.table[: len(told)].copy_(held, non_blocking=True)
    size.slots[: len(positions)].copy_(positions)
    size.slots[len(positions) :].fill_(-1)


class RecordedPass:
    """One pass over recorded layers, and such that are not."""

    def __init__(self, graphs: LayerGraphs, size: _Size, *, rows: int) -> None:
        self._graphs = graphs
        self._size = size
        self._rows = rows
        self._fed: dict[int, tuple[object, Tensor]] = {}  # what went where in this pass, by who it is

    def end(self) -> None:
        """Called once, when the pass is over."""
        self._graphs.end()

    def layer(self, index: int, inner: Call, *, hidden: Tensor, more: Arguments) -> tuple[object] | None:
        """What the layer returns, alone in a tuple; None where it has to run by itself."""
        graphs, size = self._graphs, self._size
        if not graphs.suits(index) or hidden.shape[:2] != (1, self._rows):
            return None
        recorded = size.layers.get(index)
        if recorded is None:
            hidden = hidden.clone()  # where it may be, the layer writes
            try:
                recorded = size.layers[index] = self._record(index, inner, hidden=hidden, more=more)
            except CannotRecord as error:
                graphs.without(index, error)
                return (inner(hidden, *more[0], **more[1]),)
            except (RuntimeError, TypeError, ValueError) as error:
                graphs.is_whole = False
                log.info("no layer is recorded, for layer %d cannot be: %s", index, error)
                return (inner(hidden, *more[0], **more[1]),)
        else:
            for path, there in recorded.ports:
                source = _found(more, path)
                if not isinstance(source, Tensor):
                    return None
                self._feed(source, there)
        self._enter(hidden)
        recorded.replay()
        assert size.hidden is not None
        left = size.hidden[:, : self._rows]
        return ((left,),) if recorded.is_tuple else (left,)

    def _enter(self, hidden: Tensor) -> None:
        size = self._size
        if size.hidden is None:
            size.hidden = hidden.new_zeros((1, size.rows, hidden.shape[2]))
        if hidden.data_ptr() != size.hidden.data_ptr():
            size.hidden[:, : self._rows].copy_(hidden)

    def _feed(self, source: Tensor, there: Tensor) -> None:
        known = self._fed.get(id(source))
        if known is None or known[1] is not there:
            along = 0 if source.ndim == 1 else 1
            there.narrow(along, 0, self._rows).copy_(source)
            self._fed[id(source)] = source, there

    def _record(self, index: int, inner: Call, *, hidden: Tensor, more: Arguments) -> _Recorded:
        size, ports = self._size, list[tuple[Path, Tensor]]()
        for path, source in _tensors(more):
            known = self._fed.get(id(source))
            there = self._room(source) if known is None else known[1]
            self._feed(source, there)
            ports.append((path, there))
        step, kinds = RecordedStep(size, index, layers=self._graphs.layers, most=self._graphs.most), set[bool]()
        args, kwargs = cast("Arguments", _replaced(more, dict(ports), step=step))

        def work() -> None:
            assert size.hidden is not None
            with active(step):
                out = inner(size.hidden, *args, **kwargs)
            kinds.add(isinstance(out, tuple))
            [left] = cast("tuple[object, ...]", out) if isinstance(out, tuple) else (out,)
            if not isinstance(left, Tensor) or left.shape != size.hidden.shape:
                raise CannotRecord("it returns more than hidden states")
            size.hidden.copy_(left)

        self._enter(hidden)
        work()  # compiles what is not compiled yet, which a recording must not
        self._enter(hidden)
        return _Recorded(self._graphs.recorder(work), ports, True in kinds)

    def _room(self, source: Tensor) -> Tensor:
        along = 0 if source.ndim == 1 else 1
        if not source.ndim or source.shape[along] != self._rows or (along and source.shape[0] != 1):
            raise CannotRecord(f"it is given a tensor of {tuple(source.shape)} for {self._rows} rows")
        return source.new_zeros([*source.shape[:along], self._size.rows, *source.shape[along + 1 :]])


class RecordedStep(Step):
    """The step that a layer sees while it is recorded: rows are written and see by the table."""

    def __init__(self, size: _Size, layer: int, *, layers: int, most: int) -> None:
        nothing = Context([], capacity=0, dtype=torch.float32, device=size.slots.device)
        super().__init__([Segment(nothing, span(0, size.rows, device=size.slots.device), 0)])
        self._size = size
        self._layer = layer
        self._most = most
        self._window: int | None = None
        owners, blocks, contexts = size.table.split_with_sizes(size.parts)
        apart = _COLUMNS * layers
        assert attend_rows is not None
        self._tables = attend_rows.RowTables(
            size.slots, owners, blocks.view(-1, 2), contexts[_COLUMNS * layer :], apart
        )

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if layer_idx != self._layer or key_states.stride(3) != 1 or value_states.stride(3) != 1:
            raise CannotRecord(f"it stores keys as layer {layer_idx}")
        assert attend_rows is not None
        attend_rows.write_rows(key_states[0], value_states[0], tables=self._tables)
        self._returned[id(key_states)] = (layer_idx, key_states)
        return key_states, value_states

    def attend(
        self,
        query: Tensor,
        seen: tuple[Tensor, Tensor],
        *,
        scale: float,
        window: Callable[[int], int | None],
    ) -> Tensor:
        """Query (1, Hq, B, D) to (1, B, Hq, D): each row sees all before it and itself, or a window of that."""
        if self.layer_of(seen[0]) != self._layer or query.stride(3) != 1:
            raise CannotRecord("its attention makes other keys of those that it stored")
        heads, kv_heads, value_dim = query.shape[1], seen[1].shape[1], seen[1].shape[3]
        if seen[0].shape[1] != kv_heads or heads % kv_heads:
            raise CannotRecord("it has more heads of keys than of values")
        assert attend_rows is not None
        self._window = self._window or window(self._most)  # asked before it is recorded, for that waits
        if self._window is None:
            raise CannotRecord("its rows see otherwise than by a window up to themselves")
        form = attend_rows.Attention(kv_heads, value_dim, scale, self._size.block, self._size.splits, self._window)
        return attend_rows.attend_rows(query[0], form, tables=self._tables)[None]

    def sources(self, keys: Tensor, values: Tensor) -> Iterator[tuple[Segment, Tensor, Tensor]]:
        raise CannotRecord("it has an attention of its own")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        raise CannotRecord("it asks for positions, which are another pass' later")

    def get_query_offset(self, layer_idx: int = 0) -> int:
        raise CannotRecord("it asks for positions, which are another pass' later")

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        raise CannotRecord("it makes a mask, which is another pass' later")

    @property
    def positions(self) -> Tensor:
        raise CannotRecord("it asks for positions, which are another pass' later")


@contextmanager
def replaying(graphs: LayerGraphs | None, segments: Sequence[Segment]) -> Generator[RecordedPass | None]:
    """What a pass over these rows replays; nothing where it runs as the model does."""
    replay = None
    if graphs is not None:
        parts = [each.slots.index for each in segments]
        replay = graphs.begin(segments, parts[0] if len(parts) == 1 else torch.cat(parts))
    try:
        yield replay
    finally:
        if replay is not None:
            replay.end()


def _tensors(value: object, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yields all tensors of arguments, and where they are among them."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (tuple, list)):
        for place, each in enumerate(cast("Sequence[object]", value)):
            yield from _tensors(each, (*path, place))
    elif isinstance(value, dict):
        for name, each in cast("dict[str, object]", value).items():
            yield from _tensors(each, (*path, name))


def _found(value: object, path: Path) -> object:
    for each in path:
        value = cast("dict[object, object]", value)[each]
    return value


def _replaced(value: object, by: dict[Path, Tensor], *, step: Step, path: Path = ()) -> object:
    """The same arguments with these tensors and this step."""
    if path in by:
        return by[path]
    if isinstance(value, Step):
        return step
    if isinstance(value, (tuple, list)):
        several = enumerate(cast("Sequence[object]", value))
        found = [_replaced(each, by, step=step, path=(*path, place)) for place, each in several]
        return found if isinstance(value, list) else tuple(found)
    if isinstance(value, dict):
        named = cast("dict[str, object]", value).items()
        return {name: _replaced(each, by, step=step, path=(*path, name)) for name, each in named}
    return value
