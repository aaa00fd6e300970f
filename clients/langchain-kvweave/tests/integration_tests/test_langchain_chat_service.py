"""The chat model against a service: four ways to ask that answer alike, documents by chunk id, and what is reported."""

import gc
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.runnables import Runnable
from pydantic import BaseModel, Field

from kvweave_client import Client, NotFound
from langchain_kvweave import ChatKVWeave, KVWeaveRetriever, KVWeaveSink

QUESTION = "Question: Which animal does Halio keep?"
Model = Runnable[LanguageModelInput, AIMessage]
Asking = Callable[[Model, str], Awaitable[AIMessage]]


def whole(parts: Iterable[AIMessage]) -> AIMessage:
    """Of a stream, as LangChain puts its parts together."""
    chunks = [each for each in parts if isinstance(each, AIMessageChunk)]
    return add_ai_message_chunks(*chunks)


async def invoke(model: Model, asked: str) -> AIMessage:
    return model.invoke(asked)


async def ainvoke(model: Model, asked: str) -> AIMessage:
    return await model.ainvoke(asked)


async def stream(model: Model, asked: str) -> AIMessage:
    return whole(model.stream(asked))


async def astream(model: Model, asked: str) -> AIMessage:
    return whole([chunk async for chunk in model.astream(asked)])


WAYS = pytest.mark.parametrize("ask", [invoke, ainvoke, stream, astream])


@pytest.fixture
def found(client: Client, retriever: KVWeaveRetriever, passages: list[str]) -> list[Document]:
    """What the retriever finds of all passages."""
    documents = [{"id": f"{retriever.collection}/{number}", "text": text} for number, text in enumerate(passages)]
    client.wait(client.put_documents(documents, collection=str(retriever.collection)).job_id)  # pyright: ignore[reportArgumentType]
    return sorted(
        retriever.invoke("Halio, Norworks, Selark, the captain and lamps in Belford"),
        key=lambda each: str(each.metadata["kvweave_document_id"]),
    )


def report(message: AIMessage) -> dict[str, Any]:
    return message.response_metadata["kvweave"]


def cached(message: AIMessage) -> int:
    return (message.usage_metadata or {}).get("input_token_details", {}).get("cache_read", 0)


@WAYS
async def test_documents_are_read_by_chunk_id_and_their_kv_reused(
    ask: Asking, model: ChatKVWeave, found: list[Document]
) -> None:
    answer = await ask(model.bind(documents=[*found, found[0]]), QUESTION)
    assert answer.text == "badger"
    assert [each["chunk_id"] for each in report(answer)["chunks"]] == [
        each.metadata["kvweave_chunk_id"] for each in found
    ]
    assert all(each["source"] != "computed" for each in report(answer)["chunks"])
    assert [each["text"] for each in report(answer)["sources"]] == [each.page_content for each in found]
    assert answer.usage_metadata is not None
    assert 0 < cached(answer) <= answer.usage_metadata["input_tokens"]
    assert answer.usage_metadata["output_tokens"] > 0
    assert {"model_name", "id"} < answer.response_metadata.keys()
    assert answer.response_metadata["finish_reason"] == "stop"


@WAYS
async def test_a_chunk_that_was_deleted_meanwhile_is_read_as_text(
    ask: Asking, model: ChatKVWeave, found: list[Document], client: Client
) -> None:
    client.delete_document(found[1].metadata["kvweave_document_id"])
    answer = await ask(model.bind(documents=found), QUESTION)
    assert answer.text == "badger"
    assert [each["text"] for each in report(answer)["sources"]] == [each.page_content for each in found]
    assert cached(answer) > 0  # the others are recognised


@WAYS
async def test_a_chunk_that_is_named_without_its_text_must_be_there(ask: Asking, model: ChatKVWeave) -> None:
    with pytest.raises(NotFound):
        await ask(model.bind(chunk_ids=[uuid.uuid4().hex]), QUESTION)


async def test_loose_documents_stand_where_they_were_put(model: ChatKVWeave, found: list[Document]) -> None:
    loose = Document("The painter is Quora.", id="mine", metadata={"title": "A note"})
    bound = model.bind(documents=[found[0], loose, *found[1:]])
    for answer in (bound.invoke(QUESTION), await bound.ainvoke(QUESTION)):
        texts = [found[0].page_content, loose.page_content, *(each.page_content for each in found[1:])]
        assert [each["text"] for each in report(answer)["sources"]] == texts
        assert report(answer)["sources"][1]["title"] == "A note"
        assert len([each for each in report(answer)["chunks"] if each["source"] != "computed"]) == len(found)


