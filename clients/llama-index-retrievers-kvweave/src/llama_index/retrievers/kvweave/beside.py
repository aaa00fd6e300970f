"""A vector store that kvweave follows. Knows neither how nodes are found nor how kvweave is told.

Deletions go to kvweave first and additions last, so that it never holds what the store does not.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from llama_index.core.bridge.pydantic import Field, SerializeAsAny
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from kvweave_client.options import Json
from llama_index.retrievers.kvweave.filters import where

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # pyright: ignore[reportMissingTypeStubs] (it has none)


@runtime_checkable
class Follower(Protocol):
    """What is told of changes in the store."""

    def register(self, nodes: Sequence[BaseNode]) -> None:
        """Register nodes that are in the store."""
        ...

    def delete(self, ref_doc_ids: str | Iterable[str]) -> None:
        """Delete all nodes of these sources."""
        ...

    def delete_nodes(self, node_ids: str | Iterable[str]) -> None:
        """Delete these nodes."""
        ...

    def clear(self) -> None:
        """Delete all nodes."""
        ...

    def fitting(self, where: Json) -> set[str]:
        """The ids of nodes whose metadata fits."""
        ...


class BesideKVWeave(BasePydanticVectorStore):
    """A store, `inner`, with `sink` following all that is added to it and deleted from it. It is asked alone."""

    inner: SerializeAsAny[BasePydanticVectorStore]
    sink: Follower = Field(exclude=True)

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
