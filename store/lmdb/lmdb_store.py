"""Blobs in one LMDB folder that processes share: durable puts, eviction and retries when the map is full, deletions."""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import lmdb
from msgspec.structs import replace

from store.blob import Blob, Buffer, Head, verified
from store.blob_store import BlobStore, Deletion, Put, StorageUsage, StoredBlob
from store.errors import BadBlob, MissReason, StoreError, StoreFull
from store.key import CacheKey, Scope, unquote
from store.lmdb.broken import forget_broken
from store.lmdb.environment import PAGE_BYTES, RESERVED_BYTES, Environment, MapFull, open_environment
from store.lmdb.rows import BlobRow, Rows, new_row
from store.lmdb.shared_ledger import SharedLedger
from store.reader import BlobReader
from store.tiers.budget import TierBudget

T = TypeVar("T")

_TOGETHER_BYTES = 16 << 20  # of blobs that one transaction writes
_BATCH = 64  # blobs that one transaction deletes, so that no writer waits long
_ATTEMPTS = 24
_WORKING_BYTES = 16 * PAGE_BYTES  # about what a transaction copies of the trees


@dataclass(frozen=True, slots=True)
class _Found:
    raw_head: bytes
    key: bytes
    env: Environment
    rows: Rows

    def reader(self, head: Head) -> BlobReader:
        """The frames as views into the map, each in a snapshot of its own: a long read never pins pages."""
        return LmdbReader(head, self)

    @contextmanager
    def fetch(self, number: int) -> Generator[Buffer]:
        with self.env.read() as txn:
            data = self.frame(txn, number)
            try:
                yield data
            finally:
                data.release()

    def frame(self, txn: lmdb.Transaction, number: int) -> memoryview:
        """One frame as a view into the map, to be released before the snapshot ends."""
        data = self.rows.frame(txn, self.key, number=number)
        if data is None:
            raise BadBlob(MissReason.ABSENT, f"frame {number} went away while the blob was read")
        return data


class LmdbReader(BlobReader):
    """A reader that reads frames of several blobs in one snapshot."""

    def __init__(self, head: Head, found: _Found) -> None:
        super().__init__(head, found.raw_head, fetch=found.fetch, source=LmdbStore.name)
        self._found = found

    @contextmanager
    def several(self, wanted: Sequence[tuple[BlobReader, int]]) -> Generator[Sequence[Buffer]]:
        env = self._found.env
        own = [(each, number) for each, number in wanted if isinstance(each, LmdbReader) and each._found.env is env]
        if len(own) < len(wanted):
            with super().several(wanted) as frames:
                yield frames
            return
        views = list[memoryview]()
        with env.read() as txn:
            try:
                for each, number in own:
                    views.append(each._found.frame(txn, number))
                    verified(views[-1], each.head, number=number)
                yield views
            finally:
                for view in views:
                    view.release()


