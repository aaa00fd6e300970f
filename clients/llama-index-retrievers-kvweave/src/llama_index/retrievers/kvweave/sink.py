"""The sink: registers nodes in kvweave beside whatever index finds them, and a vector store that it follows.

That index is the truth, kvweave follows.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from llama_index.core.bridge.pydantic import Field, PrivateAttr, SecretStr, SerializeAsAny, field_validator
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from kvweave_client import Access, Client, Connection
from kvweave_client.options import Json, NewDocument
from llama_index.retrievers.kvweave.books import Books, Owed
from llama_index.retrievers.kvweave.connection import key_of, url_of
from llama_index.retrievers.kvweave.filters import where
from llama_index.retrievers.kvweave.nodes import document_of, ref_doc_of
from llama_index.retrievers.kvweave.registry import Registry

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # pyright: ignore[reportMissingTypeStubs] (it has none)


class KVWeaveSink(TransformComponent):
    """Registers nodes in a collection of kvweave, and returns them as they are.

    What is registered is the text that prompts hold: the node's, with the metadata that a model is shown. So it stands
    behind whatever changes nodes. `replaces`: nodes of the same source that came before and are not among the new ones
    are deleted, so a call has all nodes of a source. `search`: kvweave's own search finds the nodes too; it holds for
    a collection that the sink makes. `strict`: a service that does not answer is an error. Without it the sink warns,
    goes on, and makes up for deletions later; a text that is not registered is only computed again. `base_url` and
    `api_key` are taken from KVWEAVE_BASE_URL and KVWEAVE_API_KEY where they are not given.
    """

    collection: str = Field(description="Of kvweave, for these nodes alone", min_length=1)
    metadata_mode: MetadataMode = Field(default=MetadataMode.LLM, description="Which metadata is part of the text")
    replaces: bool = Field(default=True, description="Whether nodes replace those that their sources had before")
    search: bool = Field(default=False, description="Whether kvweave's own search finds them")
    strict: bool = Field(default=False, description="Whether a service that does not answer is an error")
    base_url: str = Field(default="", validate_default=True, description="Of the service")
    api_key: str | SecretStr = Field(default="", validate_default=True, exclude=True, repr=False)
    timeout: float = Field(default=60.0, gt=0, description="Seconds, of one request")
    max_retries: int = Field(default=4, ge=0, description="Of one request")

    _books: Books = PrivateAttr()

    @field_validator("base_url", mode="before")
    @classmethod
    def _find_url(cls, given: str) -> str:
        return url_of(given)

    @field_validator("api_key", mode="before")
    @classmethod
    def _find_key(cls, given: str | SecretStr) -> SecretStr:
        return key_of(given or None)

    def model_post_init(self, context: object, /) -> None:
        """Makes the connection; nothing is sent yet."""
        key = key_of(self.api_key).get_secret_value()
        access = Access.within(self.timeout, self.base_url, api_key=key, max_retries=self.max_retries)
        self._books = Books(Connection(access), self.collection, search=self.search, timeout_s=self.timeout)

    @classmethod
    def class_name(cls) -> str:
        """The name that it is serialized by."""
        return "KVWeaveSink"

    def to_dict(self, **kwargs: object) -> dict[str, object]:
        """A new dict each time: a pipeline's cache would pass over nodes that kvweave has lost or deleted since."""
        return {**super().to_dict(**kwargs), "run": uuid4().hex}

    def using(self, client: Client) -> Self:
        """The sink with a client of yours, with proxies or certificates; you close it. Another process has its own."""
        self._books.connection.use(client, None)
        return self

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: object) -> Sequence[BaseNode]:
        """Registers nodes, as a pipeline does it."""
        self._put(nodes, replaces=self.replaces)
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: object) -> Sequence[BaseNode]:
        """Registers nodes, in a thread."""
        return await asyncio.to_thread(self.__call__, nodes, **kwargs)

    def register(self, nodes: Sequence[BaseNode]) -> None:
        """Put nodes in, and delete none but those of their ids that came before."""
        self._put(nodes, replaces=False)

    def delete(self, ref_doc_ids: str | Iterable[str]) -> None:
        """Delete all nodes of these source documents."""
        gone = _set(ref_doc_ids)
        self._books.write(
            lambda registry: registry.delete(registry.nodes_of(gone)), owing=Owed(ref_docs=gone), strict=self.strict
        )

    def delete_nodes(self, node_ids: str | Iterable[str]) -> None:
        """Delete these nodes."""
        gone = _set(node_ids)
        self._books.write(lambda registry: registry.delete(gone), owing=Owed(nodes=gone), strict=self.strict)

    def clear(self) -> None:
        """Delete all nodes."""
        self._books.write(Registry.clear, owing=Owed(everything=True), strict=self.strict)

    def registered(self) -> set[str]:
        """The ids of all nodes that kvweave holds."""
        return self._books.read(Registry.every)

    def fitting(self, where: Json) -> set[str]:
        """The ids of nodes whose metadata fits a filter of kvweave's; of those that were computed."""
        return self._books.read(lambda registry: {*registry.fitting(where)})

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the caches of what was registered here are computed. Raises where that fails or takes longer."""
        self._books.read(lambda registry: registry.wait(timeout_s) or set())

    @property
    def owed(self) -> Owed:
        """Deletions that the service did not take yet."""
        return self._books.owed

    def settle(self) -> None:
        """Make up for what is owed, now. Raises where the service does not answer."""
        self._books.settle()

    def beside(self, vector_store: BasePydanticVectorStore) -> "BesideKVWeave":
        """The vector store, with kvweave following all that is added to it and deleted from it."""
        return BesideKVWeave(
            inner=vector_store,
            sink=self,
            stores_text=vector_store.stores_text,
            is_embedding_query=vector_store.is_embedding_query,
        )

    def _put(self, nodes: Sequence[BaseNode], *, replaces: bool) -> None:
        if not nodes:
            return
        documents: list[NewDocument] = []
        unfit: set[str] = set()
        for node in nodes:
            document = document_of(node, self.collection, mode=self.metadata_mode)
            documents += [document] if document else []
            unfit |= set() if document else {node.node_id}
        ids = {node.node_id for node in nodes}
        sources = {ref_doc_of(node) for node in nodes} if replaces else set[str]()
        owing = Owed(nodes=set(ids), ref_docs=set(sources))

        def act(registry: Registry) -> None:
            stale = (registry.nodes_of(sources) - ids) | unfit
            owing.nodes |= stale
            owing.ref_docs.clear()
            for safe in registry.put(documents):
                owing.nodes.difference_update(safe)
            registry.delete(stale)

        self._books.write(act, owing=owing, strict=self.strict)


class BesideKVWeave(BasePydanticVectorStore):
    """A store, `inner`, with `sink` following all that is added to it and deleted from it. It is asked alone.

    Deletions go to kvweave first and additions last, so that it never holds what the store does not.
    """

    inner: SerializeAsAny[BasePydanticVectorStore]
    sink: KVWeaveSink = Field(exclude=True)

    @classmethod
    def class_name(cls) -> str:
        """The name that it is serialized by."""
        return "BesideKVWeave"

    @property
    def client(self) -> object:
        """The client of the inner store."""
        return self.inner.client

    def add(self, nodes: Sequence[BaseNode], **kwargs: object) -> list[str]:
        """Adds nodes to the store and the sink. Their text and metadata are registered as prompts will hold them."""
        ids = self.inner.add(nodes, **kwargs)
        self.sink.register(nodes)
        return ids

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: object) -> list[str]:
        """Adds nodes to the store and the sink."""
        ids = await self.inner.async_add(nodes, **kwargs)
        await asyncio.to_thread(self.sink.register, nodes)
        return ids

    def delete(self, ref_doc_id: str, **delete_kwargs: object) -> None:
        """Deletes all nodes of a source from the sink and the store."""
        self.sink.delete(ref_doc_id)
        self.inner.delete(ref_doc_id, **delete_kwargs)

    async def adelete(self, ref_doc_id: str, **delete_kwargs: object) -> None:
        """Deletes all nodes of a source from the sink and the store."""
        await asyncio.to_thread(self.sink.delete, ref_doc_id)
        await self.inner.adelete(ref_doc_id, **delete_kwargs)

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: object
    ) -> None:
        """Deletes from sink and store the nodes that the inner store means."""
        self.sink.delete_nodes(self._meant(node_ids, filters))
        self.inner.delete_nodes(node_ids, filters, **delete_kwargs)

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: object
    ) -> None:
        """Deletes from sink and store the nodes that the inner store means."""
        meant = await asyncio.to_thread(self._meant, node_ids, filters)
        await asyncio.to_thread(self.sink.delete_nodes, meant)
        await self.inner.adelete_nodes(node_ids, filters, **delete_kwargs)

    def clear(self) -> None:
        """Clears the sink and the store."""
        self.sink.clear()
        self.inner.clear()

    async def aclear(self) -> None:
        """Clears the sink and the store."""
        await asyncio.to_thread(self.sink.clear)
        await self.inner.aclear()

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """The nodes of the inner store."""
        return self.inner.get_nodes(node_ids, filters)

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """The nodes of the inner store."""
        return await self.inner.aget_nodes(node_ids, filters)

    def query(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:
        """Asks the inner store."""
        return self.inner.query(query, **kwargs)

    async def aquery(self, query: VectorStoreQuery, **kwargs: object) -> VectorStoreQueryResult:
        """Asks the inner store."""
        return await self.inner.aquery(query, **kwargs)

    def persist(self, persist_path: str, fs: "AbstractFileSystem | None" = None) -> None:
        """Persists the inner store: kvweave keeps what it is told."""
        self.inner.persist(persist_path, fs)

    def _meant(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> set[str]:
        """The nodes that a deletion concerns. Stores differ in what a filter fits: the inner one tells, if it can."""
        if node_ids is None and (filters is None or not filters.filters):
            raise ValueError("delete_nodes takes node_ids, filters, or both: use clear() to delete all nodes")
        if filters is None or not filters.filters:
            return set(node_ids or ())
        try:
            return {node.node_id for node in self.inner.get_nodes(node_ids, filters)}
        except NotImplementedError:
            fitting = self.sink.fitting(where(filters) or {})
            return fitting if node_ids is None else fitting & {*node_ids}


def _set(ids: str | Iterable[str]) -> set[str]:
    return {ids} if isinstance(ids, str) else {*ids}
