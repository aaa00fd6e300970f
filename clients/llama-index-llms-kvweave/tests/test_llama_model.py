"""The model through LlamaIndex's surface: all ways of asking it say the same, and tell what it cost."""

import asyncio
import gc
import json
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Literal

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    ImageBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.prompts import PromptTemplate
from llama_index.core.types import PydanticProgramMode

from clients.conftest import Running
from clients.tests.heard import Ear
from kvweave_client import AsyncClient, BadRequest, Client
from llama_index.llms.kvweave import KVWeave, Unanswered

Models = Callable[..., KVWeave]
TEXT, QUESTION = "Halio lives in K7. Halio keeps a badger.", "Question: Which animal does Halio keep?"
PROMPT = f"{TEXT}\n\n{QUESTION}"
CHAT = [ChatMessage(role=MessageRole.USER, content=PROMPT)]


@pytest.fixture(scope="module", autouse=True)
def known(client: Client, _numbers: Iterator[int]) -> None:
    """The text is known, so that its cache is reused."""
    client.wait(client.put_documents([{"id": f"model-{next(_numbers)}", "text": TEXT}]).job_id, timeout_s=60)


def reused(response: ChatResponse | CompletionResponse) -> int:
    assert isinstance(response.raw, dict)
    usage = response.raw["usage"]
    assert response.additional_kwargs.items() <= usage.items()
    assert usage["prompt_tokens_details"] == {"cached_tokens": usage["reused_tokens"]}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return usage["reused_tokens"]


async def test_all_ways_of_asking_say_the_same_and_reuse_the_same(llm: KVWeave) -> None:
    llm.chat(CHAT)  # the head of the template is in the prefix cache from now on
    chats = [llm.chat(CHAT), await llm.achat(CHAT), [*llm.stream_chat(CHAT)][-1]]
    chats.append([each async for each in await llm.astream_chat(CHAT)][-1])
    completions = [llm.complete(PROMPT), await llm.acomplete(PROMPT), [*llm.stream_complete(PROMPT)][-1]]
    completions.append([each async for each in await llm.astream_complete(PROMPT)][-1])
    assert {each.message.content for each in chats} | {each.text for each in completions} == {"badger"}
    assert {each.message.role for each in chats} == {MessageRole.ASSISTANT}
    assert len({reused(each) for each in (*chats, *completions)}) == 1 and reused(chats[0]) > 0


