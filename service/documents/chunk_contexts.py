"""Which context each chunk of a tenant is captured in: its filler and the chunk before it, named by digests.

A text may stand in several places of one collection and domain. It has one record, in the context of the place whose
document's id comes first: that is the same whatever the order in which documents came.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from threading import Lock
from typing import NamedTuple

from retriever.catalog.catalog import Catalog
from retriever.catalog.view import CatalogView
from retriever.documents import Document, Json
from retriever.types import ChunkPlace, Passage
from service.access.domains import domain_of
from service.documents.collection_rules import CollectionRules
from service.model.capture_context import CaptureContext, filler_digest
from service.model.prompt_builder import PromptPassage
from store.fingerprint import context_digest

_KNOWN = 50_000  # contexts that are remembered, as long as nothing changes


class ContextKey(NamedTuple):
    """What has one context: a chunk in a collection, as documents of one domain share it."""

    chunk: str
    collection: str
    domain: str


@dataclass(frozen=True, slots=True)
class NamedFiller:
    """A filler's passages, out of these chunks, and their digest."""

    passages: tuple[PromptPassage, ...] = ()
    digest: str = ""
    chunks: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Sequence[tuple[str, PromptPassage]]) -> "NamedFiller":
        passages = tuple(passage for _, passage in found)
        return cls(passages, filler_digest(passages), tuple(chunk for chunk, _ in found))

    def but(self, chunk: str) -> "NamedFiller":
        """The filler of a chunk, which is not captured behind itself."""
        if chunk not in self.chunks:
            return self
        return self.of([each for each in zip(self.chunks, self.passages, strict=True) if each[0] != chunk])


Fillers = dict[str, NamedFiller]  # by domain


@dataclass(frozen=True, slots=True)
class ContextName:
    """What a chunk is captured behind: a filler, and the chunk `before` it, empty where there is none, with the title
    of the document in which both stand."""

    filler: NamedFiller = NamedFiller()
    before: str = ""
    title: str = ""
    is_named: bool = True

    @property
    def digest(self) -> str:
        """The digest of the context, as `CaptureContext` has it."""
        return context_digest(self.filler.digest, (self.before, self.title) if self.before else None)

    @property
    def digests(self) -> tuple[str, ...]:
        """The digest, then those of records that are less good: captured before there was a filler, and alone by an
        earlier release."""
        if not self.is_named:
            return ("",)
        fillerless = replace(self, filler=NamedFiller())
        return tuple(dict.fromkeys((self.digest, fillerless.digest, "")))

    def read(self, texts: Mapping[str, str]) -> CaptureContext | None:
        """The context itself; None where the text of the chunk before is not among these any more."""
        if not self.before:
            return CaptureContext(self.filler.passages)
        text = texts.get(self.before)
        return None if text is None else CaptureContext(self.filler.passages, PromptPassage(text, self.title))


