"""The retriever: kvweave's search as nodes. Knows neither how passages are found nor how they are used."""

from collections.abc import Sequence

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import SecretStr
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle

from kvweave_client import Access, AsyncClient, Client, Connection, operations
from kvweave_client.options import Mode, SearchOptions
from kvweave_client.passages import states_of
from kvweave_client.plans import Plan, ask
from llama_index.retrievers.kvweave.connection import key_of, url_of
from llama_index.retrievers.kvweave.filters import Filters, where
from llama_index.retrievers.kvweave.nodes import nodes_of


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
        key = key_of(api_key).get_secret_value()
        self._connection = Connection(Access.within(timeout, url_of(base_url), api_key=key, max_retries=max_retries))
        super().__init__(  # pyright: ignore[reportUnknownMemberType] (of a bare Dict)
            callback_manager=callback_manager, verbose=verbose
        )

    def using(self, client: Client | None = None, aclient: AsyncClient | None = None) -> "KVWeaveRetriever":
        """The retriever with clients of yours, which have proxies or certificates; you close them."""
        self._connection.use(client, aclient)
        return self

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._connection.client.follow(self._found(query_bundle.query_str))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        client = await self._connection.asynchronous()
        return await client.follow(self._found(query_bundle.query_str))

    def _found(self, query: str) -> Plan[list[NodeWithScore]]:
        hits = yield from ask(operations.search(query, **self._options))
        states = (yield from states_of(hits)) if self._looks_up else None
        return nodes_of(hits, states, shown=self._shown)