async def test_a_stream_grows_by_its_deltas_and_ends_with_the_usage(models: Models) -> None:
    llm = models(max_tokens=12)
    for parts in ([*llm.stream_chat(CHAT)], [each async for each in await llm.astream_chat(CHAT)]):
        text = ""
        for part in parts:
            text += part.delta or ""
            assert part.message.content == text
        assert text == "badger" and [bool(part.raw) for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_response_tells_where_each_cache_came_from_and_is_json(llm: KVWeave) -> None:
    response = llm.chat(CHAT)
    assert isinstance(response.raw, dict)
    [chunk] = response.raw["report"]["chunks"]
    assert chunk["source"] != "computed" and response.raw["finish_reason"] == "stop"
    assert response.raw["sources"][0]["text"] == TEXT
    assert json.loads(response.model_dump_json())["raw"] == json.loads(json.dumps(response.raw))


def test_llama_indexs_own_counter_counts_the_services_tokens(models: Models) -> None:
    counter = TokenCountingHandler()
    llm = models(callback_manager=CallbackManager([counter]))
    usage = llm.chat(CHAT).additional_kwargs
    llm.complete(PROMPT)
    assert counter.prompt_llm_token_count == 2 * usage["prompt_tokens"]
    assert counter.completion_llm_token_count == 2 * usage["completion_tokens"]


async def test_who_listens_hears_of_each_call_and_not_of_the_key(llm: KVWeave, service: Running, heard: Ear) -> None:
    llm.chat(CHAT)
    await llm.achat(CHAT)
    list(llm.stream_chat(CHAT))
    [each async for each in await llm.astream_chat(CHAT)]
    assert heard.names.count("LLMChatStartEvent") == heard.names.count("LLMChatEndEvent") == 4
    assert "LLMChatInProgressEvent" in heard.names
    llm.complete(PROMPT)
    [each async for each in await llm.astream_complete(PROMPT)]
    assert heard.names.count("LLMCompletionStartEvent") == heard.names.count("LLMCompletionEndEvent") == 2
    assert service.key not in str(llm.to_payload()) and llm.to_payload()["class_name"] == "KVWeave"


def test_what_a_call_says_goes_before_what_the_model_is_set_to(models: Models) -> None:
    llm = models(max_tokens=1, additional_kwargs={"seed": 3})
    assert llm.chat(CHAT).raw["finish_reason"] == "length"  # pyright: ignore[reportOptionalSubscript] (it is there)
    assert llm.chat(CHAT, max_tokens=8).message.content == "badger"
    assert models(stop=["dger"]).chat(CHAT).message.content == "ba"
    assert models(blend={"policy": "full"}).chat(CHAT).additional_kwargs["reused_tokens"] == 0
    assert models(blend={"policy": "full"}).chat(CHAT, blend={"policy": "reuse"}).additional_kwargs["reused_tokens"]


def test_sampling_is_repeatable_by_its_seed(models: Models) -> None:
    llm = models(temperature=2.0, top_p=1.0, max_tokens=24, seed=7)
    assert llm.chat(CHAT).message.content == llm.chat(CHAT).message.content


def test_logprobs_are_llama_indexs(llm: KVWeave) -> None:
    tokens = llm.chat(CHAT, logprobs=True, top_logprobs=2).logprobs
    assert tokens and all(len(each) == 2 and each[0].logprob <= 0 for each in tokens)
    streamed = [token for each in llm.stream_chat(CHAT, logprobs=True) for token in each.logprobs or []]
    assert [each[0].token for each in streamed] == [each[0].token for each in tokens]
    assert bytes(streamed[0][0].bytes).decode() == streamed[0][0].token


def test_the_window_is_the_services_and_asked_for_once_or_never(models: Models, client: Client) -> None:
    [served] = client.models()
    llm = models()
    metadata = llm.metadata
    assert (metadata.context_window, metadata.model_name) == (served.max_model_len, served.id)
    assert (metadata.num_output, metadata.is_chat_model, metadata.is_function_calling_model) == (16, True, False)
    llm._connection.use(Client("http://127.0.0.1:9"), None)
    assert llm.metadata == metadata
    nowhere = models(base_url="http://127.0.0.1:9", context_window=1000, max_tokens=None)
    assert (nowhere.metadata.context_window, nowhere.metadata.num_output) == (1000, -1)


def test_every_text_role_is_understood(llm: KVWeave) -> None:
    said = [
        ChatMessage(role=MessageRole.DEVELOPER, content="Be brief."),
        ChatMessage(role=MessageRole.USER, blocks=[TextBlock(text=TEXT), TextBlock(text="Well?")]),
        ChatMessage(role=MessageRole.CHATBOT, content="Yes."),
        ChatMessage(role=MessageRole.MODEL, content="Go on."),
        ChatMessage(role=MessageRole.USER, content=QUESTION),
    ]
    assert llm.chat(said).additional_kwargs["reused_tokens"] > 0


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (ChatMessage(role=MessageRole.TOOL, content="42"), "no tools.*'tool'"),
        (ChatMessage(blocks=[ImageBlock(url="http://localhost/i.png")]), "text only.*'image'"),
    ],
)
async def test_what_is_no_text_is_refused_before_it_is_sent(llm: KVWeave, message: ChatMessage, said: str) -> None:
    for ask in (lambda: llm.chat([message]), lambda: list(llm.stream_chat([message]))):
        with pytest.raises(Unanswered, match=said):
            ask()
    with pytest.raises(Unanswered, match=said):
        await llm.achat([message])


def test_an_option_that_the_service_does_not_know_is_named(llm: KVWeave) -> None:
    with pytest.raises(Unanswered, match="wanted") as raised:
        llm.chat(CHAT, wanted=3)
    assert isinstance(raised.value.__cause__, BadRequest) and not isinstance(raised.value, ValueError)


class Kept(BaseModel):
    """An animal that somebody keeps."""

    animal: Literal["badger", "heron"]


