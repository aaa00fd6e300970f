"""Turns of several owners at a few threads: who asks for much waits behind itself. Knows nothing of the work."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

from service.errors import Exhausted

RETRY_S = 1.0

T = TypeVar("T")


class FairTurns:
    """One piece of work of each owner is under way, or next in the queue of the threads; `longest` may wait for that.

    Its methods are called in one event loop.
    """

    def __init__(self, threads: int, *, longest: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "kvweave-turn")
        self._longest = longest
        self._lines: WeakValueDictionary[str, _Line] = WeakValueDictionary()

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown(cancel_futures=True)

    async def run(self, owner: str, work: Callable[[], T]) -> T:
        """What the work returns. What is under way when the caller is cancelled keeps its owner's turn to its end."""
        line = self._lines.setdefault(owner, _Line())
        if line.length >= self._longest:
            raise Exhausted(
                f"{line.length} JSON schemas of this tenant wait to be compiled: try again in a moment",
                retry_after_s=RETRY_S,
            )
        line.length += 1
        try:
            await line.turn.acquire()
        except asyncio.CancelledError:
            line.length -= 1
            raise
        job = asyncio.get_running_loop().run_in_executor(self._pool, work)
        job.add_done_callback(line.leave)
        return await asyncio.shield(job)


class _Line:
    """The work of one owner that is not done."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.length = 0

    def leave(self, job: "asyncio.Future[T]") -> None:
        self.length -= 1
        self.turn.release()
        if not job.cancelled():
            job.exception()  # who asked may be gone: then nobody else reads it
