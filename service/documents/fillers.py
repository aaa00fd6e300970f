"""The fillers of collections: passages of a domain's own documents, behind which its chunks are captured.

A filler is chosen once there are four documents, of those whose versions are oldest, so that it seldom changes: what is
edited is chosen last. Knows catalogs, no model.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import zip_longest

from retriever.catalog.change import CatalogChange
from retriever.documents import Document
from retriever.filter_condition import Value, facets
from retriever.types import FillerPassage, Label
from service.access.domains import domain_of
from service.model.capture_context import FILLER_CHARACTERS, PASSAGES, excerpt

DOCUMENTS = 4  # from which a filler is made
LOOKED_AT = 32  # chunks of a document, to find long ones


@dataclass(frozen=True, slots=True)
class FillerDocument:
    """A document that may be filler: its chunks of one domain, with what gives their texts by their ids."""

    id: str
    title: str
    chunks: tuple[str, ...]


def settle(change: CatalogChange, documents: Sequence[str], *, fields: Set[str]) -> None:
    """Replaces the fillers with passages of these documents that are not in them any more, or not in the filler's
    domain, and makes those that can be made since they serve."""
    told = change.fillers_with(documents)
    places = change.places_of([chunk for *_, chunk, _ in told], serving=True) if told else []
    left = {
        (place.collection, domain_of(place.metadata, fields), place.document, place.chunk, place.title)
        for place in places
    }
    for collection, domain in sorted({(collection, domain) for collection, domain, *_ in {*told} - left}):
        _choose(change, _Home(collection, domain), fields=fields)
    prepare(change, change.labels_in(documents), fields=fields)


def prepare(change: CatalogChange, labels: Iterable[Label], *, staged: Sequence[int] = (), fields: Set[str]) -> None:
    """Makes the fillers that these labels' domains lack, of documents that serve or will: those of staged versions."""
    for label in labels:
        domain = domain_of(label.metadata, fields)
        if not change.has_filler(label.collection, domain):
            facet = next((each for each in facets(label.metadata) if each[0] in fields), None)
            _choose(change, _Home(label.collection, domain, facet, tuple(staged)), fields=fields)


def divide(change: CatalogChange, collections: Iterable[str], *, fields: Set[str]) -> None:
    """Makes the fillers of all domains anew where other filters divide the documents than before."""
    for collection in collections:
        places = change.collection_passages(collection) if fields else ()
        domains = {domain_of(place.metadata, fields) for place in places} if fields else {""}
        for domain in sorted(domains):
            if not change.has_filler(collection, domain):
                _choose(change, _Home(collection, domain), fields=fields)
        change.drop_fillers(collection, but=sorted(domains))


def choose(change: CatalogChange, collection: str, *, chunks: Sequence[str], fields: Set[str]) -> str | None:
    """Makes these chunks the fillers of their domains; none: all are chosen anew. Returns the first chunk that no
    document of the collection has, if there is one."""
    if not chunks:
        domains = {domain_of(place.metadata, fields) for place in change.collection_passages(collection)}
        for domain in sorted(domains):
            _choose(change, _Home(collection, domain), fields=fields)
        return None
    texts, found = change.texts_of(chunks), dict[str, dict[str, FillerPassage]]()
    for place in change.collection_passages(collection):
        if place.chunk in texts and place.chunk in chunks:
            passage = FillerPassage(place.document, place.chunk, place.title, excerpt(texts[place.chunk]))
            found.setdefault(domain_of(place.metadata, fields), {}).setdefault(place.chunk, passage)
    known = {chunk for passages in found.values() for chunk in passages}
    missing = next((chunk for chunk in chunks if chunk not in known), None)
    if missing is None:
        for domain, passages in found.items():
            ordered = [passages[chunk] for chunk in dict.fromkeys(chunks) if chunk in passages]
            change.keep_filler(collection, domain, passages=ordered)
    return missing


def first_filler(documents: Iterable[Document], *, fields: Set[str]) -> dict[str, tuple[FillerPassage, ...]]:
    """The fillers by domain that these documents make once they serve, in their order."""
    texts: dict[str, str] = {}
    by_domain: dict[str, dict[str, FillerDocument]] = {}
    for document in documents:
        for part in document.parts:
            texts[part.id] = part.text
            domain = domain_of({**document.metadata, **part.metadata}, fields)
            _add(by_domain.setdefault(domain, {}), document.id, title=document.title, chunk=part.id)
    return {
        domain: filler_of([*found.values()][:DOCUMENTS], lambda ids: {each: texts[each] for each in ids})
        for domain, found in by_domain.items()
        if len(found) >= DOCUMENTS
    }


def filler_of(
    documents: Sequence[FillerDocument], texts: Callable[[Sequence[str]], dict[str, str]]
) -> tuple[FillerPassage, ...]:
    """A passage of each document, the longest of its first ones; more where these are short. None repeats itself."""
    told = texts([chunk for document in documents for chunk in document.chunks])
    known = {chunk: passage for chunk, text in told.items() if (passage := excerpt(text)) and not _repeats(passage)}
    ranked = [
        [
            FillerPassage(document.id, chunk, document.title, known[chunk])
            for chunk in sorted(filter(known.get, document.chunks), key=lambda each: -len(known[each]))
        ]
        for document in documents
    ]
    found: dict[str, FillerPassage] = {}
    for passage in (each for turn in zip_longest(*ranked) for each in turn if each):
        if len(found) >= PASSAGES and sum(len(each.excerpt) for each in found.values()) >= FILLER_CHARACTERS:
            break
        found.setdefault(passage.chunk, passage)
    return tuple(found.values())


def _repeats(text: str) -> bool:
    """Whether most of a text was there before: what is captured behind that is far from any prompt."""
    return len({*zip(text, text[1:], text[2:], strict=False)}) < (len(text) - 2) / 4


@dataclass(frozen=True, slots=True)
class _Home:
    """What has a filler. All documents of the domain have the facet, if one is named; `staged` versions serve soon."""

    collection: str
    domain: str
    facet: tuple[str, Value] | None = None
    staged: tuple[int, ...] = ()


def _choose(change: CatalogChange, home: _Home, *, fields: Set[str]) -> None:
    """Chooses a filler of the documents that serve; none where there are too few, or chunks are captured alone."""
    found: dict[str, FillerDocument] = {}
    is_on = change.in_context(home.collection)
    places = change.collection_passages(home.collection, facet=home.facet, staged=home.staged)
    for place in places if is_on else ():
        if domain_of(place.metadata, fields) == home.domain:
            if place.document not in found and len(found) == DOCUMENTS:
                break
            _add(found, place.document, title=place.title, chunk=place.chunk)
    passages = filler_of([*found.values()], change.texts_of) if len(found) == DOCUMENTS else ()
    if passages or change.has_filler(home.collection, home.domain):
        change.keep_filler(home.collection, home.domain, passages=passages)


def _add(found: dict[str, FillerDocument], document: str, *, title: str, chunk: str) -> None:
    known = found.get(document, FillerDocument(document, title, ()))
    if len(known.chunks) < LOOKED_AT:
        known = FillerDocument(document, title, (*known.chunks, chunk))
    found[document] = known
