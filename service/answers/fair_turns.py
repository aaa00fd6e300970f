"""Shares out what is scarce: threads in turn among owners, memory for JSON schemas by tenant, priorities (nice)."""

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from service.errors import Exhausted

RETRY_S = 1.0
SHARE_BYTES = 256 << 20  # of memory for the schemas of one tenant
COMPUTES, LATER = 5, 10  # nice steps: for work that a client waits for, and for background work

T = TypeVar("T")


class FairTurns:
    """Runs one piece of work of each owner at a time on a few threads; `longest` of each may run or wait.

    `waiting`: what whoever is refused is told of those.

    Its methods are called in one event loop.
    """

    def __init__(self, threads: int, *, longest: int, waiting: str) -> None:
        self._pool = ThreadPoolExecutor(threads, "kvweave-turn")
        self._longest = longest
        self._waiting = waiting
        self._lines: WeakValueDictionary[str, _Line] = WeakValueDictionary()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    async def run(self, owner: str, work: Callable[[], T]) -> T:
        """Returns the result of the work. Running work of a cancelled caller keeps its owner's turn to its end."""
        line = self._lines.setdefault(owner, _Line())
        if line.length >= self._longest:
            raise Exhausted(f"{line.length} {self._waiting}: try again in a moment", retry_after_s=RETRY_S)
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
    """The unfinished work of one owner."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.length = 0

    def leave(self, job: "asyncio.Future[T]") -> None:
        self.length -= 1
        self.turn.release()
        if not job.cancelled():
            job.exception()  # a caller that is gone never reads it


class SchemaMemory:
    """Memory that JSON schemas take while their answers run, by tenant. Its methods are called in one event loop."""

    def __init__(self, share_bytes: int = SHARE_BYTES) -> None:
        self._share_bytes = share_bytes
        self._taken = Counter[str]()

    @contextmanager
    def held(self, tenant: str, nbytes: int) -> Generator[None]:
        """Counts a compiled schema while a block runs. Raises Exhausted where the tenant's share is used up."""
        if self._taken[tenant] + nbytes > self._share_bytes:
            raise Exhausted(
                f"the JSON schemas of this tenant's answers take {self._taken[tenant] >> 20} MiB of the "
                f"{self._share_bytes >> 20} that they may have together: try again when one has ended",
                retry_after_s=RETRY_S,
            )
        self._taken[tenant] += nbytes
        try:
            yield
        finally:
            self._taken[tenant] -= nbytes
            self._taken = +self._taken  # tenants without memory are dropped


def lower_priority(steps: int, *, of: threading.Thread | None = None) -> None:
    """Puts this thread, or another one, behind others, with those that it begins from now on. On Linux alone."""
    if sys.platform == "linux":
        thread = threading.get_native_id() if of is None else of.native_id or 0
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + steps)
