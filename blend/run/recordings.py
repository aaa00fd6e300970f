"""CUDA graphs: work captured on a side stream at a size's second pass, by numbers of rows, and replayed.

Where keys go, and what rows see, kernels read from a table in the device's memory, which each pass fills. So one
recording serves all passes. Who comes while another pass is under way, and whatever cannot be recorded, runs as it
would without.
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar

import torch

from blend.run.context import Context, Segment
from blend.run.gpu_rows import GpuRows, GpuRowTables
from blend.run.recorded_cache import CannotRecord

log = logging.getLogger(__name__)

LEAST, MOST = 8, 2048  # rows of a recording; more of them keep a GPU busy for longer than their calls take
POWERS = 64  # rows from which on powers of two waste too much
TOGETHER = 64  # segments of a pass

Kept = TypeVar("Kept")
Made = TypeVar("Made")


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


class Recordings(Generic[Kept]):
    """The recordings of one kind of pass, by their rows. One pass at a time uses them."""

    def __init__(self, tables: GpuRowTables, recorder: Recorder, *, room: Callable[[GpuRows], Kept]) -> None:
        """`room` makes what recordings of as many rows read and write, told by a table that is theirs."""
        self.can_record = True  # until something cannot be recorded
        self._tables = tables
        self._recorder = recorder
        self._room = room
        self._passes = Counter[int]()
        self._sizes = dict[int, tuple[GpuRows, Kept]]()
        self._used = Lock()

    @contextmanager
    def held(self, segments: Sequence[Segment]) -> Generator[Kept | None]:
        """The recordings for as many rows, which are these now; None where they do not suit the pass."""
        rows, alone = segments[-1].stop, all(isinstance(each.context, Context) for each in segments)
        is_fit = self.can_record and alone and rows <= MOST and len(segments) <= TOGETHER
        if not is_fit or not self._used.acquire(blocking=False):
            yield None
            return
        try:
            yield self._filled(size_of(rows), segments)
        finally:
            self._used.release()

    def _filled(self, rows: int, segments: Sequence[Segment]) -> Kept | None:
        self._passes[rows] += 1
        if self._passes[rows] == 1:  # few sizes come twice; those that do are recorded the second time
            return None
        if rows not in self._sizes:
            table = self._tables.empty(rows, segments=min(rows, TOGETHER))
            self._sizes[rows] = table, self._room(table)
        table, kept = self._sizes[rows]
        table.fill(segments)
        return kept

    def tried(self, record: Callable[[], Made]) -> Made | None:
        """What was recorded; None where it cannot be, and nothing is from then on."""
        try:
            return record()
        except CannotRecord as error:
            self.can_record = False
            log.info("nothing more is recorded: %s", error)
            return None

    def made(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does the work again. Raises CannotRecord.

        It is done once before: this compiles what is not compiled yet, and asks what waits, which a recording must not.
        """
        try:
            work()
            return self._recorder(work)
        except (RuntimeError, TypeError, ValueError) as error:
            raise CannotRecord(str(error)) from error


def size_of(rows: int) -> int:
    """The rows of the recording that has room for so many: the next power of two, large ones in finer steps."""
    size = max(LEAST, 1 << (rows - 1).bit_length())
    step = size // 8 if size > POWERS else size
    return -(-rows // step) * step
