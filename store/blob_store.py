"""The interface of blob stores (put, open, delete, pin, quarantine); when an opened blob is a miss. Knows no medium.

A store maps a `CacheKey` to a blob. It may be slow, absent or corrupt; it may never be wrong:

- `open` returns a reader whose frames are verified one by one, or a `Miss` that says why. A blob that belongs under
  another key, has a newer format, or is packed by an unknown codec is a miss. A medium out of reach is no miss but
  raises `StoreUnavailable`: the caller decides how to treat that.
- All blobs of one key are equivalent. `put` keeps what is there; `replace` is for the reader that found a bad digest.
- `put` and `replace` return when the blob is durable in the medium.
- `delete` makes a tenant's keys of a scope unreadable and gives the deletion a number, the tenant's new epoch. A blob
  whose `terms.epoch` is older is dead: it is dropped, whenever and from wherever it arrives. So take
  `epoch(tenant)` *before* computing. When `delete` returns, the blobs are gone from the medium.
- Eviction and `discard` forget a blob without an epoch: it may be stored again at once.
- A precomputed or pinned blob is never evicted from a lowest tier. Where it does not fit, `put` answers OVER_BUDGET.
- Evicting nothing, deleting what is absent, pinning what is pinned: all safe, all idempotent.
- Every method may be called from any thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from store.blob import Blob, Head, read_head
from store.codec.spec import Spec
from store.errors import BadBlob, Miss, MissReason, SpecError
from store.key import CacheKey, Scope
from store.reader import BlobReader


class Put(StrEnum):
    """The outcome of a put."""

    STORED = "stored"
    PRESENT = "present"
    DELETED = "deleted since"  # dropped: its scope was deleted after its computing began
    OVER_BUDGET = "over budget"


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One stored blob as a listing shows it; `stored_at` in seconds since 1970."""

    key: CacheKey
    nbytes: int
    stored_at: float


@dataclass(frozen=True, slots=True)
class Deletion:
    """One delete: every blob in `scope` whose computing began before `epoch` is dead."""

    epoch: int
    scope: Scope

    def kills(self, key: CacheKey, epoch: int) -> bool:
        """Whether a blob of this key whose computing began in that epoch is dead."""
        return epoch < self.epoch and key in self.scope


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """What a tier holds, in bytes of the medium; `budget` is None for no limit."""

    tier: str
    blobs: int
    nbytes: int
    budget: int | None


class FoundBlob(Protocol):
    """A blob found in a medium: its first bytes, and a reader of the rest."""

    @property
    def raw_head(self) -> bytes:
        """The preamble and the head."""
        ...

    def reader(self, head: Head) -> BlobReader:
        """The reader of the frames that this head lists, which was verified."""
        ...


class BlobStore(ABC):
    """See the module's docstring for the contract."""

    name: str  # this medium's name in readers and reports

    def open(self, key: CacheKey) -> BlobReader | Miss:
        """A reader of the blob, or the reason why there is none."""
        found = self._find(key)
        if found is None:
            return Miss(MissReason.ABSENT)
        try:
            head = read_head(found.raw_head)
            if head.key != key:
                return Miss(MissReason.FOREIGN, f"the medium has {head.key.text} under {key.text}")
            Spec.parse(head.codec)
            return found.reader(head)
        except BadBlob as bad:
            return Miss(bad.reason, str(bad))
        except SpecError as error:
            return Miss(MissReason.NEWER_FORMAT, str(error))

    @abstractmethod
    def _find(self, key: CacheKey) -> FoundBlob | None:
        """The blob's first bytes, unless it is absent or dead."""

    def prefetch(self, keys: Iterable[CacheKey]) -> int:
        """Begin to copy these blobs into near tiers; returns how many fetches were begun. Best effort."""
        del keys
        return 0

    @abstractmethod
    def put(self, blob: Blob) -> Put:
        """Store a blob unless its key is there. A precomputed blob makes the one that is there precomputed."""

    def put_all(self, blobs: Sequence[Blob]) -> list[Put]:
        """Put each blob, in batches where the medium gains by it. Where it raises, any of them may be stored."""
        return [self.put(blob) for blob in blobs]

    @abstractmethod
    def replace(self, blob: Blob) -> Put:
        """Store a blob, replacing any that is there. It stays precomputed, and pinned, if the old one is."""

    @abstractmethod
    def discard(self, key: CacheKey) -> bool:
        """Forget one blob; returns whether it was there."""

    @abstractmethod
    def epoch(self, tenant: str) -> int:
        """The number of the tenant's last deletion, 0 before the first."""

    def delete(self, scope: Scope, *, epoch: int | None = None) -> int:
        """Delete everything in the scope; returns the deletion's number. A cache gets its lowest tier's `epoch`."""
        [number] = self.delete_all([scope], epochs=() if epoch is None else [epoch])
        return number

    @abstractmethod
    def delete_all(self, scopes: Sequence[Scope], *, epochs: Sequence[int] = ()) -> list[int]:
        """Delete everything in these scopes of one tenant, together where the medium gains by it; see `delete`."""

    @abstractmethod
    def entries(self, scope: Scope | None = None) -> Iterator[StoredBlob]:
        """All blobs of a scope, or of the store, as of about now, in key order."""

    @abstractmethod
    def strays(self) -> Iterator[str]:
        """Names in the medium that this store did not write."""

    @abstractmethod
    def tenants(self) -> list[str]:
        """Tenants that have blobs or deletions."""

    @abstractmethod
    def usage(self) -> list[StorageUsage]:
        """What each tier holds, one row per tier."""

    @abstractmethod
    def quarantine(self, key: CacheKey) -> bool:
        """Move a bad blob aside, kept for inspection where the medium can; returns whether it was there."""

    @abstractmethod
    def forget_quarantined(self, before: float) -> int:
        """Drop blobs quarantined before that time; returns how many."""

    @abstractmethod
    def deletions(self, tenant: str, after: int = 0) -> list[Deletion]:
        """The tenant's deletions numbered above `after`, in order, as far back as they are kept."""

    @abstractmethod
    def trim(self, tenant: str, before: float) -> int:
        """Drop deletions older than that time except the newest; returns how many. No put may be older than these."""

    def learn_deletions(self, tenants: Iterable[str] | None) -> None:  # noqa: B027 (one medium has no copies)
        """Apply to the caches here what others have deleted of these tenants, or of all. Raises StoreError."""

    def finish_deletes(self) -> None:  # noqa: B027 (where a delete is one step, nothing is left)
        """Remove what a killed `delete` left behind."""

    def compact(self) -> int:
        """Return free space to the medium, which no other process may have open; returns how many bytes."""
        return 0

    def pin(self, scope: Scope) -> int:
        """Keep the scope's blobs from eviction; returns how many there are."""
        return self.mark(scope, pinned=True)

    def unpin(self, scope: Scope) -> int:
        """Unpin the scope's blobs; returns how many there are."""
        return self.mark(scope, pinned=False)

    @abstractmethod
    def mark(self, scope: Scope, *, pinned: bool) -> int:
        """See `pin` and `unpin`."""

    @property
    def tiers(self) -> "Sequence[BlobStore]":
        """The stores that this one is made of, nearest first."""
        return (self,)

    def flush(self) -> None:  # noqa: B027 (where nothing is copied, nothing is waited for)
        """Wait for copies on their way into nearer tiers."""

    def close(self) -> None:  # noqa: B027 (memory needs no goodbye)
        """Release the medium. Closing twice is safe."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
