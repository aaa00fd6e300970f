"""Work that waits in lines, two a tenant, and whose turn it is; how many large uploads are worked on at once.

Each tenant has two lines: small uploads and what is to be filled stand in one, large uploads and what has moved in the
other. One thread at most works on a line; then it is the last in the row.
"""

import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from threading import Condition
from typing import NamedTuple

LARGE = 5  # lines of large uploads at most that are worked on at once: the other threads are for the small ones


class Line(NamedTuple):
    """Work of a tenant that is done one after the other."""

    tenant: str
    is_large: bool


class Lines:
    """The lines with work, in the order of their turns. Safe for threads."""

    def __init__(self) -> None:
        self.closing = False
        self.worked = time.monotonic()  # when there was work last
        self._changed = Condition()
        self._waiting: OrderedDict[Line, None] = OrderedDict()
        self._at_work: set[Line] = set()
        self._rests: dict[Line, float] = {}  # when a line in which something failed is tried again
        self._held = 0  # by how many callers of `resting`
        self._computing = 0  # threads that work on something which has to rest then

    def close(self) -> None:
        """Hands out nothing more."""
        with self._changed:
            self.closing = True
            self._changed.notify_all()

    def wake(self, line: Line) -> None:
        with self._changed:
            self._waiting[line] = None
            self._changed.notify_all()

    def taken(self, *, failed_s: float, idle_s: float) -> Line | None:
        """Takes the line whose turn it is, until it is left; None where there was none for so long, which is `failed_s`
        where one rests."""
        with self._changed:
            if not self._next():
                self._changed.wait(min(failed_s, idle_s) if self._waiting else idle_s)
            line = self._next()
            if line:
                del self._waiting[line]  # before it is looked at: whoever wakes it meanwhile is not overheard
                self._at_work.add(line)
        return line

    def leave(self, line: Line, *, more: bool, rests_s: float) -> None:
        """Gives a line back that was taken, and tells whether there is more in it. It rests where something failed that
        may pass.
        """
        with self._changed:
            now = time.monotonic()
            self._rests[line] = now + rests_s
            self._at_work.remove(line)
            if more:
                self.worked = now
                self._waiting.pop(line, None)
                self._waiting[line] = None
            self._changed.notify_all()

    def has(self, line: Line) -> bool:
        with self._changed:
            return line in self._waiting or line in self._at_work

    @property
    def is_idle(self) -> bool:
        """Whether nobody works, and nothing but what rests waits."""
        with self._changed:
            return not (self._at_work or self._next() or self.closing)

    @property
    def is_held(self) -> bool:
        """Whether what is worked on is to end soon, and to go on later."""
        return self.closing or self._held > 0

    @property
    def is_crowded(self) -> bool:
        """Whether lines of large uploads wait for one of those that are worked on."""
        with self._changed:
            return self._is_full() and any(line.is_large and self._is_free(line) for line in self._waiting)

    @contextmanager
    def resting(self) -> Generator[None]:
        """Lets nobody compute while the block runs; what is at hand is left as it is, and begun anew."""
        with self._changed:
            self._held += 1
            self._changed.wait_for(lambda: not self._computing)
        try:
            yield
        finally:
            with self._changed:
                self._held -= 1
                self._changed.notify_all()

    @contextmanager
    def computing(self) -> Generator[None]:
        """The block ends before that of `resting` begins."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            self._computing += 1
        try:
            yield
        finally:
            with self._changed:
                self._computing -= 1
                self._changed.notify_all()

    def _next(self) -> Line | None:
        is_full = self._is_full()
        found = (line for line in self._waiting if self._is_free(line) and not (is_full and line.is_large))
        return None if self.closing else next(found, None)

    def _is_full(self) -> bool:
        return sum(line.is_large for line in self._at_work) >= LARGE

    def _is_free(self, line: Line) -> bool:
        return line not in self._at_work and self._rests.get(line, 0.0) <= time.monotonic()
