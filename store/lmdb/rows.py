"""LMDB's tables of blobs, totals, deletions, graves and quarantine, inside one transaction; which blob is dead.

heads        key -> preamble and head of the blob
frames       key \\0 frame number u16 -> one frame
rows         key -> `BlobRow`, what eviction and deletion need without reading heads
totals       tenant -> `Total`
deletions    tenant / epoch u64 -> when, scope
graves       scope -> epoch u64 of its last deletion
quarantine   key -> when, the blob's bytes as they were
"""

import struct
from collections.abc import Iterator

import lmdb
import msgspec

from store.blob import Blob, Buffer, Head
from store.blob_store import Deletion
from store.key import CacheKey, Scope, quote
from store.lmdb.environment import PAGE_BYTES, Environment

_HEADS, _FRAMES, _ROWS, _TOTALS = b"heads", b"frames", b"rows", b"totals"
_DELETIONS, _GRAVES, _QUARANTINE = b"deletions", b"graves", b"quarantine"
DATABASES = (_HEADS, _FRAMES, _ROWS, _TOTALS, _DELETIONS, _GRAVES, _QUARANTINE)

_NUMBER = struct.Struct(">H")
_EPOCH = struct.Struct(">Q")
_NODE_BYTES = 16
_INLINE_BYTES = PAGE_BYTES // 2 - 32  # larger values get pages of their own


class BlobRow(msgspec.Struct, frozen=True, array_like=True):
    """A blob as the store accounts for it; `nbytes` counts whole pages."""

    nbytes: int
    tokens: int
    frames: int
    epoch: int
    precomputed: bool
    pinned: bool
    stored_at: float


class Total(msgspec.Struct, frozen=True, array_like=True):
    """What a tenant holds."""

    blobs: int
    nbytes: int


class _Deleted(msgspec.Struct, frozen=True, array_like=True):
    at: float
    scope: str


class _Quarantined(msgspec.Struct, frozen=True, array_like=True):
    at: float
    blob: bytes


ROW_TYPES: dict[bytes, type[msgspec.Struct]] = {
    _ROWS: BlobRow,
    _TOTALS: Total,
    _DELETIONS: _Deleted,
    _QUARANTINE: _Quarantined,
}  # checked again when it is read


