"""What an LMDB tier with a budget holds and evicts; read anew where transaction numbers show that another wrote."""

import threading

import lmdb

from store.lmdb.rows import BlobRow, Rows
from store.tiers.budget import BlobMemory, Ledger, TierBudget

_REST = ""  # the ledger's entry for everything but blobs; no key is empty
_UNKNOWN = (-1, -1)


class SharedLedger:
    """A `Ledger` that is read anew when another process has written. Does nothing where there is no budget."""

    def __init__(self, rows: Rows, budget: TierBudget) -> None:
        self._rows = rows
        self._lowest = budget.lowest
        self._idle = not budget.is_limit
        self._ledger = Ledger(budget)
        self._lock = threading.Lock()
        self._seen = _UNKNOWN  # the last transaction whose changes the ledger holds, and its file
        self._by: lmdb.Transaction | None = None  # that one
        self._before: dict[str, BlobMemory] = {}  # the entries, before it, of the blobs that it changed

    def evictable(self, row: BlobRow) -> bool:
        """Whether a blob may be evicted."""
        return not (row.pinned or (row.precomputed and self._lowest))

    def used(self, key: str) -> None:
        """Record a hit of a blob."""
        if not self._idle:
            with self._lock:
                self._ledger.used(key)

    def victims(self, txn: lmdb.Transaction, key: str, *, nbytes: int, more: int) -> list[str] | None:
        """The keys to evict so that `nbytes` fit under this key, and `more` anywhere; None where nothing helps."""
        if self._idle:
            return []
        with self._lock:
            self._catch_up(txn)
            self._ledger.removed(_REST)
            rest = max(0, self._rows.used_bytes(txn) - self._ledger.total)
            self._ledger.add(_REST, rest + more, tokens=0, evictable=False)
            return self._ledger.victims(key, nbytes)

    def changed(self, txn: lmdb.Transaction, key: str, *, row: BlobRow | None, evicted: bool = False) -> None:
        """Record what this transaction writes; call `failed` should it not commit."""
        if self._idle:
            return
        with self._lock:
            self._catch_up(txn)
            self._see(txn)
            self._before.setdefault(key, self._ledger.memory(key))
            if row is not None:
                self._ledger.add(key, row.nbytes, tokens=row.tokens, evictable=self.evictable(row))
            else:
                (self._ledger.evicted if evicted else self._ledger.removed)(key)

    def passed(self, txn: lmdb.Transaction) -> None:
        """Record a transaction that writes no blob. One that writes nothing leaves its number to the next."""
        with self._lock:
            if self._is_known(txn):
                self._see(txn)

    def failed(self, txn: lmdb.Transaction) -> None:
        """Record that a transaction did not commit, as far as one can know: otherwise the next number shows it."""
        with self._lock:
            if self._by is txn:
                self._undo()

    def _see(self, txn: lmdb.Transaction) -> None:
        if self._by is not txn:
            self._by, self._seen = txn, self._rows.version(txn)
            self._before.clear()

    def _undo(self) -> None:
        """Restores the state before the last transaction."""
        for key, memory in self._before.items():
            self._ledger.restore(key, memory)
        self._before.clear()
        generation, number = self._seen
        self._by, self._seen = None, (generation, number - 1)

    def _catch_up(self, txn: lmdb.Transaction) -> None:
        if self._by is not txn and self._seen == self._rows.version(txn):
            self._undo()  # a number is reused only where its first transaction did not commit
        if self._is_known(txn):
            return
        there = {raw.decode(): row for raw, row in self._rows.scan(txn)}
        self._ledger.learn({key: (row.nbytes, row.tokens, self.evictable(row)) for key, row in there.items()})
        generation, number = self._rows.version(txn)
        self._seen = generation, number - 1

    def _is_known(self, txn: lmdb.Transaction) -> bool:
        generation, number = self._rows.version(txn)
        return self._seen in ((generation, number - 1), (generation, number))
