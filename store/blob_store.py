"""The contract of a blob store, and what all stores share. Knows no medium.

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
from collections.abc import Iterable, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from store.blob import Blob, Head, read_head
from store.codec.spec import Spec
from store.errors import BadBlob, Miss, MissReason, SpecError
from store.key import CacheKey, Scope
from store.reader import BlobReader, Fetch
from store.upkeep import StoreUpkeep


class Put(StrEnum):
    """The outcome of a put."""

    STORED = "stored"
    PRESENT = "present"
    DELETED = "deleted since"  # dropped: its scope was deleted after its computing began
    OVER_BUDGET = "over budget"


class FoundBlob(Protocol):
    """A blob found in a medium: its first bytes, and a way to the frames once the head is verified."""

    @property
    def raw_head(self) -> bytes:
        """The preamble and the head."""
        ...

    def frames(self, head: Head) -> Fetch:
        """Returns an object that fetches the frames that this head lists."""
        ...


class BlobAccess(ABC):
    """The methods that move blobs. See the module's docstring for the contract."""

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
            return self._reader(head, found)
        except BadBlob as bad:
            return Miss(bad.reason, str(bad))
        except SpecError as error:
            return Miss(MissReason.NEWER_FORMAT, str(error))

    def _reader(self, head: Head, found: FoundBlob) -> BlobReader:
        """A reader of a blob whose head was verified."""
        return BlobReader(head, found.raw_head, fetch=found.frames(head), source=self.name)

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

    @abstractmethod
    def delete(self, scope: Scope, *, epoch: int | None = None) -> int:
        """Delete everything in the scope; returns the deletion's number. A cache gets its lowest tier's `epoch`."""

    def delete_all(self, scopes: Sequence[Scope], *, epochs: Sequence[int] = ()) -> list[int]:
        """Delete everything in these scopes of one tenant, together where the medium gains by it; see `delete`."""
        return [
            self.delete(scope, epoch=epoch) for scope, epoch in zip(scopes, epochs or [None] * len(scopes), strict=True)
        ]

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


class BlobStore(BlobAccess, StoreUpkeep):
    """A whole store: access and upkeep."""

    @property
    def tiers(self) -> "Sequence[BlobStore]":
        """The stores that this one is made of, nearest first."""
        return (self,)