def pages(nbytes: int) -> int:
    """Bytes of the file that a value takes."""
    if nbytes <= _INLINE_BYTES:
        return nbytes + _NODE_BYTES
    return -(-(nbytes + _NODE_BYTES) // PAGE_BYTES) * PAGE_BYTES


def file_bytes(blob: Blob) -> int:
    """Bytes of the file that a blob takes, keys and row included."""
    key = len(blob.head.key.text)
    values = [len(blob.head_bytes), 64, *(frame.nbytes for frame in blob.head.frames)]
    return sum(pages(value) + key + _NODE_BYTES for value in values)


class Rows:
    """The databases of one environment. Every method works inside a transaction that the caller holds."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._db = env.database
        for name in DATABASES:
            env.database(name)

    def version(self, txn: lmdb.Transaction) -> tuple[int, int]:
        """The number of the store's state; a write transaction's is one above the state it sees."""
        return self._env.generation, txn.id()

    def used_bytes(self, txn: lmdb.Transaction) -> int:
        """Bytes of all pages in use, except LMDB's own list of free pages."""
        stats = [txn.stat(self._db(name)) for name in DATABASES]
        counts = [stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats]
        return sum(counts) * PAGE_BYTES

    def touch(self, txn: lmdb.Transaction) -> None:
        """Write a meaningless value, so that the transaction counts as a write."""
        txn.put(b"touched", b"")

    def head(self, txn: lmdb.Transaction, key: bytes) -> bytes | None:
        """Preamble and head of a blob."""
        data = txn.get(key, db=self._db(_HEADS))
        return None if data is None else bytes(data)

    def frame(self, txn: lmdb.Transaction, key: bytes, *, number: int) -> memoryview | None:
        """One frame, as a view into the map."""
        data = txn.get(_frame_key(key, number), db=self._db(_FRAMES))
        assert data is None or isinstance(data, memoryview)
        return data

    def row(self, txn: lmdb.Transaction, key: bytes) -> BlobRow | None:
        """The row of a blob."""
        data = txn.get(key, db=self._db(_ROWS))
        return None if data is None else msgspec.msgpack.decode(data, type=BlobRow)

    def write(self, txn: lmdb.Transaction, blob: Blob, *, row: BlobRow) -> None:
        """Write a whole blob, replacing any that is there."""
        key = blob.head.key.text.encode()
        self.remove(txn, key)
        txn.put(key, blob.head_bytes, db=self._db(_HEADS))
        for number, frame in enumerate(blob.frames):
            txn.put(_frame_key(key, number), frame, db=self._db(_FRAMES))
        self._count(txn, key, blobs=1, nbytes=row.nbytes)
        self.mark(txn, key, row=row)

    def mark(self, txn: lmdb.Transaction, key: bytes, *, row: BlobRow) -> None:
        """Change a blob's row."""
        txn.put(key, msgspec.msgpack.encode(row), db=self._db(_ROWS))

    def remove(self, txn: lmdb.Transaction, key: bytes) -> bool:
        """Remove a blob; returns whether it was there."""
        row = self.row(txn, key)
        if row is None:
            return False
        txn.delete(key, db=self._db(_HEADS))
        txn.delete(key, db=self._db(_ROWS))
        for number in range(row.frames):
            txn.delete(_frame_key(key, number), db=self._db(_FRAMES))
        self._count(txn, key, blobs=-1, nbytes=-row.nbytes)
        return True

    def blob_bytes(self, txn: lmdb.Transaction, key: bytes) -> bytes:
        """The blob's bytes in one piece, unverified."""
        row = self.row(txn, key)
        numbers = range(row.frames if row else 0)
        pieces = [
            txn.get(key, db=self._db(_HEADS)),
            *(txn.get(_frame_key(key, n), db=self._db(_FRAMES)) for n in numbers),
        ]
        return b"".join(piece or b"" for piece in pieces)

    def scan(self, txn: lmdb.Transaction, prefix: bytes = b"") -> Iterator[tuple[bytes, BlobRow]]:
        """Keys and rows below a prefix, in key order."""
        for key, data in _below(txn.cursor(db=self._db(_ROWS)), prefix):
            yield key, msgspec.msgpack.decode(data, type=BlobRow)

    def _count(self, txn: lmdb.Transaction, key: bytes, *, blobs: int, nbytes: int) -> None:
        tenant = key.partition(b"/")[0]
        total = self.total(txn, tenant)
        changed = Total(total.blobs + blobs, total.nbytes + nbytes)
        if changed.blobs:
            txn.put(tenant, msgspec.msgpack.encode(changed), db=self._db(_TOTALS))
        else:
            txn.delete(tenant, db=self._db(_TOTALS))

    def total(self, txn: lmdb.Transaction, tenant: bytes) -> Total:
        """The total of one tenant, as spelled in keys."""
        data = txn.get(tenant, db=self._db(_TOTALS))
        return Total(0, 0) if data is None else msgspec.msgpack.decode(data, type=Total)

    def totals(self, txn: lmdb.Transaction) -> dict[bytes, Total]:
        """The total of each tenant."""
        rows = _below(txn.cursor(db=self._db(_TOTALS)), b"")
        return {tenant: msgspec.msgpack.decode(data, type=Total) for tenant, data in rows}

    def deletions(self, txn: lmdb.Transaction, tenant: str, *, after: int) -> list[Deletion]:
        """A tenant's deletions numbered above `after`."""
        return [Deletion(epoch, Scope.parse(row.scope)) for epoch, row in self._deleted(txn, tenant, after=after)]

    def _deleted(self, txn: lmdb.Transaction, tenant: str, *, after: int) -> Iterator[tuple[int, _Deleted]]:
        prefix = quote(tenant).encode() + b"/"
        for key, data in _below(txn.cursor(db=self._db(_DELETIONS)), prefix, start=prefix + _EPOCH.pack(after + 1)):
            yield _EPOCH.unpack(key[len(prefix) :])[0], msgspec.msgpack.decode(data, type=_Deleted)

    def log_deletion(self, txn: lmdb.Transaction, deletion: Deletion, *, now: float) -> None:
        """Record a deletion under its number."""
        key = quote(deletion.scope.tenant).encode() + b"/" + _EPOCH.pack(deletion.epoch)
        scope = deletion.scope.text
        txn.put(key, msgspec.msgpack.encode(_Deleted(now, scope)), db=self._db(_DELETIONS))
        txn.put(scope.encode(), _EPOCH.pack(max(deletion.epoch, self._grave(txn, scope))), db=self._db(_GRAVES))

    def _grave(self, txn: lmdb.Transaction, scope: str) -> int:
        data = txn.get(scope.encode(), db=self._db(_GRAVES))
        return 0 if data is None else _EPOCH.unpack(data)[0]

    def trim_deletions(self, txn: lmdb.Transaction, tenant: str, *, before: float) -> int:
        """Drop a tenant's deletions older than that time, except the newest."""
        old = [(epoch, row) for epoch, row in list(self._deleted(txn, tenant, after=0))[:-1] if row.at < before]
        for epoch, row in old:
            txn.delete(quote(tenant).encode() + b"/" + _EPOCH.pack(epoch), db=self._db(_DELETIONS))
            if self._grave(txn, row.scope) == epoch:
                txn.delete(row.scope.encode(), db=self._db(_GRAVES))
        return len(old)

    def epoch(self, txn: lmdb.Transaction, tenant: str) -> int:
        """The number of a tenant's last deletion."""
        prefix = quote(tenant).encode() + b"/"
        cursor = txn.cursor(db=self._db(_DELETIONS))
        found = cursor.set_range(prefix + b"\xff" * (_EPOCH.size + 1))
        key = bytes(cursor.key()) if (cursor.prev() if found else cursor.last()) else b""
        return _EPOCH.unpack(key[len(prefix) :])[0] if key.startswith(prefix) else 0

    def is_dead(self, txn: lmdb.Transaction, key: CacheKey, *, epoch: int) -> bool:
        """Whether a blob of this key whose computing began in that epoch was deleted since."""
        return any(self._grave(txn, scope) > epoch for scope in key.scopes)

    def tenants(self, txn: lmdb.Transaction) -> set[bytes]:
        """Tenants, as spelled in keys, that have blobs or deletions."""
        deleted = {key.partition(b"/")[0] for key, _ in _below(txn.cursor(db=self._db(_DELETIONS)), b"")}
        return deleted | set(self.totals(txn))

    def quarantine(self, txn: lmdb.Transaction, key: bytes, *, now: float) -> bool:
        """Move a blob out of reach."""
        data = self.blob_bytes(txn, key)
        if not self.remove(txn, key):
            return False
        txn.put(key, msgspec.msgpack.encode(_Quarantined(now, data)), db=self._db(_QUARANTINE))
        return True

    def forget_quarantined(self, txn: lmdb.Transaction, prefix: bytes, *, before: float) -> int:
        """Drop quarantined blobs below a prefix that are older than that time."""
        rows = _below(txn.cursor(db=self._db(_QUARANTINE)), prefix)
        old = [key for key, data in rows if msgspec.msgpack.decode(data, type=_Quarantined).at < before]
        for key in old:
            txn.delete(key, db=self._db(_QUARANTINE))
        return len(old)


def new_row(blob: Blob, before: BlobRow | None, *, now: float) -> BlobRow:
    """The row of a blob that is about to replace the one before."""
    head: Head = blob.head
    precomputed = head.terms.precomputed or (before is not None and before.precomputed)
    pinned = before is not None and before.pinned
    return BlobRow(file_bytes(blob), head.tokens, len(head.frames), head.terms.epoch, precomputed, pinned, now)


def _frame_key(key: bytes, number: int) -> bytes:
    return key + b"\0" + _NUMBER.pack(number)


def _below(cursor: lmdb.Cursor, prefix: bytes, *, start: bytes | None = None) -> Iterator[tuple[bytes, Buffer]]:
    """Keys (copied) and values (views) below a prefix, from `start` on."""
    found = cursor.set_range(start or prefix) if start or prefix else cursor.first()
    while found:
        key = bytes(cursor.key())
        if not key.startswith(prefix):
            return
        yield key, cursor.value()
        found = cursor.next()
