"""A tenant's stored chunks: opened, or why not (miss reason); prefetched, pinned, evicted, cleared. Computes none."""

from collections import Counter, OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from threading import Lock

from retriever.catalog.catalog import Catalog
from retriever.filter_condition import EVERYTHING
from retriever.types import Passage
from service.access.domains import DomainChunk
from service.documents.chunk_capture import CaptureItem
from service.documents.chunk_captures import BlobKeys, ChunkCaptures
from service.documents.chunk_contexts import ContextKey
from service.documents.ordered_calls import OrderedCalls
from service.truth.control import Control
from store.blob_store import BlobStore, StoredBlob
from store.errors import Miss, MissReason, StoreError
from store.fingerprint import Fingerprint
from store.key import CacheKey, Scope
from store.reader import BlobReader
from store.record_source import BlobSource

_REMEMBERED = 100_000  # blobs that are remembered to have been there
_IN_VAIN = {
    MissReason.UNSUPPORTED,
    MissReason.PENDING,
    MissReason.OVER_BUDGET,
    MissReason.UNAVAILABLE,
    MissReason.SOONER,
    MissReason.TRIAL,
}


class KvState(StrEnum):
    """The state of a chunk's keys and values."""

    STORED = "stored"
    PENDING = MissReason.PENDING
    OVER_BUDGET = MissReason.OVER_BUDGET
    UNSUPPORTED = MissReason.UNSUPPORTED
    ABSENT = MissReason.ABSENT


@dataclass(frozen=True, slots=True)
class ChunkState:
    """A chunk's state, with `nbytes` and `tier` of the nearest blob, where there is one."""

    chunk_id: str
    state: KvState
    nbytes: int = 0
    tier: str = ""


