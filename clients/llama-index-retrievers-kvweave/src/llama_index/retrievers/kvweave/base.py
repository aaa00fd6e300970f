"""The retriever: kvweave's search as nodes. Knows neither how passages are found nor how they are used."""

from collections.abc import Iterator, Sequence

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import SecretStr
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle

from kvweave_client import AsyncClient, ChunkState, Client, Source
from kvweave_client.options import Mode, SearchOptions
from llama_index.retrievers.kvweave.connection import connection_to, key_of, url_of
from llama_index.retrievers.kvweave.filters import Filters, where
from llama_index.retrievers.kvweave.nodes import nodes_of

_LOOKED_UP = 1000  # chunks of one request


class KVWeaveRetriever(BaseRetriever):
    """Passages of kvweave. Their text stands verbatim in prompts, so that a kvweave model reuses their caches.

    `filters`: LlamaIndex's, or a dict in kvweave's own form. `neighbors`: so many chunks before and behind each hit
    come along. `llm_metadata_keys`: metadata that prompts show before the text, which is then read afresh; none of it
    by default. `cache_state`: ask for it, which is one request more. `base_url` and `api_key` are taken from
    KVWEAVE_BASE_URL and KVWEAVE_API_KEY where they are not given.
    """

    def __init__(
        self,
        collection: str | None = None,
        similarity_top_k: int = 5,
        *,
        filters: Filters | None = None,
        mode: Mode | None = None,
        neighbors: int = 0,
        rerank: bool = False,
        llm_metadata_keys: Sequence[str] = (),
        cache_state: bool = True,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        timeout: float = 60.0,
        max_retries: int = 4,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        options = SearchOptions(collection=collection, top_k=similarity_top_k, filter=where(filters), mode=mode)
        self._options: SearchOptions = {**options, "neighbors": neighbors, "rerank": rerank}
        self._shown = tuple(llm_metadata_keys)
        self._looks_up = cache_state
        key = key_of(api_key)
        self._connection = connection_to(url_of(base_url), key, timeout_s=timeout, max_retries=max_retries)
        super().__init__(  # pyright: ignore[reportUnknownMemberType] (of a bare Dict)
            callback_manager=callback_manager, verbose=verbose
        )

    def using(self, client: Client | None = None, aclient: AsyncClient | None = None) -> "KVWeaveRetriever":
        """The retriever with clients of yours, which have proxies or certificates; you close them."""
        self._connection.use(client, aclient)
        return self

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        client = self._connection.client
        hits = client.search(query_bundle.query_str, **self._options)
        return self._nodes(hits, [state for ids in self._ids(hits) for state in client.lookup(chunk_ids=ids)])

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        client = await self._connection.asynchronous()
        hits = await client.search(query_bundle.query_str, **self._options)
        return self._nodes(hits, [state for ids in self._ids(hits) async for state in client.lookup(chunk_ids=ids)])

    def _ids(self, hits: Sequence[Source]) -> Iterator[list[str]]:
        """The ids of chunks to look up, as many at once as the service takes."""
        ids = [*dict.fromkeys(hit.chunk_id for hit in hits)] if self._looks_up else []
        yield from (ids[start : start + _LOOKED_UP] for start in range(0, len(ids), _LOOKED_UP))

    def _nodes(self, hits: Sequence[Source], states: Sequence[ChunkState]) -> list[NodeWithScore]:
        known = {each.chunk_id: each for each in states} if self._looks_up else None
        return nodes_of(hits, known, shown=self._shown)
