"""Vector stores as OpenAI's clients make, list and search them: our collections. Reads and writes nothing by itself."""

import secrets
from collections import Counter

from fastapi.concurrency import run_in_threadpool

from retriever.catalog.view import CatalogView
from retriever.types import Collection
from retriever.upload_types import UploadState
from service.api import collections
from service.api.caller import By, Caller
from service.api.rendering import SourceOut, rendered
from service.api.search import SearchRequest, search
from service.documents.collection_rules import CollectionRules, sees_collection
from service.errors import Conflict, Invalid
from service.openai.attached_files import attach_files, file_for
from service.openai.file_bodies import AttachedFile
from service.openai.list_pages import At, page_of
from service.openai.stored_files import FILES, VECTOR_STORES, attributes_of, collection_for, copied
from service.openai.vector_store_bodies import (
    Chunking,
    FileCounts,
    FoundPage,
    FoundPassage,
    NewVectorStore,
    StaticChunking,
    TextContent,
    VectorStore,
    VectorStoreChange,
    VectorStoreDeleted,
    VectorStoreList,
    VectorStoreQuery,
)


def create_vector_store(by: By, wanted: NewVectorStore) -> VectorStore:
    """Make a vector store."""
    by.check_unbound("make or change a whole collection")
    name = wanted.name or f"store-{secrets.token_hex(8)}"
    vector_store_id = VECTOR_STORES.id_of(name)
    with by.tenant.catalog.view() as view:
        for each in wanted.file_ids:
            file_for(by, view, file_id=each, collection=name)
    rules = CollectionRules(_tokens(by, wanted.chunking_strategy), by.tenant.model.system)
    if not by.core.ingest.put_collection(by.tenant, name, rules=rules, only_new=True):
        raise Conflict(
            f"there is a vector store of the name {name[:80]!r} already, which is {vector_store_id[:120]}: "
            "use it, or take another name"
        )
    if wanted.file_ids:
        attach_files(
            by, vector_store_id, wanted=[AttachedFile.model_validate({"file_id": each}) for each in wanted.file_ids]
        )
    return get_vector_store(by, vector_store_id)


def list_vector_stores(by: By, at: At) -> VectorStoreList:
    """List the vector stores."""
    with by.tenant.catalog.view() as view:
        seen = [each for each in view.collections() if sees_collection(view, each.name, bound=by.who.bound)]
        by_id = {VECTOR_STORES.id_of(each.name): each for each in seen}
        page = page_of([(each.created, name) for name, each in by_id.items()], at)
        shown = [_shown(by, view, collection=by_id[each]) for each in page.ids]
    return rendered(VectorStoreList, page, data=shown)


def get_vector_store(by: By, vector_store_id: str) -> VectorStore:
    """Show a vector store."""
    with by.tenant.catalog.view() as view:
        return _shown(by, view, collection=collection_for(by, view, vector_store_id=vector_store_id))


def change_vector_store(by: By, vector_store_id: str, *, change: VectorStoreChange) -> VectorStore:
    """Change a vector store: its name is its id, so both stay."""
    found = get_vector_store(by, vector_store_id)
    if change.name is not None and change.name != found.name:
        raise Conflict(f"a vector store keeps its name {found.name[:80]!r}, of which its id is made: leave it out")
    return found


def delete_vector_store(by: By, vector_store_id: str) -> VectorStoreDeleted:
    """Delete a vector store with all its files, and the caches of chunks that no other one holds."""
    collections.delete_collection(by, _seen(by, vector_store_id).name)
    return VectorStoreDeleted(id=vector_store_id)


async def search_vector_store(by: By, vector_store_id: str, *, wanted: VectorStoreQuery) -> FoundPage:
    """Passages of a vector store that fit a query best."""
    name = (await run_in_threadpool(_seen, by, vector_store_id)).name
    queries = [wanted.query] if isinstance(wanted.query, str) else wanted.query
    asked: dict[str, object] = {"collection": name, "top_k": wanted.max_num_results}
    if wanted.filters is not None:
        asked["filter"] = wanted.filters.to_filter()
    hits = [
        hit
        for query in queries
        for hit in (await search(by, SearchRequest.model_validate({**asked, "query": query}))).hits
    ]
    best = {hit.chunk_id: hit for hit in sorted(hits, key=lambda each: each.score)}
    found = [_found(each, name) for each in sorted(best.values(), key=lambda each: -each.score)]
    least = wanted.ranking_options and wanted.ranking_options.score_threshold
    within = [each for each in found[: wanted.max_num_results] if least is None or each.score >= least]
    return FoundPage(search_query=queries, data=within)


def _seen(by: Caller, vector_store_id: str) -> Collection:
    with by.tenant.catalog.view() as view:
        return collection_for(by, view, vector_store_id=vector_store_id)


def _found(hit: SourceOut, collection: str) -> FoundPassage:
    document = copied(hit.document_id, collection)
    return FoundPassage(
        file_id=FILES.id_of(document),
        filename=hit.title or document,
        score=hit.score,
        attributes=attributes_of(hit.metadata),
        content=[TextContent(text=hit.text)],
    )


def _tokens(by: Caller, chunking: Chunking | None) -> int:
    """How long the chunks of a new vector store are."""
    if not isinstance(chunking, StaticChunking):
        return by.core.settings.chunk_tokens
    if chunking.static.chunk_overlap_tokens:
        raise Invalid(
            "chunks do not overlap here, as each is computed once and placed anywhere: set chunk_overlap_tokens to 0",
            field="chunking_strategy.static.chunk_overlap_tokens",
        )
    return chunking.static.max_chunk_size_tokens


def _shown(by: Caller, view: CatalogView, *, collection: Collection) -> VectorStore:
    allowed = by.allowed(collection=collection.name)
    states = Counter(each.state for each in view.unready(collection.name) if by.owns(each.job))
    counts = FileCounts.of({**states, UploadState.READY: view.count(allowed)})
    return VectorStore(
        id=VECTOR_STORES.id_of(collection.name),
        created_at=int(collection.created),
        name=collection.name,
        usage_bytes=view.nbytes(allowed),
        file_counts=counts,
        status="in_progress" if counts.in_progress else "completed",
    )
