"""The stored keys and values of one tenant's chunks: which are there, which are not and why. Computes none."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from threading import Lock

from blend.model.fingerprint import Fingerprint
from retriever.contract.catalog import Catalog
from retriever.contract.types import Passage
from service.access.control import Control
from service.model.blob_source import BlobSource
from service.model.served_model import Ids, ServedModel
from store.blob_store import BlobStore
from store.errors import Miss, MissReason, StoreError
from store.key import CacheKey, Scope
from store.reader import BlobReader

_SEEN = 100_000  # blobs that are remembered to have been there
_PREFIXES = 1024  # capture prefixes whose digests are remembered
_IN_VAIN = {MissReason.UNSUPPORTED, MissReason.PENDING, MissReason.OVER_BUDGET, MissReason.UNAVAILABLE}


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


@dataclass(frozen=True, slots=True)
class CapturePrefix:
    """What a collection's chunks are captured behind, and what identifies a record that was, with its digest."""

    prefix: Ids
    fingerprint: Fingerprint
    digest: str


class ChunkCaches:
    """The caches of one tenant's chunks. Safe for threads. `control` remembers the fingerprints that ever were."""

    def __init__(
        self, tenant: str, catalog: Catalog, *, store: BlobStore, model: ServedModel, control: Control
    ) -> None:
        self.model = model
        self._tenant = tenant
        self._catalog = catalog
        self._store = store
        self._control = control
        self._model_digest = model.fingerprint.digest
        self._behind = lru_cache(_PREFIXES)(self._capture_prefix)
        self._lock = Lock()
        self._seen: OrderedDict[CacheKey, None] = OrderedDict()

    def capture_prefixes(self, collections: Iterable[str]) -> dict[str, CapturePrefix]:
        """What the chunks of each collection are behind. A prefix that this model lacks is rendered, once for ever."""
        model, names = self._model_digest, set(collections)
        with self._catalog.view() as view:
            found = {name: view.prefix(name, model=model) for name in names}
            rules = {name: view.collection(name) for name, ids in found.items() if ids is None}
        for name, collection in rules.items():
            with self._catalog.change() as change:
                fresh = self.model.prefix(collection.rules if collection else {})
                found[name] = change.keep_prefix(name, model=model, ids=fresh) if collection else fresh
        return {name: self._behind(ids) for name, ids in found.items() if ids is not None}

    def _capture_prefix(self, prefix: Ids) -> CapturePrefix:
        fingerprint = self.model.fingerprint.behind(prefix)
        digest = fingerprint.digest
        self._control.remember_fingerprint(digest, fingerprint.to_dict())
        return CapturePrefix(prefix, fingerprint, digest)

    def key(self, chunk: str, capture_prefix: CapturePrefix) -> CacheKey:
        """The key of a chunk's blob."""
        return CacheKey(self._tenant, chunk, capture_prefix.digest, self.model.codec)

    def open(self, passages: Sequence[Passage], *, pool: Executor) -> "list[Future[BlobSource | Miss]]":
        """Begins to open the passages' blobs, in their order. A store that does not answer makes them missing, too."""
        capture_prefix = self.capture_prefixes(passage.collection for passage in passages)
        return [pool.submit(self._open, passage, capture_prefix[passage.collection]) for passage in passages]

    def _open(self, passage: Passage, capture_prefix: CapturePrefix) -> BlobSource | Miss:
        key = self.key(passage.id, capture_prefix)
        try:
            found = self._store.open(key)
            if isinstance(found, Miss):
                return self._why(passage, key, capture_prefix=capture_prefix, miss=found)
        except StoreError as error:
            return Miss(MissReason.UNAVAILABLE, type(error).__name__)
        self.saw(key)
        return BlobSource(found, capture_prefix.fingerprint)

    def saw(self, key: CacheKey) -> None:
        """Remember that a blob was there."""
        with self._lock:
            self._seen[key] = None
            self._seen.move_to_end(key)
            if len(self._seen) > _SEEN:
                self._seen.popitem(last=False)

    def _why(self, passage: Passage, key: CacheKey, *, capture_prefix: CapturePrefix, miss: Miss) -> Miss:
        if miss.reason is not MissReason.ABSENT:
            return Miss(miss.reason)
        with self._catalog.view() as view:
            upload = view.upload_of(passage.document)
            limit = view.limit(passage.collection, model=capture_prefix.digest)
        if self.model.ids(passage.text) is None:
            return Miss(MissReason.UNSUPPORTED)
        if upload and upload.state.is_live:
            return Miss(MissReason.PENDING)
        if upload and upload.over_budget:
            return Miss(MissReason.OVER_BUDGET)
        if key in self._seen:
            return Miss(MissReason.EVICTED)
        if limit and not upload:  # a file of a corpus
            return Miss(MissReason.OVER_BUDGET)
        return Miss(self._differing(passage.id, capture_prefix) or MissReason.ABSENT)

    def _differing(self, chunk: str, wanted: CapturePrefix) -> MissReason | None:
        """The field in which a blob that is there differs, where only such are there."""
        others = self._control.fingerprints()
        if not others.keys() - {wanted.digest}:
            return None
        for entry in self._store.entries(Scope(self._tenant, chunk)):
            if entry.key.fingerprint == wanted.digest:
                return MissReason.CODEC
            if entry.key.fingerprint in others:
                field = wanted.fingerprint.differs(Fingerprint.from_dict(others[entry.key.fingerprint]))
                return MissReason(field) if field else None
        return None

    def states(self, passages: Sequence[Passage]) -> dict[str, ChunkState]:
        """The state of each passage, by chunk id. Raises StoreError where the store does not answer."""
        capture_prefix = self.capture_prefixes(passage.collection for passage in passages)
        return {passage.id: self._state(passage, capture_prefix[passage.collection]) for passage in passages}

    def _state(self, passage: Passage, capture_prefix: CapturePrefix) -> ChunkState:
        key = self.key(passage.id, capture_prefix)
        found = self._store.open(key)
        if isinstance(found, BlobReader):
            blob = BlobSource(found, capture_prefix.fingerprint)
            return ChunkState(passage.id, KvState.STORED, blob.nbytes, blob.tier)
        reason = self._why(passage, key, capture_prefix=capture_prefix, miss=found).reason
        known = {state.value: state for state in KvState}
        return ChunkState(passage.id, known.get(reason.value, KvState.ABSENT))

    def prefetch(self, passages: Sequence[Passage]) -> int:
        """Asks that the passages' blobs be near. Returns how many fetches began."""
        capture_prefix = self.capture_prefixes(passage.collection for passage in passages)
        return self._store.prefetch([self.key(passage.id, capture_prefix[passage.collection]) for passage in passages])

    def pin(self, chunks: Sequence[str]) -> int:
        """Keeps the chunks' blobs from eviction. Returns how many there are."""
        return sum(self._store.pin(Scope(self._tenant, chunk)) for chunk in dict.fromkeys(chunks))

    def unpin(self, chunks: Sequence[str]) -> int:
        """Takes the chunks' pins back. Returns how many blobs there are."""
        return sum(self._store.unpin(Scope(self._tenant, chunk)) for chunk in dict.fromkeys(chunks))

    def evict(self, chunks: Sequence[str]) -> int:
        """Forgets the chunks' blobs, which may be computed again at once. Returns how many were there."""
        keys = [
            entry.key for chunk in dict.fromkeys(chunks) for entry in self._store.entries(Scope(self._tenant, chunk))
        ]
        return sum(self._store.discard(key) for key in keys)


def mends(miss: Miss) -> bool:
    """Would computing the chunk anew help?"""
    return miss.reason not in _IN_VAIN
