"""How often a key may ask in any minute, counted in memory or elsewhere; a refusal says how long to wait."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from service.access.principal import Principal
from service.errors import Exhausted

WINDOW_S = 60

Count = Callable[[Principal, int], float | None]  # counts a request; of one too many, in how many seconds one will pass


class Rates:
    """Counts each key's requests. Safe for threads. In no 60 seconds are more than `per_minute` of them let through.

    `count` does so where it is not this process alone that they ask.
    """

    def __init__(self, count: Count | None = None) -> None:
        self._count = count or _MemoryWindow().count

    def take(self, principal: Principal) -> None:
        """Count a request, or raise Exhausted, which says when the next one will pass."""
        most = principal.per_minute
        wait_s = None if most is None else self._count(principal, most)
        if wait_s is not None:
            seconds = max(1, math.floor(wait_s) + 1)
            text = f"this key may ask {most} times a minute: wait {seconds} s"
            raise Exhausted(text, retry_after_s=float(seconds))


class _MemoryWindow:
    """Counts in this process's memory."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str], deque[float]] = {}  # when each key's requests of the last minute were let by
        self._guard = threading.Lock()

    def count(self, principal: Principal, most: int) -> float | None:
        with self._guard:
            now = time.monotonic()
            asked = self._asked.setdefault((principal.tenant, principal.key_id), deque())
            while asked and now - asked[0] > WINDOW_S:
                asked.popleft()
            if len(asked) < most:
                asked.append(now)
                return None
            return asked[-most] + WINDOW_S - now