class LmdbStore(BlobStore):
    """See `store.blob_store`. With a budget the file never outgrows it: the map is no larger."""

    name = "lmdb"

    def __init__(self, path: Path, budget: TierBudget | None = None, *, map_bytes: int | None = None) -> None:
        budget = budget or TierBudget()
        self._budget = total = budget.total
        if total is not None:
            map_bytes = total - total // 64 - _WORKING_BYTES  # the rest is reserved for deletes: they need pages too
        self._map_bytes = map_bytes or RESERVED_BYTES
        self.environment = open_environment(path, self._map_bytes)
        try:
            self._rows = Rows(self.environment)
        except (MapFull, StoreError) as error:
            self.environment.release()
            if isinstance(error, StoreError):
                raise
            raise StoreFull(f"{path} is full to its last page: raise its budget") from None
        # Fragmentation takes a part of the file, and so do pages that were just freed.
        limit = None if total is None else total * 15 // 16 - 2 * _WORKING_BYTES
        self._closed = False
        self._ledger = SharedLedger(self._rows, TierBudget(limit, budget.per_tenant, lowest=budget.lowest))

    def _find(self, key: CacheKey) -> _Found | None:
        raw = key.text.encode()
        with self.environment.read() as txn:
            row = self._rows.row(txn, raw)
            head = self._rows.head(txn, raw)
            if row is None or head is None or self._rows.is_dead(txn, key, epoch=row.epoch):
                return None
            found = _Found(head, raw, self.environment, self._rows)
        self._ledger.used(key.text)
        return found

    def put(self, blob: Blob) -> Put:
        return self._store(blob, keep=True)

    def put_all(self, blobs: Sequence[Blob]) -> list[Put]:
        """Stores several blobs with each commit, and so with each sync of the disk."""
        return [put for together in _together(blobs) for put in self._put_together(together)]

    def _put_together(self, blobs: Sequence[Blob]) -> list[Put]:
        def store(txn: lmdb.Transaction) -> list[Put | list[str]]:
            return [self._store_in(txn, blob=blob, keep=True, more=0, at_once=True) for blob in blobs]

        try:
            return [put for put in self._run(store) if isinstance(put, Put)]
        except (MapFull, StoreFull):  # one at a time they may fit
            return [self.put(blob) for blob in blobs]

    def replace(self, blob: Blob) -> Put:
        return self._store(blob, keep=False)

    def _store(self, blob: Blob, *, keep: bool) -> Put:
        more = 0  # overhead of fragmentation
        at_once = True
        fulls = 0
        for _ in range(_ATTEMPTS):
            try:
                outcome = self._run_aged(partial(self._store_in, blob=blob, keep=keep, more=more, at_once=at_once))
                if isinstance(outcome, Put):
                    return outcome
                self._run(partial(self._evict_in, keys=outcome))
                at_once = True
            except MapFull:
                if self._budget is None:
                    self.environment.grow(2 * blob.nbytes)
                elif fulls:
                    more += max(blob.nbytes, self._budget // 50)
                fulls += 1
                at_once = False  # the pages of the evicted are free for a later transaction only
        return Put.OVER_BUDGET

    def _run_aged(self, change: Callable[[lmdb.Transaction], T]) -> T:
        """Run a change; where it does not fit, once more when the pages that were freed last are reusable."""
        try:
            return self._run(change)
        except (MapFull, StoreFull):
            self._run(self._age_in)
        return self._run(change)

    def _age_in(self, txn: lmdb.Transaction) -> None:
        """An empty write: freed pages are reusable from the second transaction after theirs; this is the first."""
        self._rows.touch(txn)
        self._ledger.passed(txn)

    def _store_in(self, txn: lmdb.Transaction, *, blob: Blob, keep: bool, more: int, at_once: bool) -> Put | list[str]:
        """Store the blob, or return the keys to evict first."""
        key, terms = blob.head.key, blob.head.terms
        if self._rows.is_dead(txn, key, epoch=terms.epoch):
            return Put.DELETED
        row = self._rows.row(txn, key.text.encode())
        alive = row if row is not None and not self._rows.is_dead(txn, key, epoch=row.epoch) else None
        if alive is not None and keep:
            if terms.precomputed and not alive.precomputed:
                self._mark(txn, key.text, row=replace(alive, precomputed=True))
            return Put.PRESENT
        new = new_row(blob, alive, now=time.time())
        victims = self._ledger.victims(txn, key.text, nbytes=new.nbytes - (row.nbytes if row else 0), more=more)
        if victims is None:
            return Put.OVER_BUDGET
        if victims and not at_once:
            return victims
        self._evict_in(txn, keys=victims)
        self._rows.write(txn, blob, row=new)
        self._ledger.changed(txn, key.text, row=new)
        return Put.STORED

    def _evict_in(self, txn: lmdb.Transaction, *, keys: Iterable[str]) -> None:
        for key in keys:
            row = self._rows.row(txn, key.encode())
            if row is not None and self._ledger.evictable(row):
                self._rows.remove(txn, key.encode())
                self._ledger.changed(txn, key, row=None, evicted=True)

    def _mark(self, txn: lmdb.Transaction, key: str, *, row: BlobRow) -> None:
        self._rows.mark(txn, key.encode(), row=row)
        self._ledger.changed(txn, key, row=row)

    def _remove_in(self, txn: lmdb.Transaction, *, key: str) -> bool:
        there = self._rows.remove(txn, key.encode())
        if there:
            self._ledger.changed(txn, key, row=None)
        return there

    def _run(self, change: Callable[[lmdb.Transaction], T]) -> T:
        begun: lmdb.Transaction | None = None

        def noted(txn: lmdb.Transaction) -> T:
            nonlocal begun
            begun = txn
            return change(txn)

        committed = False
        try:
            result = self.environment.write(noted)
            committed = True
        finally:
            if begun and not committed:
                self._ledger.failed(begun)
        return result

    def _change(self, change: Callable[[lmdb.Transaction], T]) -> T:
        """Runs a change that needs few pages: where the map is full it may use the reserved part."""
        try:
            return self._run(change)
        except MapFull:
            if self._budget is None:
                self.environment.grow(0)
            else:
                self.environment.cap(self._budget)
        try:
            return self._run(change)
        except MapFull:
            raise StoreFull(f"{self.environment.path} is full to its last page: raise its budget") from None
        finally:
            if self._budget is not None:
                self.environment.cap(self._map_bytes)

    def discard(self, key: CacheKey) -> bool:
        return self._change(partial(self._remove_in, key=key.text))

    def quarantine(self, key: CacheKey) -> bool:
        def change(txn: lmdb.Transaction) -> bool:
            moved = self._rows.quarantine(txn, key.text.encode(), now=time.time())
            if moved:
                self._ledger.changed(txn, key.text, row=None)
            return moved

        return self._change(change)

    def forget_quarantined(self, before: float) -> int:
        forget_broken(self.environment.path, before=before)
        return self._change(lambda txn: self._rows.forget_quarantined(txn, b"", before=before))

    def epoch(self, tenant: str) -> int:
        with self.environment.read() as txn:
            return self._rows.epoch(txn, tenant)

    def deletions(self, tenant: str, after: int = 0) -> list[Deletion]:
        with self.environment.read() as txn:
            return self._rows.deletions(txn, tenant, after=after)

    def delete_all(self, scopes: Sequence[Scope], *, epochs: Sequence[int] = ()) -> list[int]:
        def log(txn: lmdb.Transaction) -> list[Deletion]:
            first = self._rows.epoch(txn, scopes[0].tenant) + 1
            numbers = epochs or range(first, first + len(scopes))
            deletions = [Deletion(number, scope) for number, scope in zip(numbers, scopes, strict=True)]
            for deletion in deletions:
                self._rows.log_deletion(txn, deletion, now=time.time())
                self._rows.forget_quarantined(txn, deletion.scope.text.encode(), before=math.inf)
            self._ledger.passed(txn)
            return deletions

        deletions = self._change(log)
        forget_broken(self.environment.path, before=math.inf)  # it may hold deleted blobs
        self._bury(deletions)
        return [deletion.epoch for deletion in deletions]

    def _bury(self, deletions: Sequence[Deletion]) -> None:
        """Free the pages of dead blobs."""
        while self._change(partial(self._bury_in, deletions=deletions)):
            pass

    def finish_deletes(self) -> None:
        for tenant in self.tenants():
            for deletion in self.deletions(tenant):
                self._bury([deletion])

    def compact(self) -> int:
        return self.environment.compact()

    def _bury_in(self, txn: lmdb.Transaction, *, deletions: Sequence[Deletion]) -> bool:
        """Remove some of the dead blobs; returns whether there may be more."""
        dead = list(islice(self._dead(txn, deletions), _BATCH))
        for key in dead:
            self._remove_in(txn, key=key)
        return len(dead) == _BATCH

    def _dead(self, txn: lmdb.Transaction, deletions: Sequence[Deletion]) -> Iterator[str]:
        for deletion in deletions:
            rows = self._rows.scan(txn, deletion.scope.text.encode())
            yield from [raw.decode() for raw, row in rows if row.epoch < deletion.epoch]

    def trim(self, tenant: str, before: float) -> int:
        return self._change(lambda txn: self._rows.trim_deletions(txn, tenant, before=before))

    def entries(self, scope: Scope | None = None) -> Iterator[StoredBlob]:
        with self.environment.read() as txn:
            rows = list(self._rows.scan(txn, scope.text.encode() if scope else b""))
            keys = [_parse(raw) for raw, _ in rows]
            dead = [
                key is None or self._rows.is_dead(txn, key, epoch=row.epoch)
                for key, (_, row) in zip(keys, rows, strict=True)
            ]
        for key, (_, row), skipped in zip(keys, rows, dead, strict=True):
            if key is not None and not skipped:
                yield StoredBlob(key, row.nbytes, row.stored_at)

    def strays(self) -> Iterator[str]:
        with self.environment.read() as txn:
            names = [raw for raw, _ in self._rows.scan(txn)]
        yield from (raw.decode(errors="backslashreplace") for raw in names if _parse(raw) is None)

    def tenants(self) -> list[str]:
        with self.environment.read() as txn:
            return sorted(unquote(raw.decode()) for raw in self._rows.tenants(txn))

    def mark(self, scope: Scope, *, pinned: bool) -> int:
        return self._change(partial(self._pin_in, scope=scope, pinned=pinned))

    def _pin_in(self, txn: lmdb.Transaction, *, scope: Scope, pinned: bool) -> int:
        found = list(self._rows.scan(txn, scope.text.encode()))
        for raw, row in found:
            if row.pinned != pinned:
                self._mark(txn, raw.decode(), row=replace(row, pinned=pinned))
        return len(found)

    def usage(self) -> list[StorageUsage]:
        with self.environment.read() as txn:
            blobs = sum(total.blobs for total in self._rows.totals(txn).values())
        return [StorageUsage(self.name, blobs, self.environment.file_bytes(), self._budget)]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.environment.release()


def _together(blobs: Iterable[Blob]) -> Iterator[list[Blob]]:
    together: list[Blob] = []
    nbytes = 0
    for blob in blobs:
        together.append(blob)
        nbytes += blob.nbytes
        if nbytes >= _TOGETHER_BYTES:
            yield together
            together, nbytes = [], 0
    if together:
        yield together


def _parse(raw: bytes) -> CacheKey | None:
    """The key of a blob; None for one that this store did not write."""
    try:
        return CacheKey.parse(raw.decode())
    except ValueError:
        return None
