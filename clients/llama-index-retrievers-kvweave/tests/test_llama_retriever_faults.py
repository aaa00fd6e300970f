"""A retriever whose service refuses or hangs: a clear error, and no nodes."""

from collections.abc import Awaitable, Callable

import pytest
from llama_index.core.schema import NodeWithScore

from clients.tests.canned import SOURCE
from clients.tests.scripted import Scripted, end, hang, reply, send
from kvweave_client import TimedOut, Unavailable
from kvweave_client.passages import CACHE
from llama_index.retrievers.kvweave import KVWeaveRetriever

HITS = send(reply({"hits": [SOURCE]}))
STATES = send(reply({"chunks": [{"chunk_id": "0" * 32, "state": "stored", "bytes": 3, "tier": "ram"}], "unknown": []}))
BUSY = send(reply({"detail": "too much at once"}, status=429, Retry_After="0"))
STARTING = send(reply({"detail": "the model loads"}, status=503, Retry_After="0"))

Retrieve = Callable[[KVWeaveRetriever], Awaitable[list[NodeWithScore]]]


async def _retrieve(retriever: KVWeaveRetriever) -> list[NodeWithScore]:
    return retriever.retrieve("Halio")


async def _aretrieve(retriever: KVWeaveRetriever) -> list[NodeWithScore]:
    return await retriever.aretrieve("Halio")


@pytest.fixture(params=[_retrieve, _aretrieve])
def retrieve(request: pytest.FixtureRequest) -> Retrieve:
    return request.param


async def test_a_refusal_is_an_error_after_as_many_trials_as_it_may_have(server: Scripted, retrieve: Retrieve) -> None:
    server.always(STARTING)
    with pytest.raises(Unavailable, match="the model loads"):
        await retrieve(KVWeaveRetriever(base_url=server.base_url, max_retries=2))
    assert len(server.requests) == 3


async def test_a_service_that_hangs_is_given_up(server: Scripted, retrieve: Retrieve) -> None:
    server.always(hang())
    with pytest.raises(TimedOut):
        await retrieve(KVWeaveRetriever(base_url=server.base_url, timeout=0.3))


async def test_what_was_refused_or_lost_is_asked_again(server: Scripted, retrieve: Retrieve) -> None:
    server.script(BUSY, STARTING, end(), HITS, BUSY, STATES)
    [found] = await retrieve(KVWeaveRetriever(base_url=server.base_url))
    assert (found.text, found.node.metadata[CACHE]) == ("Halio keeps a badger.", "stored")
    assert len(server.requests) == 6
