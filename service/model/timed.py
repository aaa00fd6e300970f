"""One request through the engine: its events, and how long its first token takes. Knows no passages."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Queue

from blend.engine.engine import Done, Engine, EngineRequest, Event, Failed, Ready
from blend.engine.sampling import Sampling
from blend.fuse.fuse import FuseReport

ONE = Sampling(max_tokens=1, ignore_eos=True)  # whose first token is the last


@dataclass(frozen=True, slots=True)
class Timed:
    """The fuse's report, and the time to the first token."""

    seconds: float
    report: FuseReport


def timed(engine: Engine, request: EngineRequest, *, since: float) -> Timed:
    """Return when the answer is over. Raises what the request fails with.

    `since` is the start by `time.perf_counter`: a client's wait includes the opening of blobs.
    """
    first: float | None = None
    report: FuseReport | None = None
    for at, event in events_of(engine, request):
        if isinstance(event, Ready):
            report = event.report
        elif first is None:  # a token, or the end alone
            first = at
    assert first is not None and report is not None
    return Timed(first - since, report)


def events_of(engine: Engine, request: EngineRequest) -> Iterator[tuple[float, Event]]:
    """All events of a request, each with when it came, of `time.perf_counter`. Raises what the request fails with."""
    events: Queue[tuple[float, Event]] = Queue()
    engine.submit(request, lambda event: events.put((time.perf_counter(), event)))
    while True:
        at, event = events.get()
        if isinstance(event, Failed):
            raise event.error
        yield at, event
        if isinstance(event, Done):
            return
