"""What an object store with a budget holds and evicts, listed anew at intervals. Never exact: others write."""

import threading
import time

from store.objects.object_client import ObjectClient
from store.tiers.budget import Ledger, TierBudget

_FRESH_S = 300.0


class ListedLedger:
    """A `Ledger` filled from a listing. Does nothing where there is no budget. Only fills may be evicted."""

    def __init__(self, client: ObjectClient, budget: TierBudget) -> None:
        self._client = client
        self._idle = not budget.is_limit
        self._lock = threading.Lock()
        self._listing = threading.Lock()  # held while a listing comes in; hits do not wait for it
        self._ledger = Ledger(budget)
        self._listed_at: float | None = None

    def used(self, key: str) -> None:
        """Record a hit of a blob."""
        if not self._idle:
            with self._lock:
                self._ledger.used(key)

    def victims(self, key: str, nbytes: int) -> list[str] | None:
        """The keys to evict so that `nbytes` more fit under this key; None where even that is not enough."""
        if self._idle:
            return []
        self._refresh()
        with self._lock:
            if any(self._ledger.matches(key, nbytes, evictable=evictable) for evictable in (True, False)):
                return []  # it is there, and counted already
            return self._ledger.victims(key, nbytes)

    def added(self, key: str, nbytes: int, *, evictable: bool) -> None:
        """Record a blob, new or changed."""
        if not self._idle:
            with self._lock:
                # A listing does not know tokens; within one codec bytes are in proportion to them.
                self._ledger.add(key, nbytes, tokens=nbytes, evictable=evictable)

    def removed(self, key: str, *, evicted: bool = False) -> None:
        """Record that a blob is gone."""
        if not self._idle:
            with self._lock:
                (self._ledger.evicted if evicted else self._ledger.removed)(key)

    def _refresh(self) -> None:
        with self._listing:
            if self._listed_at is not None and time.monotonic() - self._listed_at <= _FRESH_S:
                return
            fills = {row.path.removeprefix("fills/") for row in self._client.listing("fills")}
            there = {row.path.removeprefix("blobs/"): row.nbytes for row in self._client.listing("blobs")}
            with self._lock:
                self._ledger.learn({key: (nbytes, nbytes, key in fills) for key, nbytes in there.items()})
            self._listed_at = time.monotonic()
