"""What is captured of one tenant's chunks: their ids, behind which context, and what their blobs are called.

Whoever looks a blob up, computes one or deletes one asks here. Computes and stores nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from retriever.catalog.catalog import Catalog
from retriever.documents import Document, Json
from retriever.types import Passage
from service.access.domains import DomainChunk, domain_of
from service.access.interpreter_time import INTERPRETER
from service.documents.chunk_capture import CaptureItem
from service.documents.chunk_contexts import ChunkContexts, ContextKey, ContextName
from service.model.capture_context import CaptureContext
from service.model.served_model import Ids, ServedModel
from service.truth.control import Control, Quota
from store.fingerprint import Fingerprint
from store.key import CacheKey, fingerprint_in

_PREFIXES = 1024  # capture prefixes whose digests are remembered


@dataclass(frozen=True, slots=True)
class CapturePrefix:
    """What a collection's chunks are captured behind, and what identifies a record that was, with its digest."""

    prefix: Ids
    fingerprint: Fingerprint
    digest: str


@dataclass(frozen=True, slots=True)
class BlobKeys:
    """What a chunk's blob is called. As long as there is none of `best`, one of the `lesser` contexts serves: captured
    before there was a filler, and last alone, by an earlier release."""

    best: CacheKey
    lesser: tuple[CacheKey, ...]
    behind: CapturePrefix

    @property
    def all(self) -> tuple[CacheKey, ...]:
        """The keys in the order in which they are looked up."""
        return (self.best, *self.lesser)


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A chunk that is wanted. `context`: None where a text of it went meanwhile, or is damaged."""

    keys: BlobKeys
    text: str
    title: str
    context: CaptureContext | None
    model: ServedModel

    def item(self) -> CaptureItem | None:
        """What is to be computed of it, whose ids take more memory than its text; None where it can be served as text
        only, and where it has no context. Raises TokenizerError.
        """
        prefix = self.keys.behind.prefix
        ids = self.context and self.model.titled(self.text, self.title, context=self.context, prefix=prefix)
        return CaptureItem(self.keys.best, ids) if ids else None


class ChunkCaptures:
    """What is captured for one tenant by one model. Safe for threads. `control` remembers all fingerprints."""

    def __init__(self, tenant: str, catalog: Catalog, *, model: ServedModel, control: Control) -> None:
        self.model = model
        self._tenant = tenant
        self._catalog = catalog
        self._control = control
        self._model_digest = model.fingerprint.digest
        self._prefix_of_ids = lru_cache(_PREFIXES)(self._capture_prefix)
        self.contexts = ChunkContexts(catalog, domain_fields=lambda: self.domain_fields)

    def prefixes(self, collections: Iterable[str]) -> dict[str, CapturePrefix]:
        """What the chunks of each collection are behind. A prefix that this model lacks is rendered, once for ever."""
        model, names = self._model_digest, set(collections)
        with self._catalog.view() as view:
            found = {name: view.prefix(name, model=model) for name in names}
            rules = {name: view.collection(name) for name, ids in found.items() if ids is None}
        for name, collection in rules.items():
            with self._catalog.change() as change:
                fresh = self.model.prefix(collection.rules if collection else {})
                found[name] = change.keep_prefix(name, model=model, ids=fresh) if collection else fresh
        return {name: self._prefix_of_ids(ids) for name, ids in found.items() if ids is not None}

    def _capture_prefix(self, prefix: Ids) -> CapturePrefix:
        fingerprint = self.model.fingerprint.behind(prefix)
        digest = fingerprint.digest
        self._control.remember_fingerprint(digest, fingerprint.to_dict())
        return CapturePrefix(prefix, fingerprint, digest)

    @property
    def domain_fields(self) -> frozenset[str]:
        """The metadata by which filters of the tenant's keys divide its documents into domains."""
        return self._control.bound_fields(self._tenant)

    @property
    def quota(self) -> Quota:
        """How much the tenant may keep."""
        return self._control.quota(self._tenant)

    def chunk(self, chunk: str, metadata: Json) -> DomainChunk:
        """The chunk as it is shared by documents with this metadata."""
        return DomainChunk(chunk, domain_of(metadata, self.domain_fields))

    def chunks(self, document: Document) -> list[DomainChunk]:
        """The chunks of a document, as those of its domains share them; each once, in its order."""
        fields, own = self.domain_fields, document.metadata
        found = (DomainChunk(part.id, domain_of({**own, **part.metadata}, fields)) for part in document.parts)
        return [*dict.fromkeys(found)]

    def unshared(self, documents: Iterable[Document]) -> set[str]:
        """Ids of chunks that no document of the same domain holds yet: what was made of them is not for these."""
        if not self.domain_fields:
            return set()
        wanted = {chunk for document in documents for chunk in self.chunks(document)}
        with self._catalog.view() as view:
            labels = view.labels_of([chunk.id for chunk in wanted])
        held = {self.chunk(chunk, label.metadata) for chunk, found in labels.items() for label in found}
        return {chunk.id for chunk in wanted - held}

    def keys(self, passages: Sequence[Passage]) -> list[BlobKeys]:
        """What the blobs of the passages' chunks are called: what several take is read once for all."""
        return self.keys_of([self.contexts.key(passage) for passage in passages])

    def keys_of(self, own: Sequence[ContextKey]) -> list[BlobKeys]:
        prefixes, names = self.prefixes(key.collection for key in own), self.contexts.named(own)
        return [self._keys(key, names[key], behind=prefixes[key.collection]) for key in own]

    def planned(self, passages: Sequence[Passage]) -> list[PlannedChunk]:
        """How each passage's chunk is captured."""
        own = [self.contexts.key(passage) for passage in passages]
        prefixes, names = self.prefixes(key.collection for key in own), self.contexts.named(own)
        contexts = self.contexts.read(names.values())
        return [
            PlannedChunk(
                self._keys(key, names[key], behind=prefixes[key.collection]),
                *(passage.text, names[key].title or passage.title),
                *(contexts[names[key]], self.model),
            )
            for key, passage in zip(own, passages, strict=True)
        ]

    def planned_with(self, documents: Sequence[Document], collection: str) -> dict[DomainChunk, PlannedChunk]:
        """How the chunks of documents are captured, each once, to serve when all of these do."""
        behind = self.prefixes([collection])[collection]
        texts = {part.id: (part.text, document.title) for document in documents for part in document.parts}
        chunks = dict.fromkeys(chunk for document in documents for chunk in self.chunks(document))
        own = {chunk: ContextKey(chunk.id, collection, chunk.domain) for chunk in chunks}
        names = self.contexts.named_with(own.values(), documents, collection=collection)
        contexts = self.contexts.read(names.values(), beside={chunk: text for chunk, (text, _) in texts.items()})
        found: dict[DomainChunk, PlannedChunk] = {}
        for chunk, key in INTERPRETER.uploads(own.items(), self._tenant):
            (text, title), name = texts[chunk.id], names[key]
            keys = self._keys(key, name, behind=behind)
            found[chunk] = PlannedChunk(keys, text, name.title or title, contexts[name], self.model)
        return found

    def _keys(self, key: ContextKey, name: ContextName, *, behind: CapturePrefix) -> BlobKeys:
        fingerprints = (fingerprint_in(key.domain, behind.digest, context=digest) for digest in name.digests)
        best, *lesser = (CacheKey(self._tenant, key.chunk, each, self.model.codec) for each in fingerprints)
        return BlobKeys(best, tuple(lesser), behind)
