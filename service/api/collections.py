"""Collections over HTTP: made, listed, shown, deleted; their rules with defaults and limits, and their fillers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fastapi import Response
from pydantic import BaseModel, Field

from retriever.catalog.view import CatalogView
from retriever.types import Collection, FillerPassage
from service.api.caller import By, Caller
from service.api.fields import ChunkId, CollectionName, Strict, Whole
from service.api.rendering import rendered
from service.documents.collection_rules import CollectionRules, no_collection
from service.documents.fillers import choose
from service.documents.tenants import SWEEP_S
from service.errors import Conflict
from service.model.prompt_builder import SYSTEM


class Rules(Strict):
    """How the collection's documents are cut. Of one that is there already they change only future documents."""

    chunk_tokens: Whole = Field(256, ge=16, le=4096, description="Tokens of a chunk at most")
    system: str | None = Field(
        None,
        max_length=20_000,
        description="The system prompt of its questions, behind the first of which chunks are captured; null for "
        "kvweave's own, which stays what it is where the collection had that",
    )
    embedder: str = Field("", max_length=500, description="Its name; empty for the one in the settings")
    search: bool = Field(
        True,
        description="Whether its chunks are embedded and found; false where another index finds them: "
        "chunk_ids and recognition in a text reuse their caches all the same",
    )
    in_context: bool = Field(
        True,
        description="Whether its chunks are captured behind passages of the collection, and what is before them "
        "in their document: nearer to full prefill, and a deleted document takes the caches of others with it",
    )
    floor: float | None = Field(
        None,
        ge=-1,
        le=10,
        description="What a find has to do with a question at least, as `relevance` of an answer tells it; null for "
        "what is fitted for the embedder, or for words",
    )
    on_empty: Literal["answer", "refuse"] = Field(
        "answer", description="Whether a question for which nothing is found is answered all the same, or refused"
    )
    filler: list[ChunkId] | None = Field(
        None,
        max_length=8,
        description="Ids of chunks that its chunks are captured behind, which are then captured anew; null leaves "
        "what there is, an empty list has it chosen",
    )


class FillerOut(BaseModel):
    """A passage that the collection's chunks are captured behind."""

    document_id: str
    chunk_id: str
    title: str


class CollectionOut(BaseModel):
    """A collection with its rules. `documents`: how many serve. `system` is null for a key with a filter."""

    name: str
    chunk_tokens: int
    system: str | None
    embedder: str
    search: bool
    in_context: bool
    floor: float | None
    on_empty: str
    documents: int
    filler: list[FillerOut]


class CollectionList(BaseModel):
    """The collections in the order of their names."""

    collections: list[CollectionOut]


class CollectionDeleted(BaseModel):
    """A collection that was deleted, and what went with it."""

    name: str
    documents: int
    chunks_removed: int
    chunks_kept: int
    done: bool


def list_collections(by: By) -> CollectionList:
    """List the collections in the order of their names. A key with a filter sees those that have documents for it."""
    with by.tenant.catalog.view() as view:
        shown = [_shown(by, view, collection=each) for each in view.collections()]
    return CollectionList(collections=[each for each in shown if each])


def get_collection(by: By, name: CollectionName) -> CollectionOut:
    """Show the rules of a collection."""
    with by.tenant.catalog.view() as view:
        collection = view.collection(name)
        shown = collection and _shown(by, view, collection=collection)
        if not shown:
            raise no_collection(view, name, bound=by.who.bound)
    return shown


def put_collection(by: By, name: CollectionName, *, rules: Rules, response: Response) -> CollectionOut:
    """Make a collection, or give it other rules. They hold for documents that come from now on, and change no other.

    Chunks stay captured behind the system prompt that the collection had first.
    """
    by.check_unbound("make or change a whole collection")
    tenant = by.tenant
    with tenant.catalog.view() as view:
        found = view.collection(name)
    is_new = found is None
    kept = CollectionRules(**rules.model_dump(exclude={"filler"}))
    if kept.system is None and (found is None or CollectionRules.from_json(found.rules).system is not None):
        kept = replace(kept, system=tenant.model.system)
    by.core.ingest.put_collection(tenant, name, rules=kept)
    if rules.filler is not None:
        _fill_with(by, name, chunks=rules.filler)
    with tenant.catalog.view() as view:
        documents, filler = view.count(by.allowed(collection=name)), view.fillers(name)
    response.status_code = 201 if is_new else 200
    return _body(name, kept, documents=documents, filler=filler)


def _fill_with(by: Caller, name: str, *, chunks: Sequence[str]) -> None:
    """Makes these chunks the filler, each of its own domain; none is what is chosen without being asked."""
    tenant = by.tenant
    with tenant.catalog.change() as change:
        missing = choose(change, name, chunks=chunks, fields=tenant.captures.domain_fields)
        if missing:
            raise Conflict(f"no document of {name!r} that serves has the chunk {missing!r}: name others as its filler")
    tenant.sweep(SWEEP_S)
    by.core.ingest.wake(tenant.name)


def delete_collection(by: By, name: CollectionName) -> CollectionDeleted:
    """Delete a collection with all its documents, and the caches of chunks that no other collection holds."""
    by.check_unbound("make or change a whole collection")
    tenant = by.tenant
    with tenant.catalog.view() as view:
        if view.collection(name) is None:
            raise no_collection(view, name, bound=None)
        documents = view.count(by.allowed(collection=name))
    removed = tenant.delete_collection(name)
    return CollectionDeleted(
        name=name,
        documents=documents,
        chunks_removed=len(removed.chunks),
        chunks_kept=len(removed.kept),
        done=removed.done,
    )


def _shown(by: Caller, view: CatalogView, *, collection: Collection) -> CollectionOut | None:
    documents = view.count(by.allowed(collection=collection.name))
    if by.is_bound and not documents:
        return None
    rules = CollectionRules.from_json(collection.rules)
    filler = {} if by.is_bound else view.fillers(collection.name)
    shown = _body(collection.name, rules, documents=documents, filler=filler)
    # Its system prompt may speak of what the key does not see.
    return shown.model_copy(update={"system": None}) if by.is_bound else shown


def _body(
    name: str, rules: CollectionRules, *, documents: int, filler: Mapping[str, Sequence[FillerPassage]]
) -> CollectionOut:
    passages = (each for found in filler.values() for each in found)
    filled = [FillerOut(document_id=each.document, chunk_id=each.chunk, title=each.title) for each in passages]
    system = SYSTEM if rules.system is None else rules.system
    return rendered(CollectionOut, rules, name=name, system=system, documents=documents, filler=filled)
