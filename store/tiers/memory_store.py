"""Blobs in RAM, lost with the process: a store of its own, or the top of a tiered one, with layers unpacked there."""

import threading
import time
from bisect import insort
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from store.blob import Blob, Buffer, Head
from store.blob_store import BlobStore, Deletion, Put, StorageUsage, StoredBlob
from store.codec.unpacked import Allocate, UnpackedBlob, allocate, unpacked
from store.errors import BadBlob, Miss, MissReason
from store.key import CacheKey, Scope
from store.reader import BlobReader
from store.tiers.budget import Ledger, TierBudget


@dataclass(frozen=True, slots=True)
class _Kept:
    blob: Blob | UnpackedBlob
    precomputed: bool
    pinned: bool
    stored_at: float

    @property
    def raw_head(self) -> bytes:
        return self.blob.head_bytes

    def reader(self, head: Head) -> BlobReader:
        """The frames as they are in memory, or the layers."""
        stored = self.blob.stored if isinstance(self.blob, UnpackedBlob) else None
        return BlobReader(head, self.raw_head, fetch=self._fetch, source=MemoryStore.name, unpacked=stored)

    @contextmanager
    def _fetch(self, number: int) -> Generator[Buffer]:
        if isinstance(self.blob, UnpackedBlob):
            raise BadBlob(MissReason.ABSENT, "memory has the layers and not the frames: read these below")
        yield self.blob.frames[number]


class MemoryStore(BlobStore):
    """The tier of blobs in RAM (see `store.blob_store`)."""

    name = "ram"

    def __init__(self, budget: TierBudget | None = None) -> None:
        self._budget = budget or TierBudget()
        self._lock = threading.RLock()
        self._blobs: dict[CacheKey, _Kept] = {}
        self._ledger = Ledger(self._budget)
        self._deletions: dict[str, list[tuple[float, Deletion]]] = defaultdict(list)
        self._graves: dict[str, int] = {}  # scope -> its last deletion

    def _find(self, key: CacheKey) -> _Kept | None:
        with self._lock:
            kept = self._blobs.get(key)
            if kept is not None:
                self._ledger.used(key.text)
            return kept

    def _form(self, blob: Blob) -> Blob | UnpackedBlob:
        """The form in which a blob is kept."""
        return blob

    def put(self, blob: Blob) -> Put:
        form = self._form(blob)
        with self._lock:
            kept = self._blobs.get(blob.head.key)
            if kept is None or self._is_dead(form):
                return self._store(form)
            if blob.head.terms.precomputed and not kept.precomputed:
                self._keep(_Kept(kept.blob, precomputed=True, pinned=kept.pinned, stored_at=kept.stored_at))
            return Put.PRESENT

    def replace(self, blob: Blob) -> Put:
        form = self._form(blob)
        with self._lock:
            return self._store(form)

    def _store(self, blob: Blob | UnpackedBlob) -> Put:
        key, terms = blob.head.key, blob.head.terms
        if self._is_dead(blob):
            return Put.DELETED
        before = self._blobs.get(key)
        victims = self._ledger.victims(key.text, blob.nbytes - (before.blob.nbytes if before else 0))
        if victims is None:
            self._forget(key)
            return Put.OVER_BUDGET
        for victim in victims:
            del self._blobs[CacheKey.parse(victim)]
            self._ledger.evicted(victim)
        precomputed = terms.precomputed or (before is not None and before.precomputed)
        self._keep(_Kept(blob, precomputed, before is not None and before.pinned, time.time()))
        return Put.STORED

    def _is_dead(self, blob: Blob | UnpackedBlob) -> bool:
        return any(self._graves.get(scope, 0) > blob.head.terms.epoch for scope in blob.head.key.scopes)

    def _keep(self, kept: _Kept) -> None:
        head = kept.blob.head
        self._blobs[head.key] = kept
        safe = kept.pinned or (kept.precomputed and self._budget.lowest)
        self._ledger.add(head.key.text, kept.blob.nbytes, tokens=head.tokens, evictable=not safe)

    def _forget(self, key: CacheKey) -> bool:
        self._ledger.removed(key.text)
        return self._blobs.pop(key, None) is not None

    def discard(self, key: CacheKey) -> bool:
        with self._lock:
            return self._forget(key)

    def quarantine(self, key: CacheKey) -> bool:
        return self.discard(key)

    def epoch(self, tenant: str) -> int:
        with self._lock:
            kept = self._deletions.get(tenant)
            return kept[-1][1].epoch if kept else 0

    def deletions(self, tenant: str, after: int = 0) -> list[Deletion]:
        with self._lock:
            return [deletion for _, deletion in self._deletions.get(tenant, ()) if deletion.epoch > after]

    def delete_all(self, scopes: Sequence[Scope], *, epochs: Sequence[int] = ()) -> list[int]:
        with self._lock:
            first = self.epoch(scopes[0].tenant) + 1
            numbers = [*epochs] or [*range(first, first + len(scopes))]
            known = self._deletions[scopes[0].tenant]
            for number, scope in zip(numbers, scopes, strict=True):
                insort(known, (time.time(), Deletion(number, scope)), key=lambda row: row[1].epoch)
                self._graves[scope.text] = max(number, self._graves.get(scope.text, 0))
            for key in [key for key, kept in self._blobs.items() if self._is_dead(kept.blob)]:
                self._forget(key)
        return numbers

    def trim(self, tenant: str, before: float) -> int:
        with self._lock:
            known = self._deletions.get(tenant, [])
            old = [row for row in known[:-1] if row[0] < before]
            for row in old:
                known.remove(row)
                if self._graves.get(row[1].scope.text) == row[1].epoch:
                    del self._graves[row[1].scope.text]
            return len(old)

    def entries(self, scope: Scope | None = None) -> Iterator[StoredBlob]:
        with self._lock:
            rows = [
                StoredBlob(k, v.blob.nbytes, v.stored_at) for k, v in self._blobs.items() if scope is None or k in scope
            ]
        return iter(sorted(rows, key=lambda row: row.key.text))

    def strays(self) -> Iterator[str]:
        return iter(())

    def tenants(self) -> list[str]:
        with self._lock:
            return sorted({key.tenant for key in self._blobs} | set(self._deletions))

    def forget_quarantined(self, before: float) -> int:
        del before
        return 0

    def mark(self, scope: Scope, *, pinned: bool) -> int:
        with self._lock:
            marked = [kept for key, kept in self._blobs.items() if key in scope]
            for kept in marked:
                self._keep(_Kept(kept.blob, kept.precomputed, pinned, kept.stored_at))
            return len(marked)

    def usage(self) -> list[StorageUsage]:
        with self._lock:
            return [StorageUsage(self.name, len(self._blobs), self._ledger.total, self._budget.total)]


class MemoryCache(MemoryStore):
    """A tier above others that keeps layers ready for use. Its budget counts their bytes in this form."""

    def __init__(self, budget: TierBudget, allocate: Allocate = allocate) -> None:
        super().__init__(budget)
        self._allocate = allocate

    def open(self, key: CacheKey) -> BlobReader | Miss:
        kept = self._find(key)
        return Miss(MissReason.ABSENT) if kept is None else kept.reader(kept.blob.head)

    def _form(self, blob: Blob) -> UnpackedBlob:
        return unpacked(blob, self._allocate)
