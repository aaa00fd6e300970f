"""The token of the console's link: good once and for a while, replaced by the next. Knows no key and no address."""

import hmac
import secrets
import threading
import time
from collections.abc import Callable

LIFE_S = 600.0


class OneTimeLink:
    """One token is in force at most: it is good once, and for ten minutes. Safe for threads.

    `clock`: seconds that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._token, self._until = "", 0.0

    def issue(self) -> str:
        """A new token, in the place of the one before."""
        with self._guard:
            self._token, self._until = secrets.token_urlsafe(32), self._clock() + LIFE_S
            return self._token

    def redeem(self, token: str) -> bool:
        """Whether this is the token in force, which it is no more then. Guesses leave it as it is."""
        with self._guard:
            is_current = self._token != "" and self._clock() < self._until
            if not (is_current and hmac.compare_digest(token.encode(), self._token.encode())):
                return False
            self._token = ""
            return True