async def test_answers_are_objects_of_a_class(llm: KVWeave, heard: Ear) -> None:
    prompt = PromptTemplate(TEXT + "\n\nQuestion: Which animal does {who} keep?")
    assert llm.structured_predict(Kept, prompt, who="Halio") == Kept(animal="badger")
    assert await llm.astructured_predict(Kept, prompt, who="Halio") == Kept(animal="badger")
    assert heard.names.count("LLMStructuredPredictStartEvent") == heard.names.count("LLMStructuredPredictEndEvent") == 2
    assert [*llm.stream_structured_predict(Kept, prompt, who="Halio")][-1] == Kept(animal="badger")
    streamed = await llm.astream_structured_predict(Kept, prompt, who="Halio")
    assert [each async for each in streamed][-1] == Kept(animal="badger")


def test_an_object_that_was_cut_off_is_named_with_its_remedy(models: Models) -> None:
    with pytest.raises(Unanswered, match=r"Kept was cut off.*max_tokens"):
        models(max_tokens=3).structured_predict(Kept, PromptTemplate(PROMPT))


@pytest.mark.filterwarnings("ignore:The `json` method is deprecated")  # LlamaIndex's streams of objects call it
async def test_a_structured_model_answers_with_objects(llm: KVWeave) -> None:
    structured = llm.as_structured_llm(Kept)
    assert structured.chat(CHAT).raw == Kept(animal="badger") == (await structured.achat(CHAT)).raw
    assert structured.complete(PROMPT).text == Kept(animal="badger").model_dump_json()
    assert [*structured.stream_chat(CHAT)][-1].raw == Kept(animal="badger")
    assert [each async for each in await structured.astream_chat(CHAT)][-1].raw == Kept(animal="badger")


def test_another_program_mode_is_left_to_llama_index(models: Models) -> None:
    llm = models(pydantic_program_mode=PydanticProgramMode.LLM)
    with pytest.raises(ValueError, match=r"Could not extract|JSON"):  # the built-in model writes none by itself
        llm.structured_predict(Kept, PromptTemplate(PROMPT))


def test_the_key_shows_nowhere_and_copies_work(llm: KVWeave, service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = f"{llm!r}{llm}{llm.to_dict()}{llm.to_json()}{llm.model_dump()}{llm.model_dump_json()}"
    assert service.key not in shown and service.base_url in shown
    monkeypatch.setenv("KVWEAVE_API_KEY", service.key)
    copies = [pickle.loads(pickle.dumps(llm)), llm.model_copy(deep=True), KVWeave.from_dict(llm.to_dict())]
    for copied in copies:
        assert copied.complete(PROMPT).text == "badger"
    monkeypatch.setenv("KVWEAVE_BASE_URL", f"{service.base_url}/v1")
    assert KVWeave(temperature=0).complete(PROMPT).text == "badger"


def test_one_model_serves_several_event_loops_and_leaves_nothing_open(models: Models) -> None:
    async def ask(llm: KVWeave) -> list[str | None]:
        answers = await asyncio.gather(llm.achat(CHAT), llm.achat(CHAT))
        parts = [each async for each in await llm.astream_chat(CHAT)]
        return [*(each.message.content for each in answers), parts[-1].message.content]

    def several(llm: KVWeave) -> list[str | None]:
        return [each for _ in range(3) for each in asyncio.run(ask(llm))]

    assert several(models()) == ["badger"] * 9
    gc.collect()


async def test_clients_of_ones_own_are_used(models: Models, service: Running) -> None:
    nowhere = {"base_url": "http://127.0.0.1:9"}
    with Client(service.base_url, service.key) as client:
        async with AsyncClient(service.base_url, service.key) as aclient:
            llm = models(**nowhere).using(client, aclient)
            assert llm.complete(PROMPT).text == (await llm.acomplete(PROMPT)).text == "badger"


async def test_who_leaves_a_stream_leaves_the_service_free(llm: KVWeave) -> None:
    for _ in range(20):  # more than the service answers at once
        first = next(llm.stream_chat(CHAT))
        assert first.delta
        stream: AsyncIterator[ChatResponse] = await llm.astream_chat(CHAT)
        async for each in stream:
            assert each.delta
            break
    assert llm.complete(PROMPT).text == "badger"
