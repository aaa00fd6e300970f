"""Documents over HTTP: listed, shown, replaced, patched, deleted, and their chunks with what is stored of each."""

from dataclasses import replace
from typing import Annotated, cast

from fastapi import Query, Response
from pydantic import BaseModel, Field

from retriever.catalog.view import CatalogView
from retriever.documents import Json
from retriever.errors import FilterError
from retriever.types import DocumentRow, Passage
from service.api.caller import By, Caller, unknown
from service.api.fields import (
    CollectionName,
    DocumentId,
    Limit,
    Metadata,
    Strict,
    check_metadata,
)
from service.api.guards import parse
from service.api.rendering import end_of, rendered
from service.api.uploads import Accepted, DocumentIn, accept, draft_of, located
from service.documents.chunk_caches import ChunkState
from service.documents.collection_rules import DEFAULT_COLLECTION
from service.documents.fillers import settle
from service.documents.tenants import Removed
from service.errors import Invalid

After = Annotated[str, Query(max_length=1100, description="What the page before gave as `next`")]
AfterPlace = Annotated[int, Query(ge=0, lt=2**31, description="What the page before gave as `next`")]
Where = Annotated[str | None, Query(alias="filter", description="A filter on metadata, as JSON")]


class Replacement(DocumentIn):
    """The whole of a document. Without a collection it stays where it is; a new one goes to `default`."""

    collection: CollectionName | None = None


class Patch(Strict):
    """Metadata to lay over what is there; null takes a field away. Nothing is computed again."""

    metadata: Metadata = Field(examples=[{"year": 2025, "draft": None}])


class DocumentOut(BaseModel):
    """A document that serves. Times are seconds since 1970."""

    id: str
    collection: str
    title: str
    metadata: dict[str, object]
    chunks: int = Field(description="How many it has")
    created: float
    updated: float


class DocumentPage(BaseModel):
    """Documents in the order of their ids. `next`: what to give as `after` for the following page; null at the end."""

    documents: list[DocumentOut]
    next: str | None


class ChunkOut(BaseModel):
    """A chunk where it stands, and what is stored of it: stored, pending, over budget, unsupported or absent."""

    chunk_id: str
    place: int
    name: str
    text: str
    metadata: dict[str, object]
    page: int | None
    start: int | None
    end: int | None
    state: str = Field(examples=["stored"])
    bytes: int
    tier: str = Field(examples=["lmdb"])


class ChunkPage(BaseModel):
    """Chunks of a document, in its order."""

    chunks: list[ChunkOut]
    next: int | None


class Deleted(BaseModel):
    """A deleted document. `chunks_kept`: others hold them. `done`: every tier answers that the other ones are gone."""

    id: str
    chunks_removed: list[str]
    chunks_kept: list[str]
    done: bool


def list_documents(
    by: By, collection: CollectionName | None = None, *, where: Where = None, after: After = "", limit: Limit = 100
) -> DocumentPage:
    """List the documents that serve, in the order of their ids."""
    with by.tenant.catalog.view() as view:
        found = view.documents(by.allowed(collection=collection, where=_where(where)), after=after, limit=limit)
        shown = [_shown(by, view, row=row) for row in found]
    return DocumentPage(documents=shown, next=found[-1].id if len(found) == limit else None)


def get_document(by: By, document_id: DocumentId) -> DocumentOut:
    """Show a document that serves."""
    with by.tenant.catalog.view() as view:
        return _shown(by, view, row=_row(by, view, document_id=document_id))


def put_document(by: By, document_id: DocumentId, *, replacement: Replacement, response: Response) -> Accepted:
    """Make this the whole of a document. What was there serves until the new version is ready."""
    with by.tenant.catalog.view() as view:
        row = by.seen(view, document_id)
    collection = replacement.collection or (row.collection if row else DEFAULT_COLLECTION)
    job, ids = accept(by, [draft_of(replacement, document_id)], collection=collection)
    return located(Accepted(job_id=job, documents=ids, files=[]), response)


