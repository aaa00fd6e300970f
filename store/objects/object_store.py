"""Blobs in S3, GCS, Azure or a folder, shared by machines: durable puts, pins, eviction, deletions with unique numbers.

blobs/<key>            the blob
fills/<key>            empty: the blob is a fill at query time and may be evicted
pins/<key>             empty: the blob was a fill and is pinned
deletions/<tenant>/<n> the scope of the tenant's deletion n, and a mark; made by create-if-absent: numbers are unique
burying/<tenant>/<n>   the scope, while the deletion has not come to all of its blobs
quarantine/<key>       a blob that did not verify
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from store.blob import Blob, Head, read_head
from store.blob_store import BlobStore, Deletion, Put, StorageUsage, StoredBlob
from store.errors import BadBlob, KeyFormatError, StoreUnavailable
from store.key import CacheKey, Scope, quote, unquote
from store.objects.listed_ledger import ListedLedger
from store.objects.object_blob import FIRST, ObjectBlob, ReadLease, ReadMemory
from store.objects.object_client import Listed, ObjectClient
from store.tiers.budget import TierBudget

_SKEW_S = 5.0  # a listing shows whole seconds, and the clocks of a server's nodes differ
_THREADS = 128  # threads that read ranges: each waits for the medium, so there are as many as parallel reads
_PUTTING = 16  # blobs in parallel: each waits for several responses
_HEAD = range(1 << 16)  # nearly every head
_BATCH = 1000  # the most objects that one request deletes
_EPOCH_DIGITS = 20


class ObjectBlobStore(BlobStore):
    """See `store.blob_store`. Create-if-absent alone makes deletions' numbers unique and prevents duplicates."""

    name = "object"

    def __init__(
        self, client: ObjectClient, budget: TierBudget | None = None, *, memory: ReadMemory | None = None
    ) -> None:
        self._client = client
        self._budget = budget or TierBudget()
        self._ledger = ListedLedger(client, self._budget)
        self._memory = memory or ReadMemory()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="object")
        self._putting = ThreadPoolExecutor(_PUTTING, thread_name_prefix="object-put")  # apart: puts wait for reads

    def _find(self, key: CacheKey) -> ObjectBlob | None:
        path, lease = f"blobs/{key.text}", ReadLease(self._memory, key.tenant)
        ahead = lease.take(len(FIRST))
        first = self._client.read(path, FIRST if ahead else _HEAD)
        if first is None:
            return None
        if ahead:
            lease.give(len(FIRST) - len(first.data))
        self._ledger.used(key.text)
        return ObjectBlob(self._client, path, first=first, pool=self._pool, lease=lease)

    def put(self, blob: Blob) -> Put:
        key, terms = blob.head.key, blob.head.terms
        refused = self._make_room(blob)
        if refused is not None:
            return refused
        if self._client.create(f"blobs/{key.text}", bytes(blob)):
            return self._stored(blob, fill=not terms.precomputed)
        if self._is_killed(key, self._deletions("burying", key.tenant)):
            return self.replace(blob)
        killers = self._killers(blob)
        if killers:  # this may be the blob itself: it was created, and the response was lost
            if self._is_killed(key, killers):
                self._remove([key.text])
            return Put.DELETED
        if terms.precomputed:
            self._keep(blob)
        return Put.PRESENT

    def put_all(self, blobs: Sequence[Blob]) -> list[Put]:
        if self._budget.is_limit:
            return [self.put(blob) for blob in blobs]  # each must see the space that the one before took
        return list(self._putting.map(self.put, blobs))

    def replace(self, blob: Blob) -> Put:
        if self._killers(blob):
            return Put.DELETED
        refused = self._make_room(blob)
        if refused is not None:
            return refused
        fill = not (blob.head.terms.precomputed or self._is_kept(blob.head.key.text))
        self._client.write(f"blobs/{blob.head.key.text}", bytes(blob))
        return self._stored(blob, fill=fill)

    def _is_kept(self, key: str) -> bool:
        """Whether there is a blob without a marker."""
        there = self._client.head(f"blobs/{key}") is not None
        return there and not any(self._client.head(f"{kind}/{key}") for kind in ("fills", "pins"))

    def _stored(self, blob: Blob, *, fill: bool) -> Put:
        """Completes a put: a delete after the computing began either finds the blob, or is found here."""
        key = blob.head.key.text
        killers = self._killers(blob)
        if killers:
            if self._is_killed(blob.head.key, killers):
                self._remove([key])
            return Put.DELETED
        if not fill:
            self._keep(blob)
            return Put.STORED
        pinned = self._client.head(f"pins/{key}") is not None
        if not pinned:
            self._client.write(f"fills/{key}", b"")
        self._ledger.added(key, blob.nbytes, evictable=not pinned)
        return Put.STORED

    def _killers(self, blob: Blob) -> list[Deletion]:
        key, epoch = blob.head.key, blob.head.terms.epoch
        return [deletion for deletion in self.deletions(key.tenant, epoch) if deletion.kills(key, epoch)]

    def _keep(self, blob: Blob) -> None:
        """Removes the markers of a blob: precomputed blobs have none."""
        key = blob.head.key.text
        self._client.delete([f"fills/{key}", f"pins/{key}"])
        self._ledger.added(key, blob.nbytes, evictable=False)

    def _make_room(self, blob: Blob) -> Put | None:
        key = blob.head.key.text
        while (victims := self._ledger.victims(key, blob.nbytes)) is not None:
            leaving = [victim for victim in victims if not self._must_stay(victim)]
            for victim in leaving:
                self._remove([victim], evicted=True)
            if leaving == victims:
                return None
        return None if self._client.head(f"blobs/{key}") is not None else Put.OVER_BUDGET

    def _must_stay(self, key: str) -> bool:
        """Whether another machine promoted or pinned it since the listing, or a killed eviction left its marker."""
        head = self._head(key)
        if head is not None and head.terms.precomputed:
            self._client.delete([f"fills/{key}"])
        elif self._client.head(f"fills/{key}") is not None:
            return False
        there = self._client.head(f"blobs/{key}")
        if there is None:
            return False
        self._ledger.added(key, there.nbytes, evictable=False)
        return True

    def _remove(self, keys: list[str], *, evicted: bool = False) -> None:
        """Deletes blobs first, then their markers: a marker without a blob does no harm."""
        self._client.delete(f"blobs/{key}" for key in keys)
        self._client.delete(f"{kind}/{key}" for key in keys for kind in ("fills", "pins"))
        for key in keys:
            self._ledger.removed(key, evicted=evicted)

    def _head(self, key: str) -> Head | None:
        """The head of a stored blob, None where it is absent or not sound."""
        path, lease = f"blobs/{key}", ReadLease(self._memory, "")
        first = self._client.read(path, _HEAD)
        if first is None:
            return None
        try:
            return read_head(ObjectBlob(self._client, path, first=first, pool=self._pool, lease=lease).raw_head)
        except BadBlob:
            return None

    def _is_killed(self, key: CacheKey, deletions: list[Deletion]) -> bool:
        """Whether one of these deletions kills the blob that is there."""
        killers = [deletion for deletion in deletions if key in deletion.scope]
        head = self._head(key.text) if killers else None
        return head is not None and any(deletion.kills(key, head.terms.epoch) for deletion in killers)

    def discard(self, key: CacheKey) -> bool:
        there = self._client.head(f"blobs/{key.text}") is not None
        self._remove([key.text])
        return there

    def quarantine(self, key: CacheKey) -> bool:
        moved = self._client.copy(f"blobs/{key.text}", f"quarantine/{key.text}")
        if moved:
            self._remove([key.text])
        return moved

    def forget_quarantined(self, before: float) -> int:
        old = [row.path for row in self._client.listing("quarantine") if row.modified < before]
        self._client.delete(old)
        return len(old)

    def epoch(self, tenant: str) -> int:
        return max((self._number(row) for row in self._client.listing(f"deletions/{quote(tenant)}")), default=0)

    def deletions(self, tenant: str, after: int = 0) -> list[Deletion]:
        return self._deletions("deletions", tenant, after=after)

    def _deletions(self, kind: str, tenant: str, *, after: int = 0) -> list[Deletion]:
        folder = f"{kind}/{quote(tenant)}"
        rows = list(self._client.listing(folder, _numbered(folder, after)))
        pieces = [(row, self._client.read(row.path, FIRST)) for row in rows]
        return [self._deletion(row, bytes(piece.data)) for row, piece in pieces if piece is not None]

    def _deletion(self, row: Listed, text: bytes) -> Deletion:
        try:
            return Deletion(self._number(row), Scope.parse(text.decode().partition("\n")[0]))
        except ValueError:
            raise self._not_ours(row) from None

    def _number(self, row: Listed) -> int:
        try:
            return int(row.path.rpartition("/")[2])
        except ValueError:
            raise self._not_ours(row) from None

    def _not_ours(self, row: Listed) -> StoreUnavailable:
        return StoreUnavailable(f"{self._client.label}: {row.path} is no deletion that this store wrote: remove it")

    def delete_all(self, scopes: Sequence[Scope], *, epochs: Sequence[int] = ()) -> list[int]:
        wanted = epochs or [None] * len(scopes)
        return [self._delete(scope, epoch) for scope, epoch in zip(scopes, wanted, strict=True)]

    def _delete(self, scope: Scope, epoch: int | None) -> int:
        number = self._log(scope, epoch)
        self._client.write(_numbered(f"burying/{quote(scope.tenant)}", number), scope.text.encode())
        self._client.delete(row.path for row in self._rows("quarantine", scope))
        self._bury(Deletion(number, scope))
        return number

    def _log(self, scope: Scope, epoch: int | None) -> int:
        if epoch is not None:
            self._client.write(_numbered(f"deletions/{quote(scope.tenant)}", epoch), scope.text.encode())
            return epoch
        text = f"{scope.text}\n{uuid4().hex}".encode()  # unique: after a lost response we recognise our own
        number = self.epoch(scope.tenant) + 1
        while not self._client.create(path := _numbered(f"deletions/{quote(scope.tenant)}", number), text):
            there = self._client.read(path, FIRST)
            if there is not None and bytes(there.data) == text:
                break
            number += 1
        return number

    def _bury(self, deletion: Deletion) -> None:
        """Removes what a deletion kills: blobs stored well before it by age, the others by the epoch in their heads."""
        tenant = deletion.scope.tenant
        logged = self._client.head(_numbered(f"deletions/{quote(tenant)}", deletion.epoch))
        surely_before = logged.modified - _SKEW_S if logged else 0.0
        dead: list[str] = []
        for row in self._rows("blobs", deletion.scope):
            key = row.path.removeprefix("blobs/")
            head = None if row.modified < surely_before else self._head(key)
            if head is None or head.terms.epoch < deletion.epoch:
                dead.append(key)
            if len(dead) == _BATCH:  # soon after the check, as a put may replace a dead blob meanwhile
                self._remove(dead)
                dead = []
        self._remove(dead)
        self._client.delete([_numbered(f"burying/{quote(tenant)}", deletion.epoch)])

    def finish_deletes(self) -> None:
        """Finishes every recorded deletion: a put that was killed before its check left no mark."""
        for tenant in self.tenants():
            for deletion in {*self._deletions("burying", tenant), *self.deletions(tenant)}:
                self._bury(deletion)

    def _rows(self, kind: str, scope: Scope | None) -> Iterator[Listed]:
        """All objects of a kind, or those of a scope, in key order."""
        if scope is None:
            return self._client.listing(kind)
        return self._client.listing(f"{kind}/{scope.text.removesuffix('/')}")

    def trim(self, tenant: str, before: float) -> int:
        rows = list(self._client.listing(f"deletions/{quote(tenant)}"))
        old = [row.path for row in rows[:-1] if row.modified < before]
        self._client.delete(old)
        return len(old)

    def entries(self, scope: Scope | None = None) -> Iterator[StoredBlob]:
        for row in self._rows("blobs", scope):
            try:
                yield StoredBlob(CacheKey.parse(row.path.removeprefix("blobs/")), row.nbytes, row.modified)
            except KeyFormatError:  # named by `strays`
                continue

    def strays(self) -> Iterator[str]:
        for row in self._client.listing("blobs"):
            try:
                CacheKey.parse(row.path.removeprefix("blobs/"))
            except KeyFormatError:
                yield row.path

    def tenants(self) -> list[str]:
        return sorted({unquote(part) for kind in ("blobs", "deletions") for part in self._client.folders(kind)})

    def mark(self, scope: Scope, *, pinned: bool) -> int:
        source, target = ("fills", "pins") if pinned else ("pins", "fills")
        there = {row.path.removeprefix("blobs/"): row.nbytes for row in self._rows("blobs", scope)}
        marked = {row.path.removeprefix(f"{source}/") for row in self._rows(source, scope)} & set(there)
        for key in marked:
            self._client.write(f"{target}/{key}", b"")
            self._ledger.added(key, there[key], evictable=target == "fills")
        self._client.delete(f"{source}/{key}" for key in marked)
        return len(there)

    def usage(self) -> list[StorageUsage]:
        sizes = [row.nbytes for row in self._client.listing("blobs")]
        return [StorageUsage(self.name, len(sizes), sum(sizes), self._budget.total)]

    def close(self) -> None:
        self._putting.shutdown()
        self._pool.shutdown()


def _numbered(folder: str, number: int) -> str:
    return f"{folder}/{number:0{_EPOCH_DIGITS}d}"
