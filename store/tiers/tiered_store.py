"""Several stores as one, the lowest with the truth: copies upwards, fallback where one is bad, others' deletions.

A hit below the top is copied upwards in the background, so that the next one is nearer. Concurrent misses above share
one read below. A frame that does not verify in a cache is read from the tier below, and the cache discards the blob.
"""

import logging
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from store.blob import Blob, Buffer, Head, verified
from store.blob_store import BlobStore, Deletion, Put, StorageUsage, StoredBlob
from store.errors import BadBlob, Miss, MissReason, StoreError
from store.key import CacheKey, Scope
from store.reader import BlobReader
from store.tiers.background_queue import BackgroundQueue

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_HEALING = (MissReason.CORRUPT, MissReason.FOREIGN)  # reasons for a cache tier to discard a blob
PREFETCH_BYTES = 1 << 30
PREFETCHES = 16  # blobs opened in parallel, by threads that wait for a medium


@dataclass(frozen=True, slots=True)
class _Lower:
    """A reader of a tier, to be copied into the tiers above it."""

    reader: BlobReader
    tier: int


class TieredStore(BlobStore):
    """See `store.blob_store`. `sync_s` bounds how long a cache may serve what another machine has deleted."""

    name = "tiered"

    def __init__(self, tiers: Sequence[BlobStore], sync_s: float = 0.0) -> None:
        self._tiers = list(tiers)
        self._sync_s = sync_s
        self._opening: SingleFlight[tuple[CacheKey, int], _Lower | Miss] = SingleFlight()
        self._moving = Lock()  # held while a blob is put into the caches, and while blobs are removed from all tiers
        self._takings = 0  # a reader that was opened before one of them is not copied, nor shared, after it
        self._lock = Lock()  # of the dict below
        self._rising: dict[CacheKey, _Lower] = {}  # open readers whose copies are on their way up
        self._copying = BackgroundQueue("tiered-copies", PREFETCH_BYTES)
        self._synced: dict[str, tuple[float, int]] = {}  # when deletions were last read, and the last number

    @property
    def lowest(self) -> BlobStore:
        """The authoritative tier."""
        return self._tiers[-1]

    @property
    def tiers(self) -> Sequence[BlobStore]:
        """All tiers, nearest first."""
        return tuple(self._tiers)

    def open(self, key: CacheKey) -> BlobReader | Miss:
        self._learn_deletions(key.tenant)
        near = self._open_from(key, 0, stop=1)
        if isinstance(near, _Lower):
            return self._guarded(near)
        with self._lock:
            rising = self._rising.get(key)
        below = rising or self._open_once(key)
        if isinstance(below, _Lower):
            return self._guarded(below)
        return near if below.reason is MissReason.ABSENT else below

    def _open_once(self, key: CacheKey) -> _Lower | Miss:
        """Opens a blob below the top; concurrent callers share the result."""
        takings = self._takings

        def open_below() -> _Lower | Miss:
            found = self._open_from(key, 1, stop=len(self._tiers))
            if isinstance(found, _Lower):
                self._raise(key, found, takings=takings)
            return found

        return self._opening.do((key, takings), open_below)

    def _open_from(self, key: CacheKey, first: int, *, stop: int) -> _Lower | Miss:
        miss = Miss(MissReason.ABSENT)
        for tier in range(first, min(stop, len(self._tiers))):
            answer = self._ask(tier, key)
            if isinstance(answer, BlobReader):
                return _Lower(answer, tier)
            if answer.reason in _HEALING and tier < len(self._tiers) - 1:
                self._tiers[tier].discard(key)
            if answer.reason is not MissReason.ABSENT:
                miss = answer
        return miss

    def _ask(self, tier: int, key: CacheKey) -> BlobReader | Miss:
        try:
            return self._tiers[tier].open(key)
        except StoreError as error:
            if tier == len(self._tiers) - 1:
                raise
            log.warning("a cache tier does not answer", extra={"tier": self._tiers[tier].name, "error": str(error)})
            return Miss(MissReason.ABSENT, str(error))

    def _raise(self, key: CacheKey, found: _Lower, *, takings: int) -> None:
        """Copy a blob into all tiers above the one that has it; concurrent readers share the read."""
        with self._lock:  # `_taking` counts first and reads the dict after that
            if self._takings != takings:
                return
            self._rising[key] = found
        found.reader.begin()

        def copy() -> None:
            try:
                blob = found.reader.blob()
                with self._moving:
                    if self._is_rising(key, found):
                        self._put_above(blob, found.tier)
            except BadBlob:
                return  # reported to the reader as well
            finally:
                self._arrived(key, found)

        if not self._copying.submit(found.reader.head.body_bytes, copy):
            self._arrived(key, found)

    def _is_rising(self, key: CacheKey, found: _Lower) -> bool:
        with self._lock:
            return self._rising.get(key) is found

    def _arrived(self, key: CacheKey, found: _Lower) -> None:
        with self._lock:
            if self._rising.get(key) is found:
                del self._rising[key]

    def _put_above(self, blob: Blob, tier: int) -> None:
        for above in reversed(self._tiers[:tier]):
            above.put(blob)

    @contextmanager
    def _taking(self, goes: Callable[[CacheKey, Head], bool]) -> Generator[None]:
        """Prevents copies upwards inside the block, and of blobs opened before its end that match `goes`."""
        with self._moving:
            self._stop_rising(goes)
            try:
                yield
            finally:  # a blob opened meanwhile may be the removed one or its replacement
                self._stop_rising(goes)

    def _stop_rising(self, goes: Callable[[CacheKey, Head], bool]) -> None:
        self._takings += 1
        with self._lock:
            for key, rising in list(self._rising.items()):
                if goes(key, rising.reader.head):
                    del self._rising[key]

    def _guarded(self, found: _Lower) -> BlobReader:
        """A reader that falls back to the tiers below when a frame of a cache fails."""
        reader, tier = found.reader, found.tier
        if tier == len(self._tiers) - 1:
            return reader

        @contextmanager
        def fetch(number: int) -> Generator[Buffer]:
            with ExitStack() as stack:
                try:
                    data = stack.enter_context(reader.frame(number))
                except BadBlob as bad:
                    if bad.reason in _HEALING:
                        self._tiers[tier].discard(reader.head.key)
                    data = stack.enter_context(self._same_frame(found, number, bad=bad))
                yield data

        return BlobReader(reader.head, reader.raw_head, fetch=fetch, source=reader.source, unpacked=reader.unpacked)

    @contextmanager
    def _same_frame(self, found: _Lower, number: int, *, bad: BadBlob) -> Generator[Buffer]:
        below = self._open_from(found.reader.head.key, found.tier + 1, stop=len(self._tiers))
        if isinstance(below, Miss):
            raise bad
        if below.reader.raw_head != found.reader.raw_head:  # packed separately: its frames need not match
            self._tiers[found.tier].discard(found.reader.head.key)
            raise bad
        with self._guarded(below).frame(number) as data:
            yield verified(data, found.reader.head, number=number)

    def prefetch(self, keys: Iterable[CacheKey]) -> int:
        with ThreadPoolExecutor(PREFETCHES, "tiered-prefetch") as pool:
            return sum(pool.map(self._prefetch, keys))

    def _prefetch(self, key: CacheKey) -> bool:
        self._learn_deletions(key.tenant)
        is_near = len(self._tiers) == 1 or isinstance(self._tiers[0].open(key), BlobReader)
        return not is_near and isinstance(self._open_once(key), _Lower)

    def put(self, blob: Blob) -> Put:
        return self.lowest.put(blob)

    def put_all(self, blobs: Sequence[Blob]) -> list[Put]:
        return self.lowest.put_all(blobs)

    def replace(self, blob: Blob) -> Put:
        with self._taking(lambda key, _: key == blob.head.key):
            outcome = self.lowest.replace(blob)
            for tier in self._tiers[:-1]:
                tier.discard(blob.head.key)
            return outcome

    def flush(self) -> None:
        self._copying.wait()  # a failed copy only makes the next hit slower

    def epoch(self, tenant: str) -> int:
        return self.lowest.epoch(tenant)

    def deletions(self, tenant: str, after: int = 0) -> list[Deletion]:
        return self.lowest.deletions(tenant, after)

    def delete_all(self, scopes: Sequence[Scope], *, epochs: Sequence[int] = ()) -> list[int]:
        numbers = self.lowest.delete_all(scopes, epochs=epochs)
        self._bury_copies([Deletion(number, scope) for number, scope in zip(numbers, scopes, strict=True)])
        self._copying.wait()
        return numbers

    def _bury_copies(self, deletions: Sequence[Deletion]) -> None:
        epochs = {deletion.scope.text: deletion.epoch for deletion in deletions}
        with self._taking(lambda key, head: any(epochs.get(each, 0) > head.terms.epoch for each in key.scopes)):
            for tier in self._tiers[:-1]:
                tier.delete_all([each.scope for each in deletions], epochs=[each.epoch for each in deletions])

    def _learn_deletions(self, tenant: str) -> None:
        """Reads a tenant's deletions now and then. While the lowest tier is out of reach, the caches stand."""
        synced = self._synced.get(tenant)
        if synced is None or time.monotonic() - synced[0] >= self._sync_s:
            with suppress(StoreError):
                self.learn_deletions([tenant])

    def learn_deletions(self, tenants: Iterable[str] | None) -> None:
        near = self._tiers[:-1]
        for tenant in {each for tier in near for each in tier.tenants()} if tenants is None else tenants:
            if near:
                self._learn_deletions_of(tenant)

    def _learn_deletions_of(self, tenant: str) -> None:
        now = time.monotonic()
        known = self._synced[tenant][1] if tenant in self._synced else self._known_deletions(tenant)
        news = self.lowest.deletions(tenant, known)
        if fresh := [each for each in news if any(tier.epoch(tenant) < each.epoch for tier in self._tiers[:-1])]:
            self._bury_copies(fresh)
        self._synced[tenant] = (now, max([known, *(deletion.epoch for deletion in news)]))

    def _known_deletions(self, tenant: str) -> int:
        """The epoch up to which caches have seen deletions: one that holds nothing of the tenant needs no history."""
        epochs = [tier.epoch(tenant) for tier in self._tiers[:-1] if tenant in tier.tenants()]
        return min(epochs) if epochs else self.lowest.epoch(tenant)

    def finish_deletes(self) -> None:
        for tier in self._tiers:
            tier.finish_deletes()

    def compact(self) -> int:
        return sum(tier.compact() for tier in self._tiers)

    def trim(self, tenant: str, before: float) -> int:
        return max([tier.trim(tenant, before) for tier in self._tiers], default=0)

    def discard(self, key: CacheKey) -> bool:
        with self._taking(lambda other, _: other == key):
            return sum(tier.discard(key) for tier in reversed(self._tiers)) > 0

    def quarantine(self, key: CacheKey) -> bool:
        """Quarantines the lowest tier's blob. The caches discard theirs: copies need no inspection."""
        with self._taking(lambda other, _: other == key):
            moved = self.lowest.quarantine(key)
            copies = sum(tier.discard(key) for tier in self._tiers[:-1])
            return moved or copies > 0

    def forget_quarantined(self, before: float) -> int:
        return sum(tier.forget_quarantined(before) for tier in self._tiers)

    def entries(self, scope: Scope | None = None) -> Iterator[StoredBlob]:
        return self.lowest.entries(scope)

    def strays(self) -> Iterator[str]:
        for tier in self._tiers:
            yield from tier.strays()

    def tenants(self) -> list[str]:
        return sorted({tenant for tier in self._tiers for tenant in tier.tenants()})

    def mark(self, scope: Scope, *, pinned: bool) -> int:
        return max(tier.mark(scope, pinned=pinned) for tier in self._tiers)

    def usage(self) -> list[StorageUsage]:
        return [row for tier in self._tiers for row in tier.usage()]

    def close(self) -> None:
        self._copying.close()
        for tier in self._tiers:
            tier.close()

    def _find(self, key: CacheKey) -> None:
        raise AssertionError("a tiered store opens its tiers")


class SingleFlight(Generic[K, V]):
    """Calls for one key that overlap in time share one result, or one exception."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._flights: dict[K, Future[V]] = {}

    def do(self, key: K, call: Callable[[], V]) -> V:
        """The result of `call`, or of the call that is running for this key."""
        with self._lock:
            flight = self._flights.get(key)
            mine = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if not mine:
            return flight.result()
        try:
            flight.set_result(call())
        except BaseException as error:
            flight.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._flights[key]
        return flight.result()