class ChunkContexts:
    """The contexts of one tenant's chunks. Safe for threads. `domain_fields` divide its documents into domains."""

    def __init__(self, catalog: Catalog, *, domain_fields: Callable[[], Set[str]]) -> None:
        self._catalog = catalog
        self._domain_fields = domain_fields
        self._lock = Lock()
        self._known: dict[ContextKey, ContextName] = {}
        self._known_at: tuple[object, ...] = ()  # the state of catalog and filters that they are of

    def key(self, passage: Passage) -> ContextKey:
        return ContextKey(passage.id, passage.collection, domain_of(passage.metadata, self._domain_fields()))

    def named(self, keys: Iterable[ContextKey]) -> dict[ContextKey, ContextName]:
        """The contexts of chunks in documents that serve."""
        wanted, fields = {*keys}, self._domain_fields()
        with self._catalog.view() as view:
            state = view.state()
            at = (state.catalog, state.changes, fields)
            with self._lock:
                if at != self._known_at or len(self._known) > _KNOWN:
                    self._known, self._known_at = {}, at
                known = self._known
            lacking = wanted - known.keys()
            if lacking:
                places = view.places_of([*{key.chunk for key in lacking}], serving=True)
                known |= _contexts(view, lacking, places=places, fields=fields)
            return {key: known[key] for key in wanted}

    def named_with(
        self, keys: Iterable[ContextKey], documents: Sequence[Document], *, collection: str
    ) -> dict[ContextKey, ContextName]:
        """The contexts of chunks once these documents serve, too, in the place of what they were."""
        wanted, fields = {*keys}, self._domain_fields()
        anew, fresh = {each.id for each in documents}, [*_places(documents, collection)]
        with self._catalog.view() as view:
            held = view.places_of([*{key.chunk for key in wanted}], serving=True)
            places = [each for each in held if each.document not in anew]
            return _contexts(view, wanted, places=[*places, *fresh], fields=fields)

    def standing(self, view: CatalogView, chunks: Sequence[str]) -> dict[ContextKey, tuple[Json, set[str]]]:
        """Metadata of places of chunks, and the digests of all contexts in which these stand, in staged versions too:
        blobs of others are not kept."""
        fields, places = self._domain_fields(), view.places_of(chunks)
        fillers = _fillers(view, {place.collection for place in places})
        found: dict[ContextKey, tuple[Json, set[str]]] = {}
        for place in places:
            key = ContextKey(place.chunk, place.collection, domain_of(place.metadata, fields))
            digests = _named(key, place, fillers=fillers[key.collection], fields=fields).digests
            found.setdefault(key, (place.metadata, set()))[1].update(digests)
        return found

    def read(
        self, names: Iterable[ContextName], *, beside: Mapping[str, str] | None = None
    ) -> dict[ContextName, CaptureContext | None]:
        """The contexts with their texts: those `beside`, or the catalog's."""
        wanted, texts = {*names}, dict(beside or {})
        with self._catalog.view() as view:
            rows = view.rows_of([*{name.before for name in wanted if name.before and name.before not in texts}])
            found = view.texts([*rows.values()])
        texts |= {chunk: found[row] for chunk, row in rows.items() if row in found}
        return {name: name.read(texts) for name in wanted}


def _places(documents: Sequence[Document], collection: str) -> Iterator[ChunkPlace]:
    for document in documents:
        before, before_metadata = "", None
        for place, part in enumerate(document.parts):
            metadata = {**document.metadata, **part.metadata}
            own = (document.id, document.title, place, before, before_metadata)
            before, before_metadata = part.id, metadata
            yield ChunkPlace(before, collection, metadata, 0, True, *own)


def _contexts(
    view: CatalogView, keys: Set[ContextKey], *, places: Iterable[ChunkPlace], fields: Set[str]
) -> dict[ContextKey, ContextName]:
    """The context of each; of one that stands nowhere it is the filler alone."""
    homes: dict[ContextKey, ChunkPlace] = {}
    for place in places:
        key = ContextKey(place.chunk, place.collection, domain_of(place.metadata, fields))
        if key in keys and (key not in homes or _first(place) < _first(homes[key])):
            homes[key] = place
    fillers = _fillers(view, {key.collection for key in keys})
    return {key: _named(key, homes.get(key), fillers=fillers[key.collection], fields=fields) for key in keys}


def _fillers(view: CatalogView, collections: Set[str]) -> dict[str, Fillers | None]:
    """The fillers of each collection by domain; None where its chunks are captured alone."""
    found = {name: view.collection(name) for name in collections}
    on = {name for name, each in found.items() if each and CollectionRules.from_json(each.rules).in_context}
    return {name: _named_fillers(view, name) if name in on else None for name in collections}


def _named_fillers(view: CatalogView, collection: str) -> Fillers:
    found = view.fillers(collection).items()
    own = {domain: [(each.chunk, PromptPassage(each.excerpt, each.title)) for each in some] for domain, some in found}
    return {domain: NamedFiller.of(each) for domain, each in own.items()}


def _first(place: ChunkPlace) -> tuple[str, int]:
    return place.document, place.place


def _named(key: ContextKey, place: ChunkPlace | None, *, fillers: Fillers | None, fields: Set[str]) -> ContextName:
    """The context of a chunk at a place: nothing of another domain is in it."""
    title = place.title if place else ""
    if fillers is None:
        return ContextName(title=title, is_named=False)
    filler = fillers.get(key.domain, NamedFiller()).but(key.chunk)
    if place is None or place.before_metadata is None or domain_of(place.before_metadata, fields) != key.domain:
        return ContextName(filler, title=title)
    return ContextName(filler, place.before, title)
