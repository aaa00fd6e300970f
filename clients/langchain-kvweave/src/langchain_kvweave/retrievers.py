"""Search in kvweave as a retriever. Knows neither prompts nor models."""

from collections.abc import Mapping
from typing import Literal, cast

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.structured_query import FilterDirective, StructuredQuery
from pydantic import AliasChoices, Field, InstanceOf

from kvweave_client import operations
from kvweave_client.options import SearchOptions
from kvweave_client.passages import states_of
from kvweave_client.plans import Plan, ask
from langchain_kvweave.connection import Connected
from langchain_kvweave.documents import documents_of
from langchain_kvweave.filters import filter_of

K = 4
_OPTIONS = ("k", "collection", "filter", "mode", "neighbors", "rerank")


class KVWeaveRetriever(BaseRetriever, Connected):
    """The passages of kvweave that fit best.

    A document's id is that of its chunk. Its metadata are those that the user put in, and names that begin with
    `kvweave_`: `kvweave_chunk_id`, `kvweave_document_id`, `kvweave_score`, `kvweave_title`, `kvweave_page`,
    `kvweave_start` and `kvweave_end` where they are known, and `kvweave_cache`, which is `stored` where KV is reused.

    `neighbors`: so many chunks before and behind each hit come along. `cache_state`: asks for it, once for all hits.
    Every option of a search may be given with a call, too: `retriever.invoke("...", k=2, filter={"lang": "en"})`.
    """

    collection: str | None = None
    k: int = Field(default=K, ge=1, validation_alias=AliasChoices("k", "top_k"))
    filter: Mapping[str, object] | InstanceOf[FilterDirective] | InstanceOf[StructuredQuery] | None = None
    mode: Literal["lexical", "vector", "hybrid"] | None = None
    neighbors: int = Field(default=0, ge=0)
    rerank: bool = False
    cache_state: bool = True

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: object
    ) -> list[Document]:
        return self.followed(self._found(query, kwargs))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: object
    ) -> list[Document]:
        return await self.afollowed(self._found(query, kwargs))

    def _found(self, query: str, given: Mapping[str, object]) -> Plan[list[Document]]:
        hits = yield from ask(operations.search(query, **self._options(given)))
        states = (yield from states_of(hits)) if self.cache_state else {}
        return documents_of(hits, states)

    def _options(self, given: Mapping[str, object]) -> SearchOptions:
        """The options of this call over those of the retriever."""
        called = {"k" if name == "top_k" else name: value for name, value in given.items()}
        unknown = sorted(set(called) - set(_OPTIONS))
        if unknown:
            raise TypeError(f"a search has no option {unknown[0]!r}: it takes {', '.join(_OPTIONS)}")
        wanted: dict[str, object] = {name: getattr(self, name) for name in _OPTIONS} | called
        wanted["top_k"] = wanted.pop("k")
        wanted["filter"] = filter_of(wanted["filter"])
        return cast(SearchOptions, wanted)
