"""A capture that waits for its turns, and what it has so far. Computes nothing."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from store.record import Record


@dataclass(slots=True)
class QueuedCapture:
    """A capture from its submission to its end. `left`: the passes that are not computed yet, by numbers of chunks."""

    payer: str
    prefix: Sequence[int]
    chunks: Sequence[Sequence[int]]
    before: Sequence[Sequence[int]]
    left: list[tuple[int, ...]]
    records: dict[int, Record] = field(default_factory=dict[int, Record])
    result: Future[list[Record]] = field(default_factory=Future[list[Record]])

    def may_run(self) -> bool:
        """Whether it runs, or begins to now; not where it was cancelled."""
        return self.result.running() or self.result.set_running_or_notify_cancel()
