"""Turns on the event loop: where many requests come at once, one begins in each of its rounds. Knows no request.

All that a round has to do is done before the loop looks at anybody else. Where hundreds began in one, a probe would
wait behind all of them several times: until its connection is there, until it is read, and until it is answered.
"""

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

_Queue = deque[asyncio.Future[None]]


class Turns:
    """Callers take turns, and each one's requests come in their order. Every event loop has turns of its own."""

    def __init__(self) -> None:
        self._queues = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Queue]]()

    def waiting(self, caller: str) -> int:
        """How many requests of this caller wait."""
        return len(self._queues.get(asyncio.get_running_loop(), {}).get(caller, ()))

    async def wait(self, caller: str) -> None:
        """Return when it is this caller's turn."""
        loop = asyncio.get_running_loop()
        queues = self._queues.setdefault(loop, {})
        if not queues:
            loop.call_soon(self._begin, loop)
        turn = loop.create_future()
        queues.setdefault(caller, deque()).append(turn)
        await turn

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        queues = self._queues[loop]
        caller = next(iter(queues))
        queue = queues.pop(caller)
        turn = queue.popleft()
        if queue:
            queues[caller] = queue  # behind the others
        if not turn.done():
            turn.set_result(None)
        if queues:
            loop.call_soon(self._begin, loop)
