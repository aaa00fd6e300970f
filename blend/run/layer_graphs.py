"""Layers, or whole passes, recorded once for each number of rows, and replayed by one call each: a GPU's calls cost
more than their work.

A recorded layer is the model's own, but for where keys go and what rows see: two kernels read that from a table in the
device's memory, which each pass fills. So one recording serves all prompts. Who comes while another pass is under way,
and whatever cannot be recorded, runs as it would without.
Letters: `B` rows of a recording, `R` of a pass, `N` contexts, `L` layers, `E` hidden size, `V` vocabulary.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from blend.kernels.kernels import attend_rows
from blend.run.context import Branch, Context, LayerShape, Segment
from blend.run.recorded_step import COLUMNS, CannotRecord, RecordedStep, RowRoom, WholeStep
from blend.run.step import Arguments, Step, active

log = logging.getLogger(__name__)

LEAST, MOST = 8, 2048  # rows of a recording; more of them keep a GPU busy for longer than their calls take
POWERS = 64  # rows from which on powers of two waste too much
TOGETHER = 64  # contexts of a pass

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


class _Whole(NamedTuple):
    """A recorded pass, and the logits (B, V) that it leaves."""

    replay: Callable[[], None]
    logits: Tensor


@dataclass(slots=True)
class _Size:
    """What recordings of so many rows read and write."""

    room: RowRoom
    passes: int = 0
    hidden: Tensor | None = None  # (1, B, E)
    layers: dict[int, "_Recorded"] = field(default_factory=dict[int, "_Recorded"])
    whole: _Whole | None = None


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
        recorder: Callable[[], Recorder],
    ) -> None:
        """`limits`: how many query heads to each key head there are at most, and slots. `direct` layers are those whose
        attention asks the step.
        """
        self.is_whole = attend_rows is not None  # until something cannot be recorded
        self.has_passes = direct >= {layer for layer, shape in enumerate(shapes) if shape}  # until one cannot be
        self.layers = len(shapes)
        self._groups, self.most = limits
        self._heads = max([shape.key_heads for shape in shapes if shape], default=1)
        self._fit = {*direct}
        self.of_layers, self.of_passes = recorder(), recorder()  # what one leaves that fails is not the other's
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
                _fill(size.room, segments, positions=positions)
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
        parts = rows, 2 * blocks, contexts * self.layers * COLUMNS
        table, slots = torch.zeros(sum(parts), dtype=torch.int64), torch.full((rows,), -1)
        ids = torch.zeros(rows, dtype=torch.int64, device=device)
        return _Size(RowRoom(rows, block, blocks, splits, table.to(device), parts, slots.to(device), ids))


def size_of(rows: int) -> int:
    """The rows of the recording that has room for so many: the next power of two, large ones in finer steps."""
    size = max(LEAST, 1 << (rows - 1).bit_length())
    step = size // 8 if size > POWERS else size
    return -(-rows // step) * step


def _fill(room: RowRoom, segments: Sequence[Segment], *, positions: Tensor) -> None:
    """Tell the device where a pass' rows stand."""
    numbers: dict[int, int] = {}
    contexts = list[Context]()
    owners = np.zeros(room.rows, np.int64)
    blocks = np.zeros((room.blocks, 2), np.int64)
    filled = 0
    for each in segments:
        number = numbers.setdefault(id(each.context), len(contexts))
        if number == len(contexts):
            contexts.append(each.context)
        owners[each.start : each.stop] = number
        for start in range(each.start, each.stop, room.block):
            blocks[filled] = start, min(room.block, each.stop - start)
            filled += 1
    told = np.concatenate([owners, blocks.ravel(), *(each.addresses.ravel() for each in contexts)])
    held = torch.empty(len(told), dtype=torch.int64, pin_memory=room.table.is_cuda)
    held.numpy()[:] = told
    room.table[: len(told)].copy_(held, non_blocking=True)
    room.slots[: len(positions)].copy_(positions)
    room.slots[len(positions) :].fill_(-1)


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

    def whole(self, run: Callable[[Step, Tensor], Tensor | None], ids: Tensor) -> Tensor | None:
        """The logits (R, V) of all rows, with these ids (R,); None where the pass has to go layer by layer."""
        graphs, size = self._graphs, self._size
        if not graphs.has_passes:
            return None
        size.room.ids[: self._rows].copy_(ids)
        if size.whole is None:
            try:
                size.whole = self._record_pass(run)
            except (CannotRecord, RuntimeError, TypeError, ValueError) as error:
                graphs.has_passes = False
                log.info("no pass is recorded whole: %s", error)
                return None
        size.whole.replay()
        return size.whole.logits[: self._rows].clone()  # recordings share memory

    def _record_pass(self, run: Callable[[Step, Tensor], Tensor | None]) -> _Whole:
        graphs, room, left = self._graphs, self._size.room, list[Tensor]()
        step = WholeStep(room, layers=graphs.layers, most=graphs.most)

        def work() -> None:
            logits = run(step, room.ids)
            if logits is None:
                raise CannotRecord("it has no logits")
            if not left:
                left.append(torch.empty_like(logits))
            left[0].copy_(logits)

        work()  # compiles what is not compiled yet, and asks what waits, which a recording must not
        return _Whole(graphs.of_passes(work), left[0])

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
            size.hidden = hidden.new_zeros((1, size.room.rows, hidden.shape[2]))
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
        step, kinds = RecordedStep(size.room, index, layers=self._graphs.layers, most=self._graphs.most), set[bool]()
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
        return _Recorded(self._graphs.of_layers(work), ports, True in kinds)

    def _room(self, source: Tensor) -> Tensor:
        along = 0 if source.ndim == 1 else 1
        if not source.ndim or source.shape[along] != self._rows or (along and source.shape[0] != 1):
            raise CannotRecord(f"it is given a tensor of {tuple(source.shape)} for {self._rows} rows")
        return source.new_zeros([*source.shape[:along], self._size.room.rows, *source.shape[along + 1 :]])


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
