"""What vector stores and files are here: collections, and documents that serve or uploads that are to become some.

A file that is in no vector store yet is an upload without a collection: it is as safe as any other that was accepted,
counts for the same quotas and is deleted as they are, while no search finds it and nothing is computed for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from retriever.catalog.view import CatalogView
from retriever.documents import DocumentPart, Draft, Json
from retriever.types import Collection, DocumentRow
from retriever.upload_types import QueuedUpload, UploadState
from service.api.caller import Caller, unknown
from service.documents.collection_rules import sees_collection
from service.documents.drafts import decode_draft
from service.openai.attribute_filters import Scalar
from service.openai.object_ids import FILES, VECTOR_STORES

LOST: Final = (UploadState.FAILED, UploadState.CANCELLED)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file: one of `row` and `upload` is there."""

    id: str
    row: DocumentRow | None
    upload: QueuedUpload | None

    @property
    def _place(self) -> DocumentRow | QueuedUpload:
        place = self.row or self.upload
        assert place is not None
        return place

    @property
    def collection(self) -> str:
        """The one that it is in, or on its way into; empty for none."""
        return self._place.collection

    @property
    def created(self) -> float:
        return self._place.created

    @property
    def state(self) -> UploadState:
        return UploadState.READY if self.upload is None else self.upload.state


def collection_for(by: Caller, view: CatalogView, *, vector_store_id: str) -> Collection:
    """The collection that a vector store is. Raises NotFound for one that is not there, or not for this key."""
    name = VECTOR_STORES.name_of(vector_store_id) or ""
    found = view.collection(name) if sees_collection(view, name, bound=by.who.bound) else None
    if found is None:
        raise unknown("vector store", vector_store_id)
    return found


def attributes_of(metadata: Mapping[str, object]) -> dict[str, Scalar]:
    """What OpenAI's clients can read of a document's metadata: texts, numbers, true and false."""
    return {name: value for name, value in metadata.items() if isinstance(value, str | int | float | bool)}


def find_file(by: Caller, view: CatalogView, *, file_id: str) -> StoredFile:
    """The file of this id. Raises NotFound for one that is not there, or not for this key."""
    document = FILES.name_of(file_id) or ""
    row = by.seen(view, document)
    upload = None if row else view.upload_of(by.name_of(view, document))
    if upload and not (by.owns(upload.job) and (upload.state.is_live or upload.state in LOST)):
        upload = None
    if not (row or upload):
        raise unknown("file", file_id)
    return StoredFile(file_id, row, upload)


def files_of(by: Caller, view: CatalogView, *, collection: str | None = None) -> dict[str, tuple[float, UploadState]]:
    """When each file came and how far it is, by its id: of one collection, or of all."""
    uploads = [each for each in view.unready(collection) if by.owns(each.job)]
    found = {each.document: (each.created, each.state) for each in uploads}
    found |= {
        document: (created, UploadState.READY) for created, document in view.ages(by.allowed(collection=collection))
    }
    return {FILES.id_of(by.who.shown_id(document)): told for document, told in found.items()}


def draft_in(by: Caller, view: CatalogView, *, file: StoredFile) -> Draft:
    """What the file can be put in again from, under its key's id. Raises NotFound where nothing is left of it."""
    if file.row is not None:
        parts = tuple(_parts(by, view, row=file.row))
        draft = Draft(parts=parts, title=file.row.title, metadata=file.row.metadata)
    else:
        assert file.upload is not None
        content = view.content(file.upload.number)
        if content is None:
            raise unknown("file", file.id)
        draft = decode_draft(content)
    return replace(draft, id=FILES.name_of(file.id) or "")


def texts_of(draft: Draft) -> list[str]:
    return [draft.text] if draft.text else [part.text for part in draft.parts]


def _parts(by: Caller, view: CatalogView, *, row: DocumentRow) -> Iterator[DocumentPart]:
    for each in view.passages(row.id, allowed=by.allowed()):
        own: Json = {name: value for name, value in each.metadata.items() if row.metadata.get(name) != value}
        yield DocumentPart(each.text, each.name, each.start, each.page, own)
