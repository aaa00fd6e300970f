"""Decoding steps captured whole as one CUDA graph for each number of rows: one call replays all layers of a step.

Letters: `B` rows of a recording, `R` of a step, `V` vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from blend.run.context import Segment
from blend.run.gpu_rows import GpuRows, GpuRowTables
from blend.run.recorded_cache import CannotRecord, RecordedStepCache
from blend.run.recordings import Recorder, Recordings
from blend.run.rows_cache import RowsCache

Run = Callable[[RowsCache, Tensor], Tensor | None]  # a pass over rows of these ids (R,), to their logits (R, V)


@dataclass(slots=True)
class _StepRoom:
    """What the recorded step of so many rows reads and writes."""

    table: GpuRows
    ids: Tensor  # (B,) int64
    recorded: tuple[Callable[[], None], Tensor] | None = None  # what replays it, and its logits (B, V)


def _room(table: GpuRows) -> _StepRoom:
    return _StepRoom(table, torch.zeros_like(table.slots))


class StepGraphs:
    """The recorded steps of one model on one device."""

    def __init__(self, tables: GpuRowTables, recorder: Recorder, *, run: Run, most: int) -> None:
        """`most`: slots that a row may see."""
        self._recordings = Recordings(tables, recorder, room=_room)
        self._run = run
        self._most = most

    def logits(self, segments: Sequence[Segment], ids: Tensor) -> Tensor | None:
        """The logits (R, V) of a step; None where it runs as the model does."""
        with self._recordings.held(segments) as room:
            if room is None:
                return None
            room.ids[: len(ids)].copy_(ids)
            room.recorded = room.recorded or self._recordings.tried(partial(self._record, room))
            if room.recorded is None:
                return None
            replay, logits = room.recorded
            replay()
            return logits[: len(ids)].clone()  # recordings share memory

    def _record(self, room: _StepRoom) -> tuple[Callable[[], None], Tensor]:
        cache, left = RecordedStepCache(room.table, most=self._most), list[Tensor]()

        def work() -> None:
            logits = self._run(cache, room.ids)
            if logits is None:
                raise CannotRecord("a step has no logits")
            if not left:
                left.append(torch.empty_like(logits))
            left[0].copy_(logits)

        return self._recordings.made(work), left[0]
