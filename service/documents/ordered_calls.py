"""Calls begun in their order on one thread, and side by side once one of them holds up the others."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from threading import Event
from typing import Generic, TypeVar

Result = TypeVar("Result")

HELD_UP_S = 1e-3  # by one call, behind which the others are made side by side


class OrderedCalls(Generic[Result]):
    """One thread makes the calls one after another, which is quickest where none waits for a medium; once one has held
    up the others for `HELD_UP_S`, all that are left are made side by side.
    """

    def __init__(self, calls: Iterable[Callable[[], Result]]) -> None:
        self._left = deque((Future[Result](), call) for call in calls)
        self.results = [result for result, _ in self._left]
        self._ended = Event()

    def begin(self, pool: Executor) -> list[Future[Result]]:
        """Begins the calls in threads of the pool. A pool that closes cancels what has not begun."""
        self._submit(pool, self._make_all)
        self._submit(pool, lambda: self._make_room(pool))
        return self.results

    def _make_all(self) -> None:
        with suppress(IndexError):  # nothing is left
            while True:
                _make(*self._left.popleft())
        self._ended.set()

    def _make_room(self, pool: Executor) -> None:
        """Adds a thread for each call that is left, once none of them was begun for too long."""
        while count := len(self._left):
            if not self._ended.wait(HELD_UP_S) and len(self._left) == count:
                for _ in range(count):
                    self._submit(pool, self._make_all)
                return

    def _submit(self, pool: Executor, work: Callable[[], None]) -> None:
        pool.submit(work).add_done_callback(self._cancelled_with)

    def _cancelled_with(self, work: Future[None]) -> None:
        if work.cancelled():
            for each in self.results:
                each.cancel()


def _make(result: Future[Result], call: Callable[[], Result]) -> None:
    if not result.set_running_or_notify_cancel():
        return
    try:
        result.set_result(call())
    except Exception as error:
        result.set_exception(error)
