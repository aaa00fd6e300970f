"""The cache over HTTP: what is stored of chunks, and wishes to have it near, kept or gone (prefetch, pin, evict)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field

from retriever.catalog.view import CatalogView
from retriever.types import Passage
from service.api.caller import By, Caller
from service.api.fields import MOST_LISTED, ChunkId, CollectionName, DocumentId, OneOf, Whole
from service.documents.chunk_caches import ChunkCaches, ChunkState
from service.documents.collection_rules import check_collection


class CacheChoice(OneOf):
    """Which chunks: of documents, by their ids, or of a collection."""

    choices = ("document_ids", "chunk_ids", "collection")
    remedy = "give exactly one of document_ids, chunk_ids and collection"

    document_ids: list[DocumentId] = Field(default_factory=list[str], min_length=1, max_length=1000)
    chunk_ids: list[ChunkId] = Field(default_factory=list[str], min_length=1, max_length=1000)
    collection: CollectionName = ""


class LookupRequest(CacheChoice):
    """Which chunks, and which page of them."""

    after: Whole = Field(0, ge=0, lt=2**63, description="What the page before gave as `next`")
    limit: Whole = Field(MOST_LISTED, ge=1, le=MOST_LISTED)


class ChunkStateOut(BaseModel):
    """What is stored of a chunk: stored, pending, over budget, unsupported or absent; and where."""

    chunk_id: str
    state: str = Field(examples=["stored"])
    bytes: int
    tier: str = Field(examples=["lmdb"])


class LookupAnswer(BaseModel):
    """What is stored of the chunks. `unknown`: ids that name nothing you may see."""

    chunks: list[ChunkStateOut]
    unknown: list[str]
    next: int | None


class Touched(BaseModel):
    """`chunks` were meant, `blobs` of them were stored and concerned."""

    chunks: int
    blobs: int
    unknown: list[str]


@dataclass(frozen=True, slots=True)
class PassagePage:
    """Some of the chosen passages, the oldest first; `following`: how many came by the next page."""

    passages: list[Passage]
    unknown: list[str]
    following: int | None


def lookup(by: By, wanted: LookupRequest) -> LookupAnswer:
    """What is stored, chunk by chunk."""
    page = _page(by, wanted, after=wanted.after, limit=wanted.limit)
    states = by.tenant.caches.states(page.passages)
    return LookupAnswer(
        chunks=[_shown(states[passage.id]) for passage in page.passages], unknown=page.unknown, next=page.following
    )


def prefetch(by: By, wanted: CacheChoice) -> Touched:
    """Ask that the caches of these chunks be near. `blobs`: fetches that began."""
    return _touched(by, wanted, touch=lambda caches, found: caches.prefetch(found))


def pin(by: By, wanted: CacheChoice) -> Touched:
    """Keep the caches of these chunks from eviction: for a key with a filter, those of what it sees."""
    return _touched(by, wanted, touch=lambda caches, found: caches.pin(found, shared=not by.is_bound))


def unpin(by: By, wanted: CacheChoice) -> Touched:
    """Take the pins of these chunks back: for a key with a filter, those of what it sees."""
    return _touched(by, wanted, touch=lambda caches, found: caches.unpin(found, shared=not by.is_bound))


def evict(by: By, wanted: CacheChoice) -> Touched:
    """Forget what is stored of these chunks. It is computed again when it is needed."""
    by.check_unbound("evict caches, which others may share")
    return _touched(by, wanted, touch=lambda caches, found: caches.evict(found))


def _touched(by: Caller, wanted: CacheChoice, *, touch: Callable[[ChunkCaches, Sequence[Passage]], int]) -> Touched:
    chunks = blobs = 0
    unknown_ids: list[str] = []
    for page in _pages(by, wanted):
        chunks += len(page.passages)
        blobs += touch(by.tenant.caches, page.passages)
        unknown_ids = unknown_ids or page.unknown
    return Touched(chunks=chunks, blobs=blobs, unknown=unknown_ids)


def _pages(by: Caller, wanted: CacheChoice) -> Iterator[PassagePage]:
    after: int | None = 0
    while after is not None:
        page = _page(by, wanted, after=after, limit=MOST_LISTED)
        yield page
        after = page.following


def _page(by: Caller, wanted: CacheChoice, *, after: int, limit: int) -> PassagePage:
    with by.tenant.catalog.view() as view:
        if wanted.collection:
            return _collection_page(by, view, wanted=wanted, after=after, limit=limit)
        if wanted.chunk_ids:
            known = view.rows_of(wanted.chunk_ids)
            found = view.holding(list(known.values()), by.allowed())
            held = {passage.id for passage in found}
            missing = [chunk for chunk in dict.fromkeys(wanted.chunk_ids) if chunk not in held]
        else:
            found, missing = _document_passages(by, view, documents=wanted.document_ids)
    return _cut(found, missing, after=after, limit=limit)


def _document_passages(by: Caller, view: CatalogView, *, documents: Sequence[str]) -> tuple[list[Passage], list[str]]:
    found: dict[int, Passage] = {}
    missing: list[str] = []
    for document in dict.fromkeys(documents):
        entry = by.seen(view, document)
        if entry is None:
            missing.append(document)
            continue
        for passage in view.passages(entry.id, allowed=by.allowed()):
            found.setdefault(passage.chunk, passage)
    return [*found.values()], missing


def _collection_page(by: Caller, view: CatalogView, *, wanted: CacheChoice, after: int, limit: int) -> PassagePage:
    check_collection(view, wanted.collection, bound=by.who.bound)
    allowed = by.allowed(collection=wanted.collection)
    oldest = view.oldest_of(allowed)
    chunks: list[int] = oldest[after : after + limit, 1].tolist()
    return PassagePage(view.holding(chunks, allowed), [], after + limit if len(oldest) > after + limit else None)


def _cut(found: Sequence[Passage], missing: list[str], *, after: int, limit: int) -> PassagePage:
    rest = sorted(found, key=lambda each: each.row)[after:]
    return PassagePage(rest[:limit], missing, after + limit if len(rest) > limit else None)


def _shown(state: ChunkState) -> ChunkStateOut:
    return ChunkStateOut(chunk_id=state.chunk_id, state=state.state.value, bytes=state.nbytes, tier=state.tier)
