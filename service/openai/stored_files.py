"""What vector stores and files are here: collections, and documents that serve or uploads that are to become some.

A file that is in no vector store yet is an upload without a collection: it is as safe as any other that was accepted,
counts for the same quotas and is deleted as they are, while no search finds it and nothing is computed for it.
In a second vector store it is a document of its own, whose id is made of the file's and the collection.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote

from blake3 import blake3

from retriever.catalog.view import CatalogView
from retriever.documents import DocumentPart, Draft, Json
from retriever.types import Collection, DocumentRow
from retriever.upload_types import QueuedUpload, UploadState
from service.api.caller import Caller, unknown
from service.documents.collection_rules import sees_collection
from service.documents.drafts import decode_draft
from service.openai.vector_store_bodies import Told

LOST: Final = (UploadState.FAILED, UploadState.CANCELLED)


@dataclass(frozen=True, slots=True)
class ObjectIds:
    """The ids of one kind of objects, spelt out of names. Clients put ids into paths as they are, so all but letters,
    digits, `-`, `.` and `_` is written as `~` and its bytes.
    """

    prefix: str

    def id_of(self, name: str) -> str:
        return self.prefix + quote(name, safe="").replace("~", "%7E").replace("%", "~")

    def name_of(self, object_id: str) -> str | None:
        """The name of what has this id, which need not be there; None for an id that nothing of this kind can have.

        A name that somebody wrote without `~` stands for itself.
        """
        spelt = object_id.removeprefix(self.prefix)
        name = unquote(spelt.replace("%", "%25").replace("~", "%"))
        return None if spelt == object_id or not name or "\0" in name else name


VECTOR_STORES: Final = ObjectIds("vs_")  # each of which is a collection
BATCHES: Final = ObjectIds("vsfb_")  # of files, each of which is a job
FILES: Final = ObjectIds("file-")  # each of which is a document


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in one of its places: one of `row` and `upload` is there. `document`: the id there, as the key has it."""

    id: str
    document: str
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


def attributes_of(metadata: Mapping[str, object]) -> dict[str, Told]:
    """What OpenAI's clients can read of a document's metadata: texts, numbers, true and false."""
    return {name: value for name, value in metadata.items() if isinstance(value, str | int | float | bool)}


def copy_id(document: str, collection: str) -> str:
    """The id of a document's copy in another collection."""
    return f"{document}~{blake3(json.dumps([document, collection]).encode()).hexdigest(8)}"


def copied(document: str, collection: str) -> str:
    """The id of what this document of a collection is a copy of; its own where it is none."""
    found = document.rpartition("~")[0]
    return found if copy_id(found, collection) == document else document


def find_file(by: Caller, view: CatalogView, *, file_id: str) -> StoredFile:
    """The file of this id, in its first place. Raises NotFound for one that is not there, or not for this key."""
    lost: StoredFile | None = None
    for each in places_of(by, view, file_id=file_id):
        if each.state not in LOST:
            return each
        lost = lost or each
    if lost is None:
        raise unknown("file", file_id)
    return lost


def file_in(by: Caller, view: CatalogView, *, file_id: str, collection: str) -> StoredFile | None:
    """The file in its place in a collection, or on its way there."""
    document = FILES.name_of(file_id) or ""
    places = (_place(by, view, file_id=file_id, document=each) for each in (document, copy_id(document, collection)))
    return next((each for each in places if each and each.collection == collection), None)


def places_of(by: Caller, view: CatalogView, *, file_id: str) -> Iterator[StoredFile]:
    """The places of a file that are there for the key: that of its own id, then its copies."""
    document = FILES.name_of(file_id) or ""
    if own := _place(by, view, file_id=file_id, document=document):
        yield own
    for collection in view.collections():
        if copy := _place(by, view, file_id=file_id, document=copy_id(document, collection.name)):
            yield copy


def _place(by: Caller, view: CatalogView, *, file_id: str, document: str) -> StoredFile | None:
    row = by.seen(view, document)
    upload = None if row else view.upload_of(by.name_of(view, document))
    if upload and not (by.owns(upload.job) and (upload.state.is_live or upload.state in LOST)):
        upload = None
    return StoredFile(file_id, document, row, upload) if row or upload else None


def files_of(by: Caller, view: CatalogView, *, collection: str | None = None) -> dict[str, tuple[float, UploadState]]:
    """When each file came and how far it is, by its id: of one collection, or of all."""
    uploads = [each for each in view.unready(collection) if by.owns(each.job)]
    uploads.sort(key=lambda each: each.state.is_live)  # of several places of a file one that lives tells
    told = [(each.document, each.collection, each.created, each.state) for each in uploads]
    told += [
        (document, place, created, UploadState.READY)
        for created, document, place in view.ages(by.allowed(collection=collection))
    ]
    return {
        FILES.id_of(copied(by.who.shown_id(document), place)): (created, state)
        for document, place, created, state in told
    }


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
