"""Holds uploads and other requests to a share of the interpreter's time (the GIL) while somebody's answer is computed.

The engine gives the interpreter back at each of its operations, and then waits behind whichever thread has it: beside
one that never rests it takes ten times as long. So all other work has a share of the time while somebody else's answer
is computed and shortly after, the same for each owner, and rests when it had that.
"""

import contextvars
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import ParamSpec, TypeVar

SHARE = 0.1  # of the time, for the work of all owners together
AHEAD_S = 0.02  # which an owner may have had beyond his share
RESTS_EVERY = 64  # items of an upload, some milliseconds
MOST_S = 0.5  # that is held against an owner
LONGEST_S = 1.0  # of a rest: then it is looked again who computes
LATELY_S = 1.0  # after an answer its owner soon asks again, and would wait for all that others began in between

P = ParamSpec("P")
T = TypeVar("T")


class InterpreterTime:
    """Counts who had how much. Safe for threads. `clock`: seconds that only grow."""

    def __init__(self, share: float = SHARE, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.share, self._clock = share, clock
        self._guard = Lock()
        self._answering = Counter[str]()
        self._answered: dict[str, float] = {}  # when an owner's last answer was whole, lately
        self._had: dict[str, float] = {}  # beyond what was the owner's share since
        self._at = clock()

    @contextmanager
    def answering(self, owner: str) -> Generator[None]:
        """An answer of this owner is computed while the block runs: the engine shares that out, it counts no longer."""
        if meter := _METER.get():
            meter.took = None
        with self._guard:
            self._answering[owner] += 1
        try:
            yield
        finally:
            with self._guard:
                self._answering[owner] -= 1
                self._answering = +self._answering  # who has left is forgotten
                self._answered[owner] = self._clock()

    def took(self, owner: str, seconds: float) -> None:
        """Counts what a thread computed for an owner."""
        with self._guard:
            self._pass()
            if self._is_wanted(owner):
                self._had[owner] = min(MOST_S, self._had.get(owner, 0.0) + seconds)

    def rests_s(self, owner: str, *, shortly_after: bool = True) -> float:
        """How long an owner rests before his next piece of work, shortly after an answer too where many may begin."""
        with self._guard:
            self._pass()
            if not self._is_wanted(owner, shortly_after=shortly_after):
                self._had.pop(owner, None)
            beyond = self._had.get(owner, 0.0) - AHEAD_S
            return min(LONGEST_S, beyond * len(self._had) / self.share) if beyond > 0 else 0.0

    def uploads(self, items: Iterable[T], tenant: str) -> Iterator[T]:
        """The items, each some work on a tenant's uploads: between some of them it rests, for its own questions too."""
        owner, began = f"uploads of {tenant}", time.thread_time()
        for number, item in enumerate(items):
            if number % RESTS_EVERY == 0:
                self.took(owner, time.thread_time() - began)
                while (rests_s := self.rests_s(owner, shortly_after=False)) > 0:
                    time.sleep(rests_s)
                began = time.thread_time()
            yield item

    def _is_wanted(self, owner: str, *, shortly_after: bool = True) -> bool:
        return any(each != owner for each in (*self._answering, *(self._answered if shortly_after else ())))

    def _pass(self) -> None:
        """Lets time pass: each owner gets his share of it."""
        now = self._clock()
        each_s = (now - self._at) * self.share / max(1, len(self._had))
        self._had = {owner: had - each_s for owner, had in self._had.items() if had > each_s}
        self._answered = {owner: at for owner, at in self._answered.items() if now - at < LATELY_S}
        self._at = now


INTERPRETER = InterpreterTime()  # the process has one


class _Meter:
    """Where a task's time goes to."""

    def __init__(self, took: Callable[[float], None]) -> None:
        self.took: Callable[[float], None] | None = took

    def add(self, since: float) -> None:
        if self.took:
            self.took(time.thread_time() - since)


_METER: contextvars.ContextVar[_Meter | None] = contextvars.ContextVar("meter", default=None)


async def metered(work: Coroutine[object, object, T], took: Callable[[float], None]) -> T:
    """Runs work of a task and counts what its steps took, and what threads did for it in `counted`."""
    meter = _Meter(took)
    token = _METER.set(meter)
    try:
        return await _Steps(work, meter)
    finally:
        _METER.reset(token)


def counted(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Does work in a thread, and counts it for the task in whose context it is called."""
    began = time.thread_time()
    try:
        return work(*args, **named)
    finally:
        if meter := _METER.get():
            meter.add(began)


def elsewhere(work: Callable[[], T]) -> Callable[[], T]:
    """Work that counts for this task in whichever thread it is done."""
    context = contextvars.copy_context()
    return lambda: context.run(counted, work)


class _Steps(Generator[object, object, T]):
    """A coroutine whose steps are timed."""

    def __init__(self, work: Coroutine[object, object, T], meter: _Meter) -> None:
        self._work, self._meter = work, meter

    def __await__(self) -> "_Steps[T]":
        return self

    def send(self, value: object) -> object:
        began = time.thread_time()
        try:
            return self._work.send(value)
        finally:
            self._meter.add(began)

    def throw(self, error: BaseException, *rest: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        began = time.thread_time()
        try:
            return self._work.throw(error)
        finally:
            self._meter.add(began)
