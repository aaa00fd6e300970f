"""The files of vector stores, alone or in batches (jobs), as OpenAI's clients put them in, list, change, take out."""

from typing import Annotated, Final

from fastapi import Query

from retriever.catalog.view import CatalogView
from retriever.upload_types import UploadState
from service.api.caller import By, Caller, unknown
from service.api.rendering import rendered
from service.documents.collection_rules import rules_of
from service.openai.attached_files import attach_files, change_attributes, take_out
from service.openai.file_bodies import (
    AttachedFile,
    AttributeChange,
    FileBatch,
    FileStatus,
    LastError,
    StaticCut,
    VectorStoreFile,
    VectorStoreFileBatch,
    VectorStoreFileDeleted,
    VectorStoreFileList,
)
from service.openai.list_pages import At, page_of
from service.openai.stored_files import (
    BATCHES,
    LOST,
    VECTOR_STORES,
    StoredFile,
    attributes_of,
    collection_for,
    draft_in,
    file_in,
    files_of,
    texts_of,
)
from service.openai.vector_store_bodies import ChunkSizes, FileCounts, TextContent, TextPage

Status = Annotated[FileStatus | None, Query(alias="filter", description="Those that are so far alone")]

_STATUSES: Final[dict[UploadState, FileStatus]] = {
    UploadState.READY: "completed",
    UploadState.FAILED: "failed",
    UploadState.CANCELLED: "cancelled",
}


def attach_file(by: By, vector_store_id: str, *, wanted: AttachedFile) -> VectorStoreFile:
    """Put a file into a vector store, where it is cut and computed."""
    attach_files(by, vector_store_id, wanted=[wanted])
    return get_vector_store_file(by, vector_store_id, file_id=wanted.file_id)


def list_vector_store_files(by: By, vector_store_id: str, *, at: At, status: Status = None) -> VectorStoreFileList:
    """List the files of a vector store."""
    with by.tenant.catalog.view() as view:
        name = collection_for(by, view, vector_store_id=vector_store_id).name
        told = files_of(by, view, collection=name)
        listed = [(came, each) for each, (came, state) in told.items() if status in (None, _status(state))]
        page = page_of(listed, at)
        found = (file_in(by, view, file_id=each, collection=name) for each in page.ids)
        shown = [_shown(by, view, file=each) for each in found if each]
    return rendered(VectorStoreFileList, page, data=shown)


def get_vector_store_file(by: By, vector_store_id: str, *, file_id: str) -> VectorStoreFile:
    """Show a file of a vector store, and how far it is."""
    with by.tenant.catalog.view() as view:
        return _shown(by, view, file=_file_in(by, view, vector_store_id=vector_store_id, file_id=file_id))


def change_vector_store_file(by: By, vector_store_id: str, *, file_id: str, change: AttributeChange) -> VectorStoreFile:
    """Give a file of a vector store other attributes. Nothing is computed again."""
    with by.tenant.catalog.view() as view:
        file = _file_in(by, view, vector_store_id=vector_store_id, file_id=file_id)
    change_attributes(by, file, attributes=change.attributes or {})
    return get_vector_store_file(by, vector_store_id, file_id=file_id)


def detach_file(by: By, vector_store_id: str, *, file_id: str) -> VectorStoreFileDeleted:
    """Take a file out of a vector store. The file itself stays until it is deleted."""
    with by.tenant.catalog.view() as view:
        file = _file_in(by, view, vector_store_id=vector_store_id, file_id=file_id)
    take_out(by, file)
    return VectorStoreFileDeleted(id=file_id)


def get_vector_store_file_content(by: By, vector_store_id: str, *, file_id: str) -> TextPage:
    """The text of a file of a vector store."""
    with by.tenant.catalog.view() as view:
        file = _file_in(by, view, vector_store_id=vector_store_id, file_id=file_id)
        texts = texts_of(draft_in(by, view, file=file))
    return TextPage(data=[TextContent(text=each) for each in texts])


def create_file_batch(by: By, vector_store_id: str, *, batch: FileBatch) -> VectorStoreFileBatch:
    """Put files into a vector store together."""
    job = attach_files(by, vector_store_id, wanted=batch.wanted)
    return get_file_batch(by, vector_store_id, batch_id=BATCHES.id_of(job))


def get_file_batch(by: By, vector_store_id: str, *, batch_id: str) -> VectorStoreFileBatch:
    """Show how far files are that were put in together."""
    name, collection = BATCHES.name_of(batch_id) or "", VECTOR_STORES.name_of(vector_store_id) or ""
    with by.tenant.catalog.view() as view:
        job = view.job(name) if by.owns(name) else None
        places = {each.collection for each in view.uploads(name, limit=1)} if job else set[str]()
        if not places or view.collection(collection) is None:  # no uploads tell no place
            collection_for(by, view, vector_store_id=vector_store_id)
    if job is None or not places <= {collection}:
        raise unknown("batch of files", batch_id)
    counts = FileCounts.of(job.states)
    return VectorStoreFileBatch(
        id=batch_id,
        created_at=int(job.created),
        vector_store_id=vector_store_id,
        status="in_progress" if counts.in_progress else "cancelled" if counts.cancelled else "completed",
        file_counts=counts,
    )


def _file_in(by: Caller, view: CatalogView, *, vector_store_id: str, file_id: str) -> StoredFile:
    name = VECTOR_STORES.name_of(vector_store_id)
    file = file_in(by, view, file_id=file_id, collection=name) if name else None
    if file is None:
        raise unknown("file", file_id)
    return file


def _status(state: UploadState) -> FileStatus:
    return _STATUSES.get(state, "in_progress")


def _shown(by: Caller, view: CatalogView, *, file: StoredFile) -> VectorStoreFile:
    draft = None if file.state in LOST else draft_in(by, view, file=file)
    sizes = ChunkSizes.model_validate(
        {"max_chunk_size_tokens": rules_of(view, file.collection).chunk_tokens, "chunk_overlap_tokens": 0}
    )
    return VectorStoreFile(
        id=file.id,
        created_at=int(file.created),
        usage_bytes=sum(len(each.encode()) for each in texts_of(draft)) if draft else 0,
        vector_store_id=VECTOR_STORES.id_of(file.collection),
        status=_status(file.state),
        last_error=LastError(message=file.upload.detail) if file.upload and file.state is UploadState.FAILED else None,
        chunking_strategy=StaticCut(static=sizes),
        attributes=attributes_of(draft.metadata) if draft else {},
    )
