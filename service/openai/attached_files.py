"""How files come into a vector store and out of it: documents are put into a collection, and taken out again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retriever.catalog.view import CatalogView
from retriever.documents import Draft
from retriever.filter_condition import fields_of, scope
from service.api.caller import Caller, unknown
from service.api.documents import Patch, patch_document
from service.api.uploads import accept, with_metadata
from service.documents.collection_rules import CollectionRules, rules_of
from service.documents.drafts import upload_of
from service.errors import Conflict
from service.openai.attribute_filters import Scalar
from service.openai.file_bodies import AttachedFile
from service.openai.object_ids import FILES, VECTOR_STORES
from service.openai.stored_files import LOST, StoredFile, attributes_of, collection_for, draft_in, find_file
from service.openai.vector_store_bodies import Chunking, StaticChunking


def attach_files(by: Caller, vector_store_id: str, *, wanted: Sequence[AttachedFile]) -> str:
    """Puts files into a vector store and returns the id of the job. Those that are in it already get their attributes.

    A file is in one vector store: Conflict is raised for one that is in another.
    """
    drafts: list[Draft] = []
    replaced: dict[str, int] = {}
    with by.tenant.catalog.view() as view:
        name = _open_store(by, view, vector_store_id=vector_store_id)
        rules = rules_of(view, name)
        files = {each.file_id: find_file(by, view, file_id=each.file_id) for each in wanted}
        attributes = {each.file_id: each.attributes for each in wanted}
        for each in wanted:
            _check_cut(each.chunking_strategy, rules)
        for file in files.values():
            check_place(file, name)
            if file.row is None:
                draft = draft_in(by, view, file=file)
                drafts.append(with_metadata(draft, attributes[file.id] or {}))
                replaced |= {draft.id: file.upload.number} if file.upload else {}
    for file in files.values():
        if file.row is not None and (given := attributes[file.id]) is not None:
            change_attributes(by, file, attributes=given)
    job, _ = accept(by, drafts, collection=name, replaced=replaced)
    return job


def take_out(by: Caller, file: StoredFile) -> None:
    """Takes a file out of its vector store; it waits for another, with what its key's filter names. Raises Conflict."""
    if file.row is None:
        raise Conflict(f"file {file.id[:80]!r} is on its way in: take it out when it is completed, or delete the file")
    with by.tenant.catalog.view() as view:
        draft = draft_in(by, view, file=file)
        kept = replace(draft, id=by.writable(view, draft.id))
    by.core.ingest.withdraw(by.tenant, upload_of(kept, ""), owner=by.who.key_id)


def change_attributes(by: Caller, file: StoredFile, *, attributes: Mapping[str, Scalar]) -> None:
    """Gives a file these attributes in the place of those that it has, but for what its key's filter names."""
    if file.row is None:
        raise Conflict(f"file {file.id[:80]!r} is on its way in: give it attributes when it is completed")
    bound = fields_of(by.who.bound or {})
    gone = dict.fromkeys(name for name in attributes_of(file.row.metadata) if name not in bound)
    patch = Patch.model_validate({"metadata": {**gone, **attributes}})
    patch_document(by, FILES.name_of(file.id) or "", patch=patch)


def _open_store(by: Caller, view: CatalogView, *, vector_store_id: str) -> str:
    """The collection of a vector store that a key may put files into: also an empty one, where it sees nothing."""
    name = VECTOR_STORES.name_of(vector_store_id) or ""
    is_empty = view.collection(name) is not None and view.count(scope(name)) == 0
    return name if is_empty else collection_for(by, view, vector_store_id=vector_store_id).name


def check_place(file: StoredFile, name: str) -> None:
    """Raises NotFound for a file of which nothing is left, and Conflict for one that is in another vector store."""
    if file.state in LOST:
        raise unknown("file", file.id)
    if file.collection not in ("", name):
        raise Conflict(
            f"file {file.id[:80]!r} is in {VECTOR_STORES.id_of(file.collection)[:120]}, and a file is in one vector "
            "store here: take it out there, or upload it again"
        )


def _check_cut(chunking: Chunking | None, rules: CollectionRules) -> None:
    """Raises Conflict for another cut than the vector store's."""
    if isinstance(chunking, StaticChunking):
        sizes = (chunking.static.max_chunk_size_tokens, chunking.static.chunk_overlap_tokens)
        if sizes != (rules.chunk_tokens, 0):
            raise Conflict(
                f"files of this vector store are cut to {rules.chunk_tokens} tokens without overlap: "
                "leave chunking_strategy out"
            )