def test_the_service_itself_searches_a_collection(model: ChatKVWeave, found: list[Document], collection: str) -> None:
    answer = model.model_copy(update={"collection": collection}).invoke(QUESTION)
    assert answer.text == "badger" and [each["text"] for each in report(answer)["sources"]] == [found[1].page_content]


@WAYS
async def test_sampling_goes_over(ask: Asking, model: ChatKVWeave) -> None:
    warm = model.model_copy(update={"temperature": 2.0, "seed": 7, "top_p": 0.99, "blend": {"policy": "full"}})
    endless = warm.bind(max_tokens=5, logit_bias={"4": -100})  # the token that ends an answer
    first, again = await ask(endless, "Hello"), await ask(endless, "Hello")
    assert first.text == again.text != (await ask(endless.bind(seed=8), "Hello")).text
    assert first.response_metadata["finish_reason"] == "length" and report(first)["policy"] == "full"
    whole = await ask(model, "Hello")
    piece = whole.text[3:6]
    assert (await ask(model.bind(stop=[piece]), "Hello")).text == whole.text[: whole.text.index(piece)]


@WAYS
async def test_probabilities_of_all_tokens_come_along(ask: Asking, model: ChatKVWeave) -> None:
    answer = await ask(model.bind(max_tokens=4, logprobs=True, top_logprobs=2), "Hello")
    tokens = answer.response_metadata["logprobs"]["content"]
    assert "".join(each["token"] for each in tokens) == answer.text
    assert all(len(each["top_logprobs"]) == 2 and each["logprob"] <= 0 for each in tokens)


async def test_a_stream_that_is_left_ends(model: ChatKVWeave) -> None:
    for chunk in model.stream("Hello"):
        assert isinstance(chunk, AIMessageChunk)
        break
    events = model.astream("Hello")
    await anext(events)
    await events.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    gc.collect()
    assert (await model.ainvoke("Hello")).text


def test_a_batch_is_answered_in_its_order(model: ChatKVWeave, passages: list[str]) -> None:
    asked = [f"{passages[1]}\n\n{QUESTION}", f"{passages[2]}\n\nQuestion: What does Norworks make?"]
    assert [answer.text for answer in model.batch([[HumanMessage(each)] for each in asked])] == ["badger", "lamps"]


class Animal(BaseModel):
    """An animal that somebody keeps."""

    name: str = Field(pattern="^[a-z]{6}$")
    years: int | None = Field(default=None, ge=0, le=9)


async def test_an_answer_obeys_a_schema(model: ChatKVWeave, passages: list[str]) -> None:
    asked = f"{passages[1]}\n\n{QUESTION}"
    obeying = model.with_structured_output(Animal)
    assert isinstance(obeying.invoke(asked), Animal) and isinstance(await obeying.ainvoke(asked), Animal)
    as_json = model.with_structured_output(Animal.model_json_schema(), include_raw=True).invoke(asked)
    assert Animal.model_validate(as_json["parsed"]) and as_json["raw"].text and as_json["parsing_error"] is None  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("schema", [Animal, Animal.model_json_schema()])
async def test_an_answer_that_was_cut_off_is_no_answer(schema: type | dict[str, Any], model: ChatKVWeave) -> None:
    short = model.model_copy(update={"max_tokens": 3}).with_structured_output(schema)
    with pytest.raises(OutputParserException, match="max_tokens"):
        short.invoke("Hello")
    with pytest.raises(OutputParserException, match="max_tokens"):
        await short.ainvoke("Hello")
    with pytest.raises(OutputParserException, match="max_tokens"):
        list(short.stream("Hello"))


def test_the_same_text_in_two_sinks_is_deleted_from_one(
    model: ChatKVWeave, sink: KVWeaveSink, access: dict[str, Any], client: Client, passages: list[str]
) -> None:
    other = KVWeaveSink(collection=f"{sink.collection}-other", wait=True, **access)
    same = Document(passages[1], id="1")
    sink.upsert([same])
    other.upsert([same])
    assert other.delete(["1"]).get("num_deleted") == 1
    assert sink.get(["1"]) == [same] and other.get(["1"]) == []
    assert cached(model.invoke(f"{passages[1]}\n\n{QUESTION}")) > 0
    client.delete_collection(other.collection)