class ChunkCaches:
    """The caches of one tenant's chunks. Safe for threads. `captures` tells what they are called."""

    def __init__(
        self, tenant: str, catalog: Catalog, *, store: BlobStore, captures: ChunkCaptures, control: Control
    ) -> None:
        self.captures = captures
        self._tenant = tenant
        self._catalog = catalog
        self._store = store
        self._control = control
        self._lock = Lock()
        self._times_found: OrderedDict[CacheKey, int] = OrderedDict()  # of the blobs that were found last
        self._computing = Counter[CacheKey]()

    def stored(self, keys: BlobKeys) -> BlobReader | Miss:
        """A reader of the best of a chunk's blobs that is there, or why that is not. Raises StoreError."""
        best = self._store.open(keys.best)
        if not isinstance(best, Miss):
            return best
        lesser = (self._store.open(key) for key in keys.lesser)
        return next((each for each in lesser if isinstance(each, BlobReader)), best)

    def open(self, passages: Sequence[Passage], *, pool: Executor) -> "list[Future[BlobSource | Miss]]":
        """Begins to open the passages' blobs, in their order. A store that does not answer makes them missing, too."""
        wanted = zip(passages, self.captures.keys(passages), strict=True)
        return OrderedCalls(partial(self._open, passage, keys) for passage, keys in wanted).begin(pool)

    def _open(self, passage: Passage, keys: BlobKeys) -> BlobSource | Miss:
        try:
            found = self.stored(keys)
            if isinstance(found, Miss):
                return self._why(passage, keys, miss=found)
        except StoreError as error:
            return Miss(MissReason.UNAVAILABLE, type(error).__name__)
        self.saw(found.head.key)
        return BlobSource(found, keys.behind.fingerprint)

    def saw(self, key: CacheKey) -> None:
        """Remember that a blob was there."""
        with self._lock:
            self._times_found[key] = self._times_found.get(key, 0) + 1
            self._times_found.move_to_end(key)
            if len(self._times_found) > _REMEMBERED:
                self._times_found.popitem(last=False)

    def _why(self, passage: Passage, keys: BlobKeys, *, miss: Miss) -> Miss:
        if miss.reason is not MissReason.ABSENT:
            return Miss(miss.reason)
        with self._catalog.view() as view:
            upload = view.upload_of(passage.document)
            limit = view.limit(passage.collection, model=keys.behind.digest)
        if self.captures.model.ids(passage.text) is None:
            return Miss(MissReason.UNSUPPORTED)
        if upload and upload.state.is_live:
            return Miss(MissReason.PENDING)
        if upload and upload.over_budget:
            return Miss(MissReason.OVER_BUDGET)
        if keys.best in self._times_found:
            return Miss(MissReason.EVICTED)
        if limit and not upload:  # a file of a corpus
            return Miss(MissReason.OVER_BUDGET)
        return Miss(self._differing(keys) or MissReason.ABSENT)

    def _differing(self, keys: BlobKeys) -> MissReason | None:
        """The field in which a blob of the domain that is there differs, where only such are there."""
        key, wanted, others = keys.best, keys.behind, self._control.fingerprints()
        if not others.keys() - {wanted.digest}:
            return None
        for entry in self._store.entries(Scope(self._tenant, key.chunk)):
            if entry.key.domain != key.domain:
                continue
            if entry.key.origin == wanted.digest and entry.key.codec != key.codec:
                return MissReason.CODEC
            if entry.key.origin in others and entry.key.origin != wanted.digest:
                field = wanted.fingerprint.differs(Fingerprint.from_dict(others[entry.key.origin]))
                return MissReason(field) if field else None
        return None

    def states(self, passages: Sequence[Passage]) -> dict[str, ChunkState]:
        """The state of each passage, by chunk id. Raises StoreError where the store does not answer."""
        wanted = zip(passages, self.captures.keys(passages), strict=True)
        return {passage.id: self._state(passage, keys) for passage, keys in wanted}

    def _state(self, passage: Passage, keys: BlobKeys) -> ChunkState:
        found = self.stored(keys)
        if isinstance(found, BlobReader):
            blob = BlobSource(found, keys.behind.fingerprint)
            return ChunkState(passage.id, KvState.STORED, blob.nbytes, blob.tier)
        reason = self._why(passage, keys, miss=found).reason
        known = {state.value: state for state in KvState}
        return ChunkState(passage.id, known.get(reason.value, KvState.ABSENT))

    def prefetch(self, passages: Sequence[Passage]) -> int:
        """Asks that the passages' blobs be near. Returns how many fetches began."""
        found = [self.stored(keys) for keys in self.captures.keys(passages)]
        return self._store.prefetch([each.head.key for each in found if isinstance(each, BlobReader)])

    def pin(self, passages: Sequence[Passage], *, shared: bool) -> int:
        """Keeps the passages' blobs from eviction. Returns how many there are. `shared`: in all domains, too."""
        return sum(self._store.pin(scope) for scope in self._scopes(passages, shared=shared))

    def unpin(self, passages: Sequence[Passage], *, shared: bool) -> int:
        """Takes the passages' pins back. Returns how many blobs there are. `shared`: in all domains, too."""
        return sum(self._store.unpin(scope) for scope in self._scopes(passages, shared=shared))

    def _scopes(self, passages: Sequence[Passage], *, shared: bool) -> list[Scope]:
        keys = [key for found in self.captures.keys(passages) for key in found.all]
        scopes = [Scope(self._tenant, key.chunk, None if shared else key.fingerprint) for key in keys]
        return [*dict.fromkeys(scopes)]

    def evict(self, passages: Sequence[Passage]) -> int:
        """Forgets the blobs of the passages' chunks, which may be computed again at once. Returns how many there were.

        Those of all domains go.
        """
        scopes = self._scopes(passages, shared=True)
        keys = [entry.key for scope in scopes for entry in self._store.entries(scope)]
        return sum(self._store.discard(key) for key in keys)

    def clear(self, blobs: Sequence[StoredBlob]) -> list[Passage]:
        """Deletes those of the blobs whose chunk stands in no document of their domain, or no more in their context.
        Raises StoreError.

        Returns their chunks as they stand in domains that have none of the blobs. Those that the catalog does not know
        are left alone: a corpus may be computed before it is put in.
        """
        standing = self._standing([blob.key.chunk for blob in blobs])
        known = {key.chunk for key in standing}
        contexts = _by_domain({key: digests for key, (_, digests) in standing.items()})
        left = set[DomainChunk]()
        for key in (blob.key for blob in blobs):
            if key.chunk in known and key.context not in contexts.get(DomainChunk.of(key), ()):
                self._store.delete(Scope(self._tenant, key.chunk, key.fingerprint))
            else:
                left.add(DomainChunk.of(key))
        return [passage for key, (passage, _) in standing.items() if DomainChunk(key.chunk, key.domain) not in left]

    @contextmanager
    def computing(self, keys: Iterable[CacheKey]) -> Generator[None]:
        """While the block runs these may be computed: a context that goes meanwhile lets no blob of them come later.

        Enter it before it is asked which of them are wanted.
        """
        counted = Counter(iter(keys))  # a mapping would be taken for counts
        with self._lock:
            self._computing += counted
        try:
            yield
        finally:
            with self._lock:
                self._computing -= counted

    def moved(self, chunks: Sequence[str]) -> tuple[list[Scope], dict[str, int]]:
        """The scopes of blobs of contexts that these chunks stand in no more, of those too that are being computed; and
        the chunks that lack one of their context now, with how often they were used. Raises StoreError.

        What an earlier release captured serves as it is, and what was given up for room is not computed again.
        """
        with self._lock:  # before the store is asked: what comes meanwhile is there then, or is deleted when it came
            coming = [*self._computing]
        keys = {chunk: {blob.key for blob in self._store.entries(Scope(self._tenant, chunk))} for chunk in chunks}
        every = {chunk: stored | {key for key in coming if key.chunk == chunk} for chunk, stored in keys.items()}
        contexts, stale, uses = self._contexts(chunks), list[Scope](), dict[str, int]()
        digests = _by_domain(contexts)
        for chunk in {key.chunk for key in contexts}:
            old = [key for key in every[chunk] if key.context not in digests.get(DomainChunk.of(key), ())]
            if len(old) == len(every[chunk]):
                stale.append(Scope(self._tenant, chunk))
            else:
                stale += [Scope(self._tenant, chunk, key.fingerprint) for key in old]
        for wanted in self.captures.keys_of([*contexts]):
            best, told = wanted.best, (wanted.behind.digest, wanted.best.domain)
            had = [key for key in every[best.chunk] if key.context and (key.origin, key.domain) == told]
            if had and best not in keys[best.chunk]:
                uses[best.chunk] = max(self._times_found.get(key, 0) for key in had)
        return stale, uses

    def wanted(self, items: Sequence[CaptureItem]) -> list[CaptureItem]:
        """Those of what is to be computed whose chunks stand in their contexts still."""
        digests = _by_domain(self._contexts([item.key.chunk for item in items]))
        return [item for item in items if item.key.context in digests.get(DomainChunk.of(item.key), ())]

    def _contexts(self, chunks: Sequence[str]) -> dict[ContextKey, set[str]]:
        """The digests of all contexts in which chunks stand, in staged versions too."""
        with self._catalog.view() as view:
            found = self.captures.contexts.standing(view, [*{*chunks}])
        return {key: digests for key, (_, digests) in found.items()}

    def lacking(self, chunks: Sequence[str]) -> list[CaptureItem]:
        """What is to be computed of these chunks, wherever they stand: those of which there is no blob of the context.

        Raises StoreError.
        """
        passages = [each for each, _ in self._standing(chunks).values()]
        lack = (one for one in self.captures.planned(passages) if isinstance(self._store.open(one.keys.best), Miss))
        return [item for one in lack if (item := one.item())]

    def supersede(self, key: CacheKey) -> None:
        """Forgets the chunk's blobs of lesser contexts, now that this one is stored. Raises StoreError."""
        found = self.captures.keys([passage for passage, _ in self._standing([key.chunk]).values()])
        best = {key, *(each.best for each in found)}
        for other in {lesser for each in found for lesser in each.lesser} - best:
            if other.domain == key.domain and other.origin == key.origin:
                self._store.discard(other)

    def _standing(self, chunks: Sequence[str]) -> dict[ContextKey, tuple[Passage, set[str]]]:
        """Passages of chunks, as they stand in each collection and domain, and the digests of their contexts there."""
        with self._catalog.view() as view:
            standing = self.captures.contexts.standing(view, [*{*chunks}])
            rows = view.rows_of([*{key.chunk for key in standing}])
            passages = {passage.id: passage for passage in view.holding([*rows.values()], EVERYTHING)}
        found: dict[ContextKey, tuple[Passage, set[str]]] = {}
        for key, (metadata, digests) in standing.items():
            if key.chunk in passages:
                passage = replace(passages[key.chunk], collection=key.collection, metadata=metadata)
                found[key] = passage, digests
        return found


def _by_domain(standing: Mapping[ContextKey, set[str]]) -> dict[DomainChunk, set[str]]:
    found: dict[DomainChunk, set[str]] = {}
    for key, digests in standing.items():
        found.setdefault(DomainChunk(key.chunk, key.domain), set()).update(digests)
    return found


def mends(miss: Miss) -> bool:
    """Would computing the chunk anew help?"""
    return miss.reason not in _IN_VAIN
