"""Turns on the event loop: where many requests come at once, one begins in each of its rounds. Knows no request.

All that a round has to do is done before the loop looks at anybody else. Where hundreds began in one, a probe would
wait behind all of them several times: until its connection is there, until it is read, and until it is answered.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

_Queue = deque[asyncio.Future[None]]


@dataclass(slots=True)
class _LoopTurns:
    """The callers that wait on one event loop, in the order of their turns."""

    queues: dict[str, _Queue] = field(default_factory=dict[str, _Queue])
    owners: dict[str, str] = field(default_factory=dict[str, str])
    next: asyncio.Handle | None = None  # when it is looked whose turn it is


class Turns:
    """Callers take turns, and each one's requests come in their order. Every event loop has turns of its own.

    `rests_s`: how long the requests of an owner are not begun from now on.
    """

    def __init__(self, rests_s: Callable[[str], float] = lambda owner: 0.0) -> None:
        self._rests_s = rests_s
        self._loops = WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopTurns]()

    def waiting(self, caller: str) -> int:
        """How many requests of this caller wait."""
        here = self._loops.get(asyncio.get_running_loop())
        return len(here.queues.get(caller, ())) if here else 0

    async def wait(self, caller: str, *, owner: str = "") -> None:
        """Return when it is this caller's turn."""
        loop = asyncio.get_running_loop()
        here = self._loops.setdefault(loop, _LoopTurns())
        turn = loop.create_future()
        here.queues.setdefault(caller, deque()).append(turn)
        here.owners[caller] = owner
        if here.next is None or isinstance(here.next, asyncio.TimerHandle):
            if here.next:
                here.next.cancel()
            here.next = loop.call_soon(self._begin, loop, here)
        await turn

    def _begin(self, loop: asyncio.AbstractEventLoop, here: _LoopTurns) -> None:
        rests: list[float] = []
        here.next = None
        for caller in here.queues:
            if (rests_s := self._rests_s(here.owners[caller])) > 0:
                rests.append(rests_s)
                continue
            self._let(caller, here)
            if here.queues:
                here.next = loop.call_soon(self._begin, loop, here)
            return
        here.next = loop.call_later(min(rests), self._begin, loop, here)

    def _let(self, caller: str, here: _LoopTurns) -> None:
        queue = here.queues.pop(caller)
        turn = queue.popleft()
        if queue:
            here.queues[caller] = queue  # behind the others
        else:
            del here.owners[caller]
        if not turn.done():
            turn.set_result(None)
