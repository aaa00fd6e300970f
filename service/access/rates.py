"""How often a key may ask. Counts in this process's memory; knows no HTTP and no clock but the library's."""

import math
import threading
import time

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from service.access.principal import Principal
from service.errors import Exhausted

WINDOW_S = 60


class Rates:
    """Counts each key's requests. Safe for threads. In no 60 seconds are more than `per_minute` of them let through."""

    def __init__(self) -> None:
        self._window = MovingWindowRateLimiter(MemoryStorage())
        self._guard = threading.Lock()  # the library counts and adds in two steps when a window empties

    def take(self, principal: Principal) -> None:
        """Count a request, or raise Exhausted, which says when the next one will pass."""
        if principal.per_minute is None:
            return
        item = RateLimitItemPerMinute(principal.per_minute)
        who = (principal.tenant, principal.key_id)
        with self._guard:
            if self._window.hit(item, *who):
                return
            stats = self._window.get_window_stats(item, *who)
            wait_s = 0.0 if stats.remaining else stats.reset_time - time.time()  # at the instant that one leaves
            if wait_s > WINDOW_S:  # the clock was set back: a key is not shut out until it is that late again
                self._window.clear(item, *who)
                self._window.hit(item, *who)
                return
        seconds = max(1, math.floor(wait_s) + 1)
        raise too_often(principal.per_minute, seconds)


def too_often(per_minute: int, seconds: int) -> Exhausted:
    """The refusal of a key that asks too often."""
    return Exhausted(f"this key may ask {per_minute} times a minute: wait {seconds} s", retry_after_s=float(seconds))
