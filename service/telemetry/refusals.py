"""Refused requests and connections: each is counted, and the log says when refusals begin. Knows no HTTP."""

import logging
import time
from collections.abc import Callable
from threading import Lock

from service.telemetry.logs import fields
from service.telemetry.metrics import Metrics

TOLD_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class Refusals:
    """Counts from any thread. `clock`: seconds that only grow."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._told: dict[str, float] = {}
        self._guard = Lock()

    def add(self, reason: str) -> None:
        """Count one; logs the first, and then at most one a minute."""
        self._metrics.refused(reason)
        now = self._clock()
        with self._guard:
            if now - self._told.get(reason, -TOLD_EVERY_S) < TOLD_EVERY_S:
                return
            self._told[reason] = now
        _log.warning("turned away, at a limit", extra=fields(limit=reason))
