"""Waiting for a job: when to look again, and what its end means. Sends nothing."""

import math
import time
from collections.abc import Callable
from typing import Final

from kvweave_client import operations
from kvweave_client.answers import Job
from kvweave_client.errors import JobFailed, TimedOut
from kvweave_client.plans import Pause, Plan, ask, entries

SHORTEST_S, LONGEST_S, GROWTH = 0.05, 2.0, 1.5
LOOK_S: Final = 1.0  # for a look: even where no time is left, there is time for one
TOLD: Final = 10  # uploads that an error names

_WELL: Final = ("ready", "superseded", "deleted")


def wait_for(
    job_id: str, *, timeout_s: float | None = None, progress: Callable[[Job], None] | None = None
) -> Plan[Job]:
    """The job when it is done. Raises JobFailed where it ended otherwise, TimedOut where it takes longer.

    `progress` is told the job at each look.
    """
    limit_s = math.inf if timeout_s is None else timeout_s
    end = time.monotonic() + limit_s
    late = TimedOut(f"{job_id} is not over after {limit_s:g} s, it goes on: wait for it again")
    pause_s = SHORTEST_S
    while True:
        try:
            job = yield from ask(operations.job(job_id), within_s=max(end - time.monotonic(), LOOK_S))
        except TimedOut as error:
            if time.monotonic() < end:
                raise
            raise late from error
        if progress is not None:
            progress(job)
        if job.status == "done":
            return job
        if job.is_over:
            failed = yield from entries(
                operations.job_items(job_id), most=TOLD, fits=lambda each: each.state not in _WELL
            )
            raise JobFailed(job, tuple(failed))
        left_s = end - time.monotonic()
        if left_s <= 0:
            raise late
        yield Pause(min(pause_s, left_s))
        pause_s = min(pause_s * GROWTH, LONGEST_S)
