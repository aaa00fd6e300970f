"""Documents over HTTP: put in, replaced, patched, listed, deleted."""

from typing import Annotated, cast

from fastapi import Query, Response

from retriever.catalog.base import Entry, Passage, View
from retriever.documents import Json
from retriever.errors import FilterError
from service.api.caller import By, Caller, unfitting, unknown
from service.api.models.documents import (
    Accepted,
    ChunkOut,
    ChunkPage,
    Deleted,
    DocumentOut,
    DocumentPage,
    Patch,
    Replacement,
)
from service.api.models.fields import (
    DEFAULT_COLLECTION,
    CollectionName,
    DocumentId,
    Limit,
    check_metadata,
)
from service.api.security import parse
from service.api.uploads import accept, draft_of, located
from service.errors import Invalid
from service.shelf import ChunkState

After = Annotated[str, Query(max_length=1024, description="What the page before gave as `next`")]
AfterPlace = Annotated[int, Query(ge=0, lt=2**31, description="What the page before gave as `next`")]
Where = Annotated[str | None, Query(alias="filter", description="A filter on metadata, as JSON")]


def list_documents(
    by: By, collection: CollectionName | None = None, *, where: Where = None, after: After = "", limit: Limit = 100
) -> DocumentPage:
    """Those that serve, in the order of their ids."""
    with by.tenant.catalog.view() as view:
        found = view.documents(by.allowed(collection=collection, where=_where(where)), after=after, limit=limit)
    return DocumentPage(
        documents=[_shown(entry) for entry in found], next=found[-1].id if len(found) == limit else None
    )


def get_document(by: By, document_id: DocumentId) -> DocumentOut:
    """One that serves."""
    with by.tenant.catalog.view() as view:
        return _shown(_entry(by, view, document_id=document_id))


def put_document(by: By, document_id: DocumentId, *, replacement: Replacement, response: Response) -> Accepted:
    """Make this the whole of the document. What was there serves until the new version is ready."""
    with by.tenant.catalog.view() as view:
        entry = by.seen(view, document_id)
    collection = replacement.collection or (entry.collection if entry else DEFAULT_COLLECTION)
    job, ids = accept(by, [draft_of(replacement, document_id)], collection=collection)
    return located(Accepted(job_id=job, documents=ids, files=[]), response)


def patch_document(by: By, document_id: DocumentId, *, patch: Patch) -> DocumentOut:
    """Lay metadata over what is there. Chunks and caches stay as they are."""
    tenant = by.tenant
    with tenant.catalog.view() as view:
        _entry(by, view, document_id=document_id)
        by.check_writable(view, document_id)
    with tenant.catalog.change() as change:  # what is raised in here undoes the patch
        entry = change.patch(document_id, metadata=patch.metadata)
        if entry is None:
            raise unknown("document", document_id)
        by.check_fits(document_id, entry.collection, metadata=entry.metadata)
        try:
            check_metadata(entry.metadata)
        except ValueError as error:
            raise Invalid(f"with what is there already, {error}", field="metadata") from error
    return _shown(entry)


def delete_document(by: By, document_id: DocumentId) -> Deleted:
    """End every version of it, what waits to be computed too, and the caches of chunks that nothing else holds."""
    tenant = by.tenant
    with tenant.catalog.view() as view:
        _check_deletable(by, view, document_id=document_id)
    removed = tenant.delete([document_id])
    return Deleted(
        id=document_id, chunks_removed=list(removed.chunks), chunks_kept=list(removed.kept), done=removed.done
    )


def list_chunks(by: By, document_id: DocumentId, *, after: AfterPlace = 0, limit: Limit = 100) -> ChunkPage:
    """Its chunks in order, and what is stored of each."""
    tenant = by.tenant
    with tenant.catalog.view() as view:
        entry = _entry(by, view, document_id=document_id)
        found = view.passages(document_id, first=after, limit=limit, allowed=by.allowed())
    states = tenant.shelf.states(found)
    following = after + limit
    return ChunkPage(
        chunks=[_chunk(passage, states[passage.id]) for passage in found],
        next=following if following < entry.parts else None,
    )


def _where(text: str | None) -> Json | None:
    if text is None:
        return None
    found = parse(text.encode(), field="filter")
    if not isinstance(found, dict):
        raise FilterError(f"a filter is an object such as {{'lang': 'en'}}, got {text[:80]}")
    return cast(Json, found)


def _entry(by: Caller, view: View, *, document_id: str) -> Entry:
    entry = by.seen(view, document_id)
    if entry is None:
        raise unknown("document", document_id)
    return entry


def _check_deletable(by: Caller, view: View, *, document_id: str) -> None:
    """Raise NotFound, or Forbidden for what this key sees and may not change."""
    entry, waiting = view.document(document_id), view.upload_of(document_id)
    is_waiting = waiting is not None and waiting.state.is_live
    if entry is None:
        if not (waiting and is_waiting and by.owns(waiting.job)):
            raise unknown("document", document_id)
        return
    if not by.fits(entry.collection, entry.metadata):
        raise unknown("document", document_id)
    if not by.sees_all_of(view, entry) or (waiting and is_waiting and not by.owns(waiting.job)):
        raise unfitting(document_id)


def _shown(entry: Entry) -> DocumentOut:
    return DocumentOut(
        id=entry.id,
        collection=entry.collection,
        title=entry.title,
        metadata=dict(entry.metadata),
        chunks=entry.parts,
        created=entry.created,
        updated=entry.updated,
    )


def _chunk(passage: Passage, state: ChunkState) -> ChunkOut:
    return ChunkOut(
        chunk_id=passage.id,
        place=passage.place,
        name=passage.name,
        text=passage.text,
        metadata=dict(passage.metadata),
        page=passage.page,
        start=passage.start,
        end=None if passage.start is None else passage.start + len(passage.text),
        state=state.state.value,
        bytes=state.nbytes,
        tier=state.tier,
    )
