"""A request that was handed in and is not over. Knows nobody who answers it."""

import logging
import math
import time
from collections.abc import Callable

from blend.engine.engine import Done, EngineRequest, Event, Failed

log = logging.getLogger(__name__)


class PendingRequest:
    """What was asked and who listens. Ends once. One thread alone calls all but `cancel`."""

    def __init__(self, request: EngineRequest, listen: Callable[[Event], None]) -> None:
        self.request = request
        self.cancelled = False
        self.over = False
        self._listen = listen
        self._born = time.perf_counter()

    @property
    def age_s(self) -> float:
        """Seconds since the request was handed in."""
        return time.perf_counter() - self._born

    @property
    def left_s(self) -> float:
        """Seconds that are left of those it was given."""
        within = self.request.within_s
        return math.inf if within is None else within - self.age_s

    def cancel(self) -> None:
        """Asks that the request end. May be called from any thread."""
        self.cancelled = True

    def tell(self, event: Event) -> None:
        """Hands an event on. Who fails to listen is taken for gone."""
        if self.over:
            return
        self.over = isinstance(event, Done | Failed)
        try:
            self._listen(event)
        except Exception as error:
            log.warning("a listener failed: its request ends", exc_info=error)
            self.cancelled = self.over = True
