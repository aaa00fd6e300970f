"""One request through the engine, and how long its first token takes. Knows no passages and no operating points."""

import time
from dataclasses import dataclass
from queue import Queue

from blend.engine.engine import ChoiceEnded, Done, Engine, EngineRequest, Event, Failed, Ready, Token
from blend.engine.sampling import Sampling
from blend.fuse.fuse import FuseReport

ONE = Sampling(max_tokens=1, ignore_eos=True)  # whose first token is the last


@dataclass(frozen=True, slots=True)
class Timed:
    """What the fuse did, and the time to the first token."""

    seconds: float
    report: FuseReport


def timed(engine: Engine, request: EngineRequest, *, since: float) -> Timed:
    """Return when the answer is over. Raises what the request fails with.

    `since` is when the clock starts, of `time.perf_counter`: whoever waits also waits for blobs to be opened.
    """
    events: Queue[tuple[float, Event]] = Queue()
    engine.submit(request, lambda event: events.put((time.perf_counter() - since, event)))
    first: float | None = None
    report: FuseReport | None = None
    while True:
        seconds, event = events.get()
        match event:
            case Ready(report=found):
                report = found
            case Token() | ChoiceEnded():
                first = seconds if first is None else first
            case Done():
                assert report is not None
                return Timed(seconds if first is None else first, report)  # it may be the end alone
            case Failed(error=error):
                raise error
