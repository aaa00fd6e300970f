"""How often a key may ask. Knows no HTTP and no clock but the library's."""

import math
import threading
import time
from collections.abc import Callable

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

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
        self._window = MovingWindowRateLimiter(MemoryStorage())
        self._guard = threading.Lock()  # the library counts and adds in two steps when a window empties

    def count(self, principal: Principal, most: int) -> float | None:
        item = RateLimitItemPerMinute(most)
        who = (principal.tenant, principal.key_id)
        with self._guard:
            if self._window.hit(item, *who):
                return None
            stats = self._window.get_window_stats(item, *who)
            wait_s = 0.0 if stats.remaining else stats.reset_time - time.time()  # at the instant that one leaves
            if wait_s > WINDOW_S:  # the clock was set back: a key is not shut out until it is that late again
                self._window.clear(item, *who)
                self._window.hit(item, *who)
                return None
        return wait_s
