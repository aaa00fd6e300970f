"""The contract of a blob store, and what all stores share. Knows no medium.

A store maps a `CacheKey` to a blob. It may be slow, absent or corrupt; it may never be wrong:

- `open` answers with a reader whose frames are verified one by one, or with a `Miss` that says why. A blob under
  somebody else's key, of a newer format, expired, or packed with a table that is gone is a miss. A medium out of
  reach is no miss but raises `StoreUnavailable`: the caller decides what that is worth.
- All blobs of one key are equivalent. `put` keeps what is there; `replace` is for the reader that found a bad digest.
- `put` and `replace` return when the medium has the blob for good. `put_behind` promises nothing and never waits.
- `delete` makes a tenant's keys of a scope unreadable and gives the deletion a number, the tenant's new epoch. A blob
  whose `terms.epoch` is older is dead: it is dropped, whenever it arrives and whoever carries it. So take
  `epoch(tenant)` *before* computing. When `delete` returns, the blobs are gone from the medium and from the queue.
- Eviction and `discard` forget a blob without an epoch: it may be stored again at once.
- A precomputed or pinned blob is never evicted from a lowest tier. Where it does not fit, `put` answers OVER_BUDGET.
- Evicting nothing, deleting what is absent, pinning what is pinned: all safe, all idempotent.
- Every method may be called from any thread.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from store.behind import Behind
from store.blob import Blob, Head, read_head
from store.codec.spec import Spec
from store.codec.table import Table
from store.errors import BadBlob, Miss, MissReason, SpecError
from store.key import CacheKey, Scope
from store.reader import BlobReader, Fetch


class Put(StrEnum):
    """What became of a put."""

    STORED = "stored"
    PRESENT = "present"
    DELETED = "deleted since"  # dropped: its scope was deleted after its computing began
    OVER_BUDGET = "over budget"


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored blob as a listing shows it; `stored_at` in seconds since 1970."""

    key: CacheKey
    nbytes: int
    stored_at: float


