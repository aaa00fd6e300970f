"""How files come into vector stores and out of them: documents are put into collections, and taken out again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retriever.catalog.view import CatalogView
from retriever.documents import Draft
from retriever.filter_condition import fields_of, scope
from service.api.caller import Caller, unknown
from service.api.documents import Patch, delete_document, patch_document
from service.api.uploads import accept, with_metadata
from service.documents.collection_rules import CollectionRules, rules_of
from service.documents.drafts import upload_of
from service.errors import Conflict
from service.openai.file_bodies import AttachedFile
from service.openai.stored_files import (
    FILES,
    LOST,
    VECTOR_STORES,
    StoredFile,
    attributes_of,
    collection_for,
    copy_id,
    draft_in,
    file_in,
    find_file,
)
from service.openai.vector_store_bodies import Chunking, Scalar, StaticChunking


def attach_files(by: Caller, vector_store_id: str, *, wanted: Sequence[AttachedFile]) -> str:
    """Puts files into a vector store and returns the id of the job. Those that are in it already get their attributes.

    One that is in another vector store is copied, and nothing of it where it is deleted meanwhile.
    """
    drafts: list[Draft] = []
    replaced: dict[str, int] = {}
    versions: dict[str, int] = {}
    with by.tenant.catalog.view() as view:
        name = _open_store(by, view, vector_store_id=vector_store_id)
        rules = rules_of(view, name)
        files = {each.file_id: file_for(by, view, file_id=each.file_id, collection=name) for each in wanted}
        attributes = {each.file_id: each.attributes for each in wanted}
        for each in wanted:
            _check_cut(each.chunking_strategy, rules)
        for file in files.values():
            if file.row is None or file.collection != name:
                is_copy = file.collection not in ("", name)
                document = copy_id(FILES.name_of(file.id) or "", name) if is_copy else file.document
                draft = replace(draft_in(by, view, file=file), id=document)
                drafts.append(with_metadata(draft, attributes[file.id] or {}))
                replaced |= {document: file.upload.number} if file.upload else {}
                version = view.version(file.row.id) if file.row else None
                versions |= {} if version is None else {document: version}
    for file in files.values():
        if file.row is not None and file.collection == name and (given := attributes[file.id]) is not None:
            change_attributes(by, file, attributes=given)
    job, _ = accept(by, drafts, collection=name, replaced=replaced, copied=versions)
    return job


def take_out(by: Caller, file: StoredFile) -> None:
    """Takes a file out of its vector store; a copy goes, and what is none, or is left alone, waits for another.

    Raises Conflict for one that is on its way in.
    """
    if file.row is None:
        raise Conflict(f"file {file.id[:80]!r} is on its way in: take it out when it is completed, or delete the file")
    with by.tenant.catalog.view() as view:
        first, draft = find_file(by, view, file_id=file.id), draft_in(by, view, file=file)
        is_spare = first.document == draft.id != file.document
        kept = draft if is_spare else replace(draft, id=by.writable(view, draft.id))
        document = by.writable(view, file.document)
    if is_spare:
        delete_document(by, file.document)
    else:
        by.core.ingest.withdraw(by.tenant, document, upload=upload_of(kept, ""), owner=by.who.key_id)


def change_attributes(by: Caller, file: StoredFile, *, attributes: Mapping[str, Scalar]) -> None:
    """Gives a file these attributes in the place of those that it has, but for what its key's filter names."""
    if file.row is None:
        raise Conflict(f"file {file.id[:80]!r} is on its way in: give it attributes when it is completed")
    bound = fields_of(by.who.bound or {})
    gone = dict.fromkeys(name for name in attributes_of(file.row.metadata) if name not in bound)
    patch = Patch.model_validate({"metadata": {**gone, **attributes}})
    patch_document(by, file.document, patch=patch)


def _open_store(by: Caller, view: CatalogView, *, vector_store_id: str) -> str:
    """The collection of a vector store that a key may put files into: also an empty one, where it sees nothing."""
    name = VECTOR_STORES.name_of(vector_store_id) or ""
    is_empty = view.collection(name) is not None and view.count(scope(name)) == 0
    return name if is_empty else collection_for(by, view, vector_store_id=vector_store_id).name


def file_for(by: Caller, view: CatalogView, *, file_id: str, collection: str) -> StoredFile:
    """The file, where it is in this collection already if it is. Raises NotFound where nothing is left of it."""
    here = file_in(by, view, file_id=file_id, collection=collection)
    file = here if here and here.state not in LOST else find_file(by, view, file_id=file_id)
    if file.state in LOST:
        raise unknown("file", file_id)
    return file


def _check_cut(chunking: Chunking | None, rules: CollectionRules) -> None:
    """Raises Conflict for another cut than the vector store's."""
    if isinstance(chunking, StaticChunking):
        sizes = (chunking.static.max_chunk_size_tokens, chunking.static.chunk_overlap_tokens)
        if sizes != (rules.chunk_tokens, 0):
            raise Conflict(
                f"files of this vector store are cut to {rules.chunk_tokens} tokens without overlap: "
                "leave chunking_strategy out"
            )
