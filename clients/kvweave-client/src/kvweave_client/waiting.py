"""Waiting for a job: when to look again, and what its end means. Sends nothing."""

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from kvweave_client.answers import Job, JobItem
from kvweave_client.errors import JobFailed, TimedOut

SHORTEST_S, LONGEST_S, GROWTH = 0.05, 2.0, 1.5
LOOK_S: Final = 1.0
TOLD: Final = 10  # uploads that an error names

_WELL: Final = ("ready", "superseded", "deleted")


class Waiting:
    """The wait for one job, a while or for as long as it takes."""

    def __init__(self, job_id: str, timeout_s: float | None) -> None:
        self._job_id = job_id
        self._limit_s = math.inf if timeout_s is None else timeout_s
        self._end = time.monotonic() + self._limit_s
        self._pause_s = SHORTEST_S

    @property
    def left_s(self) -> float:
        """How long the job may still take."""
        return max(self._end - time.monotonic(), 0.0)

    @property
    def look_s(self) -> float:
        """How long one look may take: even where no time is left, there is time for one."""
        return max(self.left_s, LOOK_S)

    @contextmanager
    def look(self) -> Generator[None]:
        """Raises TimedOut for the whole wait where a look ended because no time was left."""
        try:
            yield
        except TimedOut as error:
            if self.left_s > 0:
                raise
            raise self._late() from error

    def pause(self, job: Job) -> float | None:
        """How long to wait before the next look; None where the job is over. Raises TimedOut."""
        if job.is_over:
            return None
        pause, self._pause_s = self._pause_s, min(self._pause_s * GROWTH, LONGEST_S)
        if self.left_s <= 0:
            raise self._late()
        return min(pause, self.left_s)

    def _late(self) -> TimedOut:
        return TimedOut(f"{self._job_id} is not over after {self._limit_s:g} s, it goes on: wait for it again")


def is_well(item: JobItem) -> bool:
    """Whether the upload ended as it should."""
    return item.state in _WELL


def failure(job: Job, items: list[JobItem]) -> JobFailed:
    """The error for a job that is over and not done."""
    return JobFailed(job, tuple(items))
