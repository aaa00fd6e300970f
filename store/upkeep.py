"""The upkeep of a store: listings, usage, quarantine, the log of deletions, pins. Moves no blob, knows no medium."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from store.key import CacheKey, Scope


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


class StoreUpkeep(ABC):
    """The upkeep of a store. The contract in `store.blob_store` holds for it too."""

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

    @abstractmethod
    def pin(self, scope: Scope) -> int:
        """Keep the scope's blobs from eviction; returns how many there are."""

    @abstractmethod
    def unpin(self, scope: Scope) -> int:
        """Unpin the scope's blobs; returns how many there are."""
