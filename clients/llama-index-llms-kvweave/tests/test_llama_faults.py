"""A service that is away, refuses, hangs, breaks off, or is none: a clear error in LlamaIndex, and no answer."""

import json
from collections.abc import Awaitable, Callable

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from clients.tests.canned import CHAT_EVENTS, COMPLETION
from clients.tests.scripted import Scripted, Step, end, hang, opened, reply, send, whole
from kvweave_client import (
    ConnectionFailed,
    KVWeaveError,
    RateLimited,
    StreamCut,
    TimedOut,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from llama_index.llms.kvweave import KVWeave, KVWeaveSynthesizer, Unanswered

CHAT = [ChatMessage(content="Well?")]


def refusal(status: int, detail: str, *, after: str = "0") -> Step:
    problem = {"status": status, "title": "refused", "detail": detail}
    return send(reply(problem, status=status, kind="application/problem+json", Retry_After=after))


BUSY = refusal(429, "too much at once")
FULL = refusal(429, "this hour's share is used up", after="3600")
STARTING = refusal(503, "the model loads")
HTML = send(reply(b"<html>Sign in</html>", kind="text/html"))
UNKNOWN_KEY = refusal(401, "the key is unknown")
WRONG = refusal(422, "temperature is a number")

Ask = Callable[[KVWeave], Awaitable[str | None]]
Listen = Callable[[KVWeave, list[str]], Awaitable[None]]


async def _complete(llm: KVWeave) -> str:
    return (await llm.acomplete("Well?")).text


async def _achat(llm: KVWeave) -> str | None:
    return (await llm.achat(CHAT)).message.content


async def _query(llm: KVWeave) -> str:
    return str(await RetrieverQueryEngine.from_args(Fixed(), llm=llm).aquery("Well?"))


async def _synthesized(llm: KVWeave) -> str:
    return str(await RetrieverQueryEngine(Fixed(), KVWeaveSynthesizer(llm)).aquery("Well?"))


async def _in_one_piece(llm: KVWeave) -> str | None:
    return llm.chat(CHAT).message.content


async def _sync_query(llm: KVWeave) -> str:
    return str(RetrieverQueryEngine.from_args(Fixed(), llm=llm, response_mode=ResponseMode.REFINE).query("Well?"))


WAYS: dict[str, Ask] = {
    "chat": _in_one_piece,
    "achat": _achat,
    "acomplete": _complete,
    "aquery": _query,
    "query": _sync_query,
    "synthesizer": _synthesized,
}


class Fixed(BaseRetriever):
    """Finds one node."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="Halio keeps a badger."), score=1.0)]


def model(server: Scripted, *, timeout: float = 30.0) -> KVWeave:
    options = {"api_key": "kvw_key", "context_window": 4096, "timeout": timeout, "max_retries": 2}
    return KVWeave.model_validate({"base_url": server.base_url, **options})


@pytest.fixture(params=WAYS)
def ask(request: pytest.FixtureRequest) -> Ask:
    return WAYS[request.param]


@pytest.mark.parametrize(
    ("step", "kind", "words", "asked"),
    [
        (FULL, RateLimited, "this hour's share", 1),
        (UNKNOWN_KEY, Unauthorized, "the key is unknown", 1),
        (WRONG, Unanswered, "temperature is a number", 1),
        (HTML, Unanswered, "text/html.*Sign in", 1),
        (end(), ConnectionFailed, "broke off", 1),
        (STARTING, Unavailable, "the model loads", 3),
    ],
)
async def test_each_fault_is_an_error_of_its_own_on_every_way(
    server: Scripted, ask: Ask, *, step: Step, kind: type[KVWeaveError], words: str, asked: int
) -> None:
    server.always(step)
    with pytest.raises(kind, match=words) as raised:
        await ask(model(server))
    assert len(server.requests) == asked and "kvw_key" not in repr(raised.value)
    assert not isinstance(raised.value, ValueError), "LlamaIndex takes it for an answer without content"


async def test_what_was_refused_is_asked_again_when_it_may_be(server: Scripted, ask: Ask) -> None:
    server.script(BUSY, STARTING, send(reply(COMPLETION)))
    assert await ask(model(server)) == "badger" and len(server.requests) == 3


async def test_a_service_that_hangs_is_given_up(server: Scripted, ask: Ask) -> None:
    server.script(hang())
    with pytest.raises(TimedOut):
        await ask(model(server, timeout=0.3))
    server.wait_gone()
    assert len(server.requests) == 1


async def _parts(llm: KVWeave, heard: list[str]) -> None:
    for part in llm.stream_chat(CHAT):
        heard.append(part.delta or "")


async def _aparts(llm: KVWeave, heard: list[str]) -> None:
    async for part in await llm.astream_complete("Well?"):
        heard.append(part.delta or "")


async def _streamed(llm: KVWeave, heard: list[str]) -> None:
    response = RetrieverQueryEngine.from_args(Fixed(), llm=llm, streaming=True).query("Well?")
    assert isinstance(response, StreamingResponse)
    heard.extend(response.response_gen)  # what came before an error is kept


async def _astreamed(llm: KVWeave, heard: list[str]) -> None:
    response = await RetrieverQueryEngine(Fixed(), KVWeaveSynthesizer(llm, streaming=True)).aquery("Well?")
    assert isinstance(response, AsyncStreamingResponse)
    async for text in response.async_response_gen():
        heard.append(text)


@pytest.fixture(params=[_parts, _aparts, _streamed, _astreamed])
def listen(request: pytest.FixtureRequest) -> Listen:
    return request.param


async def test_a_stream_that_is_cut_off_says_so_and_is_not_asked_for_again(server: Scripted, listen: Listen) -> None:
    heard: list[str] = []
    server.script(end(opened(*CHAT_EVENTS[:3])))
    with pytest.raises(StreamCut):
        await listen(model(server), heard)
    assert (heard, len(server.requests)) == (["bad", "ger"], 1)


async def test_a_stream_that_ends_is_heard_to_its_end(server: Scripted, listen: Listen) -> None:
    heard: list[str] = []
    server.script(BUSY, send(whole(*CHAT_EVENTS)))
    await listen(model(server), heard)
    assert ("".join(heard), len(server.requests)) == ("badger", 2)


@pytest.mark.parametrize(
    ("first", "kind"), [(HTML, Unanswered), (FULL, RateLimited), (send(reply(COMPLETION)), Unanswered)]
)
async def test_what_is_no_stream_is_an_error(
    server: Scripted, listen: Listen, first: Step, kind: type[KVWeaveError]
) -> None:
    server.script(first)
    with pytest.raises(kind) as raised:
        await listen(model(server), [])
    assert kind is RateLimited or isinstance(raised.value.__cause__, UnexpectedAnswer)


def test_letters_that_no_request_holds_are_left_out(server: Scripted) -> None:
    server.script(send(reply(COMPLETION)))
    read = TextNode(id_="n\0", text="Halio\0 keeps a badger.", metadata={"by": "\ud800"})
    model(server).chat([ChatMessage(content="Well\0?")], nodes=[read, TextNode(text="\0")])
    said = json.loads(server.requests[0].body)
    assert said["messages"] == [{"role": "user", "content": "Well?"}]
    assert said["documents"] == [{"id": "n", "text": "by: ?\n\nHalio keeps a badger."}]


def test_a_window_that_cannot_be_asked_for_is_an_error_and_no_guess(server: Scripted) -> None:
    llm = KVWeave(base_url=server.base_url)
    for first, words in ((HTML, "text/html"), (send(reply({"data": []})), "give its context_window")):
        server.script(first)
        with pytest.raises(Unanswered, match=words):
            _ = llm.metadata
