"""The stored keys and values of one tenant's chunks: which are there, which are not and why. Computes none."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, partial
from threading import Event, Lock
from typing import TypeVar

from blend.model.fingerprint import Fingerprint
from retriever.contract.catalog import Catalog
from retriever.contract.types import Passage
from retriever.documents import Document, Json
from retriever.filter_condition import EVERYTHING
from service.access.control import Control
from service.access.domains import DomainChunk, domain_of, fingerprint_in
from service.model.blob_source import BlobSource
from service.model.served_model import Ids, ServedModel
from store.blob_store import BlobStore
from store.errors import Miss, MissReason, StoreError
from store.key import CacheKey, Scope
from store.reader import BlobReader
from store.upkeep import StoredBlob

_Result = TypeVar("_Result")

HELD_UP_S = 1e-3  # by one blob, behind which the others are opened side by side

_SEEN = 100_000  # blobs that are remembered to have been there
_PREFIXES = 1024  # capture prefixes whose digests are remembered
_IN_VAIN = {
    MissReason.UNSUPPORTED,
    MissReason.PENDING,
    MissReason.OVER_BUDGET,
    MissReason.UNAVAILABLE,
    MissReason.SOONER,
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

    @property
    def fields(self) -> frozenset[str]:
        """The metadata by which filters of the tenant's keys divide its documents into domains."""
        return self._control.bound_fields(self._tenant)

    def chunk(self, chunk: str, metadata: Json) -> DomainChunk:
        """The chunk as it is shared by documents with this metadata."""
        return DomainChunk(chunk, domain_of(metadata, self.fields))

    def chunks(self, document: Document) -> list[DomainChunk]:
        """The chunks of a document, as those of its domains share them; each once, in its order."""
        fields, own = self.fields, document.metadata
        found = (DomainChunk(part.id, domain_of({**own, **part.metadata}, fields)) for part in document.parts)
        return [*dict.fromkeys(found)]

    def unshared(self, documents: Iterable[Document]) -> set[str]:
        """Ids of chunks that no document of the same domain holds yet: what was made of them is not for these."""
        if not self.fields:
            return set()
        wanted = {chunk for document in documents for chunk in self.chunks(document)}
        with self._catalog.view() as view:
            labels = view.labels_of([chunk.id for chunk in wanted])
        held = {self.chunk(chunk, label.metadata) for chunk, found in labels.items() for label in found}
        return {chunk.id for chunk in wanted - held}

    def key(self, chunk: DomainChunk, capture_prefix: CapturePrefix) -> CacheKey:
        """The key of a chunk's blob."""
        fingerprint = fingerprint_in(chunk.domain, capture_prefix.digest)
        return CacheKey(self._tenant, chunk.id, fingerprint, self.model.codec)

    def key_of(self, passage: Passage, capture_prefix: CapturePrefix) -> CacheKey:
        """The key of the blob of a passage's chunk."""
        return self.key(self.chunk(passage.id, passage.metadata), capture_prefix)

    def open(self, passages: Sequence[Passage], *, pool: Executor) -> "list[Future[BlobSource | Miss]]":
        """Begins to open the passages' blobs, in their order. A store that does not answer makes them missing, too."""
        wanted = zip(passages, self._keys(passages), strict=True)
        return _begun(
            pool, [partial(self._open, passage, key, capture_prefix=behind) for passage, (key, behind) in wanted]
        )

    def _keys(self, passages: Sequence[Passage]) -> list[tuple[CacheKey, CapturePrefix]]:
        """The key of each passage's blob, and what it was captured behind: what both take is read once for all."""
        capture_prefix, fields = self.capture_prefixes(passage.collection for passage in passages), self.fields
        found: list[tuple[CacheKey, CapturePrefix]] = []
        for passage in passages:
            behind, chunk = (
                capture_prefix[passage.collection],
                DomainChunk(passage.id, domain_of(passage.metadata, fields)),
            )
            found.append((self.key(chunk, behind), behind))
        return found

    def _open(self, passage: Passage, key: CacheKey, *, capture_prefix: CapturePrefix) -> BlobSource | Miss:
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
        return Miss(self._differing(key, capture_prefix) or MissReason.ABSENT)

    def _differing(self, key: CacheKey, wanted: CapturePrefix) -> MissReason | None:
        """The field in which a blob of the domain that is there differs, where only such are there."""
        others = self._control.fingerprints()
        if not others.keys() - {wanted.digest}:
            return None
        for entry in self._store.entries(Scope(self._tenant, key.chunk)):
            if entry.key.domain != key.domain:
                continue
            if entry.key.origin == wanted.digest:
                return MissReason.CODEC
            if entry.key.origin in others:
                field = wanted.fingerprint.differs(Fingerprint.from_dict(others[entry.key.origin]))
                return MissReason(field) if field else None
        return None

    def states(self, passages: Sequence[Passage]) -> dict[str, ChunkState]:
        """The state of each passage, by chunk id. Raises StoreError where the store does not answer."""
        wanted = zip(passages, self._keys(passages), strict=True)
        return {passage.id: self._state(passage, key, capture_prefix=behind) for passage, (key, behind) in wanted}

    def _state(self, passage: Passage, key: CacheKey, *, capture_prefix: CapturePrefix) -> ChunkState:
        found = self._store.open(key)
        if isinstance(found, BlobReader):
            blob = BlobSource(found, capture_prefix.fingerprint)
            return ChunkState(passage.id, KvState.STORED, blob.nbytes, blob.tier)
        reason = self._why(passage, key, capture_prefix=capture_prefix, miss=found).reason
        known = {state.value: state for state in KvState}
        return ChunkState(passage.id, known.get(reason.value, KvState.ABSENT))

    def prefetch(self, passages: Sequence[Passage]) -> int:
        """Asks that the passages' blobs be near. Returns how many fetches began."""
        return self._store.prefetch([key for key, _ in self._keys(passages)])

    def pin(self, passages: Sequence[Passage], *, shared: bool) -> int:
        """Keeps the passages' blobs from eviction. Returns how many there are. `shared`: in all domains, too."""
        return sum(self._store.pin(scope) for scope in self._scopes(passages, shared=shared))

    def unpin(self, passages: Sequence[Passage], *, shared: bool) -> int:
        """Takes the passages' pins back. Returns how many blobs there are. `shared`: in all domains, too."""
        return sum(self._store.unpin(scope) for scope in self._scopes(passages, shared=shared))

    def _scopes(self, passages: Sequence[Passage], *, shared: bool) -> list[Scope]:
        keys = self._keys(passages)
        scopes = [Scope(self._tenant, key.chunk, None if shared else key.fingerprint) for key, _ in keys]
        return [*dict.fromkeys(scopes)]

    def evict(self, passages: Sequence[Passage]) -> int:
        """Forgets the blobs of the passages' chunks, which may be computed again at once. Returns how many there were.

        Those of all domains go.
        """
        scopes = self._scopes(passages, shared=True)
        keys = [entry.key for scope in scopes for entry in self._store.entries(scope)]
        return sum(self._store.discard(key) for key in keys)

    def clear(self, blobs: Sequence[StoredBlob]) -> list[Passage]:
        """Deletes those of the blobs whose domain no document of their chunk is in. Raises StoreError.

        Returns their chunks as they stand in domains that have none of the blobs. Those that the catalog does not know
        are left alone: a corpus may be computed before it is put in.
        """
        with self._catalog.view() as view:
            labels = view.labels_of([blob.key.chunk for blob in blobs])
            passages = view.holding([*view.rows_of([*labels]).values()], EVERYTHING)
        wanted = {self.chunk(chunk, label.metadata) for chunk, held in labels.items() for label in held}
        for key in (blob.key for blob in blobs):
            if key.chunk in labels and DomainChunk.of(key) not in wanted:
                self._store.delete(Scope(self._tenant, key.chunk, key.fingerprint))
        lacking = wanted - {DomainChunk.of(blob.key) for blob in blobs}
        return [
            replace(passage, collection=label.collection, metadata=label.metadata)
            for passage in passages
            for label in labels[passage.id]
            if self.chunk(passage.id, label.metadata) in lacking
        ]


def mends(miss: Miss) -> bool:
    """Would computing the chunk anew help?"""
    return miss.reason not in _IN_VAIN


def _begun(pool: Executor, works: Iterable[Callable[[], _Result]]) -> list[Future[_Result]]:
    """Begins the works in their order. One thread does them one after another, which is quickest where none waits for
    a medium; once one has held up the others for `HELD_UP_S`, all that are left are done side by side.
    """
    left = deque((Future[_Result](), work) for work in works)
    begun = [future for future, _ in left]
    ended = Event()

    def run() -> None:
        with suppress(IndexError):  # nothing is left
            while True:
                _do(*left.popleft())
        ended.set()

    def watch() -> None:
        while count := len(left):
            if not ended.wait(HELD_UP_S) and len(left) == count:
                submit(run, times=count)
                return

    def submit(work: Callable[[], None], *, times: int = 1) -> None:
        for _ in range(times):
            pool.submit(work).add_done_callback(lambda called: called.cancelled() and [each.cancel() for each in begun])

    submit(run)
    submit(watch)
    return begun


def _do(future: Future[_Result], work: Callable[[], _Result]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        found = work()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(found)
