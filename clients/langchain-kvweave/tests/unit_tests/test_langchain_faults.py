"""LangChain's classes over a service that is slow, breaks off, refuses, or is none: clear errors, and nothing twice."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

import kvweave_client as kv
from clients.tests import canned
from clients.tests.scripted import Scripted, Step, end, hang, opened, reply, reset, send
from kvweave_client.options import Json
from langchain_kvweave import ChatKVWeave, KVWeaveRetriever, KVWeaveSink
from langchain_kvweave.documents import document_of

HTML = b"<html><h1>Log in first</h1></html>"
PROBLEM = "application/problem+json"
GONE = {"error": {"message": "no chunk is known", "type": "invalid_request_error"}}


async def invoke(chain: Runnable[Any, str]) -> str:
    return chain.invoke({"question": "why?"})


async def ainvoke(chain: Runnable[Any, str]) -> str:
    return await chain.ainvoke({"question": "why?"})


async def stream(chain: Runnable[Any, str]) -> str:
    return "".join(chain.stream({"question": "why?"}))


async def astream(chain: Runnable[Any, str]) -> str:
    return "".join([part async for part in chain.astream({"question": "why?"})])


Asking = Callable[[Runnable[Any, str]], Awaitable[str]]
WAYS = pytest.mark.parametrize("ask", [invoke, ainvoke, stream, astream])
GOOD = {
    False: reply(canned.COMPLETION),
    True: reply("".join(canned.CHAT_EVENTS).encode(), kind="text/event-stream"),
}


def chain_over(base_url: str, **options: Any) -> Runnable[Any, str]:  # noqa: ANN401 (any)
    model = ChatKVWeave(**{"base_url": base_url, "timeout": 20, **options})
    return ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()


def good(ask: Asking) -> bytes:
    return GOOD[ask in (stream, astream)]


@WAYS
async def test_what_was_refused_is_asked_again_when_the_service_says(ask: Asking, server: Scripted) -> None:
    server.script(send(reply({"detail": "wait"}, status=429, kind=PROBLEM, Retry_After="0")), send(good(ask)))
    assert await ask(chain_over(server.base_url)) == "badger"
    assert len(server.requests) == 2


FAULTS: dict[str, tuple[Step, type[kv.KVWeaveError]]] = {  # the client's own tests have all that there are
    "another page": (send(reply(HTML, kind="text/html")), kv.UnexpectedAnswer),
    "no answer": (end(), kv.ConnectionFailed),
    "later": (send(reply({"detail": "too much"}, status=429, kind=PROBLEM, Retry_After="3600")), kv.RateLimited),
}


@WAYS
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_has_its_exception_and_is_met_once(ask: Asking, fault: str, server: Scripted) -> None:
    step, kind = FAULTS[fault]
    server.script(step)
    with pytest.raises(kind):
        await ask(chain_over(server.base_url))
    assert len(server.requests) == 1


@WAYS
async def test_a_service_that_says_nothing_is_left_in_time(ask: Asking, server: Scripted) -> None:
    server.script(hang())
    with pytest.raises(kv.TimedOut):
        await ask(chain_over(server.base_url, timeout=0.2))
    server.wait_gone()
    assert len(server.requests) == 1


@pytest.mark.parametrize("cut", [end, reset])
async def test_a_stream_that_is_cut_gives_what_came_and_then_the_error(
    cut: Callable[[bytes], Step], server: Scripted
) -> None:
    heard: list[str] = []

    def listen() -> None:
        heard.extend(chain_over(server.base_url).stream({"question": "why?"}))

    async def alisten() -> None:
        async for part in chain_over(server.base_url).astream({"question": "why?"}):
            heard.append(part)

    server.script(*[cut(opened(*canned.CHAT_EVENTS[:2]))] * 2)
    with pytest.raises(kv.StreamCut, match="cut off"):
        listen()
    with pytest.raises(kv.StreamCut, match="cut off"):
        await alisten()
    half = len(heard) // 2
    assert "".join(heard[:half]) and heard[:half] == heard[half:] and len(server.requests) == 2


def with_documents(base_url: str) -> Runnable[Any, str]:
    known = document_of(kv.Source("ab" * 16, "d", "a title", 0.5, "A known passage.", {}))
    model = ChatKVWeave(base_url=base_url).bind(documents=[known, Document("A loose one.")])
    return ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()


@WAYS
async def test_a_chunk_that_is_gone_is_asked_about_once_more_as_text(ask: Asking, server: Scripted) -> None:
    server.script(send(reply(GONE, status=404)), send(good(ask)))
    await ask(with_documents(server.base_url))
    first, second = (json.loads(each.body) for each in server.requests)
    assert (first["chunk_ids"], [each["text"] for each in first["documents"]]) == (["ab" * 16], ["A loose one."])
    assert "chunk_ids" not in second
    assert second["documents"] == [
        {"text": "A known passage.", "title": "a title", "id": "ab" * 16},
        {"text": "A loose one."},
    ]


@WAYS
async def test_what_is_not_found_twice_is_an_error(ask: Asking, server: Scripted) -> None:
    server.script(*[send(reply(GONE, status=404))] * 2)
    with pytest.raises(kv.NotFound, match="no chunk is known"):
        await ask(with_documents(server.base_url))
    server.script(send(reply(GONE, status=404)))
    with pytest.raises(kv.NotFound):
        await ask(chain_over(server.base_url))
    assert len(server.requests) == 3


SEARCHED: Json = {"hits": []}


async def test_retriever_and_sink_raise_the_same(server: Scripted) -> None:
    step, kind = FAULTS["another page"]
    retriever = KVWeaveRetriever(base_url=server.base_url, max_retries=0)
    sink = KVWeaveSink(base_url=server.base_url, collection="c", max_retries=0)
    server.script(*[step] * 4)
    with pytest.raises(kind):
        retriever.invoke("why?")
    with pytest.raises(kind):
        await retriever.ainvoke("why?")
    with pytest.raises(kind):
        sink.upsert([Document("text")])
    with pytest.raises(kind):
        await sink.aupsert([Document("text")])
    assert len(server.requests) == 4


async def test_what_the_retriever_asks_is_asked_again_where_the_answer_was_lost(server: Scripted) -> None:
    retriever = KVWeaveRetriever(base_url=server.base_url)
    server.script(end(), send(reply(SEARCHED)), reset(), send(reply(SEARCHED)))
    assert retriever.invoke("why?") == await retriever.ainvoke("why?") == []
    assert len(server.requests) == 4