def patch_document(by: By, document_id: DocumentId, *, patch: Patch) -> DocumentOut:
    """Lay metadata over a document's. Chunks stay as they are; caches go where a key's filter tells the change."""
    tenant = by.tenant
    with tenant.catalog.view() as view:
        before = _row(by, view, document_id=document_id)
        by.writable(view, document_id)
    with tenant.catalog.change() as change:  # what is raised in here undoes the patch
        row = change.patch(before.id, metadata=patch.metadata)
        if row is None:
            raise unknown("document", document_id)
        by.check_unmoved(document_id, before.metadata, after=row.metadata)
        by.check_own(document_id, row.collection, metadata=row.metadata)
        try:
            check_metadata(row.metadata)
        except ValueError as error:
            raise Invalid(f"with what is there already, {error}", field="metadata") from error
        moves = tenant.captures.chunk("", before.metadata) != tenant.captures.chunk("", row.metadata)
        if moves:
            settle(change, [row.id], fields=tenant.captures.domain_fields)
    if moves:
        tenant.void()
    with tenant.catalog.view() as view:
        if moves:
            by.core.ingest.move(tenant, view.passages(row.id))
        return _shown(by, view, row=row)


def delete_document(by: By, document_id: DocumentId) -> Deleted:
    """End every version of a document, what waits to be computed too, and the caches of chunks that only it holds."""
    tenant = by.tenant
    with tenant.catalog.view() as view:
        name = _deletable(by, view, document_id=document_id)
    removed = tenant.delete([name])
    by.core.ingest.wake(tenant.name)  # others may stand in another context now
    gone, kept = _gone_and_kept(by, removed)
    return Deleted(id=document_id, chunks_removed=gone, chunks_kept=kept, done=removed.done)


def list_chunks(by: By, document_id: DocumentId, *, after: AfterPlace = 0, limit: Limit = 100) -> ChunkPage:
    """List a document's chunks in order, with what is stored of each. A key with a filter counts those that it sees."""
    tenant = by.tenant
    with tenant.catalog.view() as view:
        row = _row(by, view, document_id=document_id)
        if by.is_bound:
            seen = view.passages(row.id, allowed=by.allowed())
            count, numbered = len(seen), [replace(each, place=place) for place, each in enumerate(seen)]
            found = numbered[after : after + limit]
        else:
            count, found = row.parts, view.passages(row.id, first=after, limit=limit)
    states = tenant.caches.states(found)
    following = after + limit
    return ChunkPage(
        chunks=[_chunk(passage, states[passage.id]) for passage in found],
        next=following if following < count else None,
    )


def _where(text: str | None) -> Json | None:
    if text is None:
        return None
    found = parse(text.encode(), field="filter")
    if not isinstance(found, dict):
        raise FilterError(f"a filter is an object such as {{'lang': 'en'}}, got {text[:80]}")
    return cast(Json, found)


def _row(by: Caller, view: CatalogView, *, document_id: str) -> DocumentRow:
    row = by.seen(view, document_id)
    if row is None:
        raise unknown("document", document_id)
    return row


def _deletable(by: Caller, view: CatalogView, *, document_id: str) -> str:
    """The id under which it is kept. Raises NotFound, or Forbidden for what this key sees and may not change."""
    if by.seen(view, document_id):
        return by.writable(view, document_id)
    name = by.name_of(view, document_id)
    waiting = view.upload_of(name)
    if not (waiting and waiting.state.is_live and by.owns(waiting.job)):
        raise unknown("document", document_id)
    return name


def _gone_and_kept(by: Caller, removed: Removed) -> tuple[list[str], list[str]]:
    """Ids of chunks that are gone and of those that are kept: for a key with a filter, by documents that it sees."""
    if not by.is_bound:
        return [*removed.chunks], [*removed.kept]
    with by.tenant.catalog.view() as view:
        rows = view.rows_of(removed.kept)
        kept = {passage.id for passage in view.holding(list(rows.values()), by.allowed())}
    return sorted({*removed.chunks, *removed.kept} - kept), sorted(kept)


def _shown(by: Caller, view: CatalogView, *, row: DocumentRow) -> DocumentOut:
    chunks = len(view.passages(row.id, allowed=by.allowed())) if by.is_bound else row.parts
    return rendered(DocumentOut, row, id=by.who.shown_id(row.id), chunks=chunks)


def _chunk(passage: Passage, state: ChunkState) -> ChunkOut:
    told = {"state": state.state.value, "bytes": state.nbytes, "tier": state.tier}
    return rendered(ChunkOut, passage, chunk_id=passage.id, end=end_of(passage), **told)
