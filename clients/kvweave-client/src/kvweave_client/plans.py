"""Calls of several requests, written once for both clients: what is asked next depends on what was answered.

A plan is a generator. It yields a step, gets its answer, or the error of that, and returns the result of the whole.
`Client.follow` and `AsyncClient.follow` carry it out. Sends nothing itself.
"""

import math
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from kvweave_client import operations
from kvweave_client.answers import Job
from kvweave_client.errors import JobFailed, TimedOut
from kvweave_client.requests import Cursor, Listing, Operation

T = TypeVar("T")

SHORTEST_S, LONGEST_S, GROWTH = 0.05, 2.0, 1.5  # the pauses between looks at a job
LOOK_S: Final = 1.0  # for a look: even where no time is left, there is time for one
TOLD: Final = 10  # uploads that an error names

_WELL: Final = ("ready", "superseded", "deleted")


@dataclass(frozen=True, slots=True)
class Ask:
    """A step: an operation, and how long it may take."""

    operation: Operation[object]
    within_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: nothing, for so long."""

    seconds: float


Plan = Generator[Ask | Pause, object, T]


def ask(operation: Operation[T], *, within_s: float = math.inf) -> Plan[T]:
    """The answer to an operation."""
    return cast(T, (yield Ask(operation, within_s)))


def entries(
    listing: Listing[T], *, most: int = sys.maxsize, fits: Callable[[T], bool] = lambda _: True
) -> Plan[list[T]]:
    """The entries of a listing that fit, the first ones where there are more than `most`."""
    found: list[T] = []
    after: Cursor | None = None
    while True:
        page = yield from ask(listing.page(after))
        found += filter(fits, page.entries)
        after = listing.following(page, after)
        if after is None or len(found) >= most:
            return found[:most]


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