@dataclass(frozen=True, slots=True)
class Deletion:
    """One delete: everything in `scope` that began before `epoch` is dead."""

    epoch: int
    scope: Scope

    def kills(self, key: CacheKey, epoch: int) -> bool:
        """Whether a blob of this key, begun in that epoch, is dead."""
        return epoch < self.epoch and key in self.scope


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tier holds, in bytes of the medium; `budget` is None where nothing limits it."""

    tier: str
    blobs: int
    nbytes: int
    budget: int | None


class Found(Protocol):
    """A blob that a medium has: its first bytes, and a way to the frames once the head is known to be sound."""

    @property
    def raw_head(self) -> bytes:
        """Preamble and head."""
        ...

    def frames(self, head: Head) -> Fetch:
        """How to fetch the frames that this head lists."""
        ...


class BlobStore(ABC):
    """See the module's text for the contract."""

    name: str  # what readers and reports call this medium

    def __init__(self) -> None:
        self._behind = Behind(self.name)
        self._tables: dict[tuple[str, str], Table] = {}

    def open(self, key: CacheKey) -> BlobReader | Miss:
        """A reader of the blob, or why there is none."""
        found = self._find(key)
        if found is None:
            return Miss(MissReason.ABSENT)
        try:
            head = read_head(found.raw_head)
            if head.key != key:
                return Miss(MissReason.FOREIGN, f"the medium has {head.key.text} under {key.text}")
            if expired(head, time.time()):
                return Miss(MissReason.EXPIRED)
            return BlobReader(
                head, found.raw_head, fetch=found.frames(head), source=self.name, table=self._table_of(head)
            )
        except BadBlob as bad:
            return Miss(bad.reason, str(bad))

    def _table_of(self, head: Head) -> Table | None:
        try:
            table_id = Spec.parse(head.codec).table
        except SpecError as error:
            raise BadBlob(MissReason.NEWER_FORMAT, str(error)) from None
        if table_id is None:
            return None
        table = self.table(head.tenant, table_id)
        if table is None:
            raise BadBlob(MissReason.NO_TABLE, f"table {table_id} is not in this store")
        return table

    def table(self, tenant: str, table_id: str) -> Table | None:
        """A fitted table by its id, or None where it is absent or damaged."""
        known = self._tables.get((tenant, table_id))
        if known is not None:
            return known
        data = self.read_table(tenant, table_id)
        try:
            table = Table.parse(data, table_id) if data is not None else None
        except BadBlob:
            return None
        if table is not None:
            self._tables[tenant, table_id] = table
        return table

    def _forget_tables(self, tenant: str) -> None:
        for name in [name for name in self._tables if name[0] == tenant]:
            self._tables.pop(name, None)

    def put_behind(self, blob: Blob) -> bool:
        """Queue a blob for a later `put`; False where the queue is full and it was let go."""
        return self._behind.submit(blob.nbytes, lambda: self._settle(blob))

    def _settle(self, blob: Blob) -> None:
        self.put(blob)

    def flush(self) -> None:
        """Wait until all that was queued before is stored or dropped; what failed behind is raised here, once."""
        self._behind.flush()

    def prefetch(self, keys: Iterable[CacheKey]) -> int:
        """Ask that these be near; returns how many fetches were begun. Promises nothing."""
        del keys
        return 0

    def close(self) -> None:
        """Flush and let go of the medium. Closing twice is safe."""
        self._behind.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _find(self, key: CacheKey) -> Found | None:
        """The blob's first bytes, unless it is absent or dead."""

    @abstractmethod
    def read_table(self, tenant: str, table_id: str) -> bytes | None:
        """The bytes of a table, as they are."""

    @abstractmethod
    def publish_table(self, tenant: str, data: bytes) -> str:
        """Keep a fitted table; returns its id. Publishing it again changes nothing."""

    @abstractmethod
    def put(self, blob: Blob) -> Put:
        """Store a blob unless its key is there. A precomputed blob makes the one that is there precomputed."""

    def put_all(self, blobs: Sequence[Blob]) -> list[Put]:
        """`put` of each, together where the medium gains by it. Where it raises, any of them may be stored."""
        return [self.put(blob) for blob in blobs]

    @abstractmethod
    def replace(self, blob: Blob) -> Put:
        """Store a blob whatever is there. It stays precomputed, and pinned, if what was there is."""

    @abstractmethod
    def discard(self, key: CacheKey) -> bool:
        """Forget one blob; whether it was there."""

    @abstractmethod
    def quarantine(self, key: CacheKey) -> bool:
        """Move a bad blob out of reach, kept for inspection where the medium can; whether it was there."""

    @abstractmethod
    def forget_quarantined(self, before: float) -> int:
        """Drop what was quarantined before that time; returns how many."""

    @abstractmethod
    def epoch(self, tenant: str) -> int:
        """The number of the tenant's last deletion, 0 before the first."""

    @abstractmethod
    def deletions(self, tenant: str, after: int = 0) -> list[Deletion]:
        """The tenant's deletions numbered above `after`, in order, as far back as they are kept."""

    @abstractmethod
    def delete(self, scope: Scope, *, epoch: int | None = None) -> int:
        """Kill everything in the scope; returns the deletion's number. A cache is told its lowest tier's `epoch`."""

    def finish_deletes(self) -> None:  # noqa: B027 (where a delete is one step, nothing is left)
        """Take away what a killed `delete` left behind."""

    def compact(self) -> int:
        """Give free space back to the medium, which nobody else may have open; returns the bytes."""
        return 0

    @property
    def tiers(self) -> "Sequence[BlobStore]":
        """The stores that this one is made of, nearest first."""
        return (self,)

    @abstractmethod
    def trim(self, tenant: str, before: float) -> int:
        """Forget deletions older than that time but the newest; returns how many. No put may be older than they."""

    @abstractmethod
    def entries(self, scope: Scope | None = None) -> Iterator[Entry]:
        """All blobs of a scope, or of everything, as of about now, in key order."""

    @abstractmethod
    def strays(self) -> Iterator[str]:
        """Names in the medium that this store did not write."""

    @abstractmethod
    def tenants(self) -> list[str]:
        """Tenants that have blobs or deletions."""

    @abstractmethod
    def pin(self, scope: Scope) -> int:
        """Keep the scope's blobs from eviction; returns how many there are."""

    @abstractmethod
    def unpin(self, scope: Scope) -> int:
        """Take pins back; returns how many blobs there are."""

    @abstractmethod
    def usage(self) -> list[Usage]:
        """One row per tier."""


def expired(head: Head, now: float) -> bool:
    """Whether a blob's time to live is over."""
    return head.terms.expires_at is not None and head.terms.expires_at <= now
