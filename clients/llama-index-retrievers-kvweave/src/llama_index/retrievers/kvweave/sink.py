"""The sink: registers nodes in kvweave beside whatever index finds them. That index is the truth, kvweave follows."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Self
from uuid import uuid4

from llama_index.core.bridge.pydantic import Field, PrivateAttr, SecretStr, field_validator
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from kvweave_client import Client
from kvweave_client.options import Json, NewDocument
from llama_index.retrievers.kvweave.beside import BesideKVWeave
from llama_index.retrievers.kvweave.books import Books, Owed
from llama_index.retrievers.kvweave.connection import connection_to, key_of, url_of
from llama_index.retrievers.kvweave.nodes import document_of, ref_doc_of
from llama_index.retrievers.kvweave.registry import Registry


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
        key = key_of(self.api_key)
        way = connection_to(self.base_url, key, timeout_s=self.timeout, max_retries=self.max_retries)
        self._books = Books(way, self.collection, search=self.search, timeout_s=self.timeout)

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


def _set(ids: str | Iterable[str]) -> set[str]:
    return {ids} if isinstance(ids, str) else {*ids}
