"""What the chat model says of itself, takes and refuses, without a service."""

import asyncio
import copy
import pickle
from collections.abc import Callable

import httpx
import msgspec
import pytest
from langchain_core.load import dumps, loads
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import SecretStr, ValidationError

from kvweave_client import ChatAnswer, Client, ConnectionFailed, Usage, shared
from kvweave_client.answers import Report
from langchain_kvweave import ChatKVWeave, KVWeaveRetriever, KVWeaveSink
from langchain_kvweave.messages import result, to_messages

NOWHERE = "http://127.0.0.1:9"
SECRET = "kvw_secret"


@pytest.fixture
def model() -> ChatKVWeave:
    return ChatKVWeave(base_url=NOWHERE, api_key=SecretStr(SECRET), temperature=0, stop=["."], max_retries=0)


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta:langchain_core._api.LangChainBetaWarning")
def test_it_is_written_down_without_its_key_and_read_again(model: ChatKVWeave) -> None:
    written = dumps(model)
    assert SECRET not in written and SECRET not in repr(model) and SECRET not in str(model)
    again = loads(
        written,
        allowed_objects=[ChatKVWeave],
        valid_namespaces=["langchain_kvweave"],
        secrets_map={"KVWEAVE_API_KEY": SECRET},
    )
    assert isinstance(again, ChatKVWeave) and again.asdict() == model.asdict() and again.api_key == model.api_key


@pytest.mark.parametrize("kind", [ChatKVWeave, KVWeaveRetriever, KVWeaveSink])
def test_a_misspelt_option_is_refused(kind: Callable[..., object]) -> None:
    with pytest.raises(ValidationError, match="temprature"):
        kind(collection="c", temprature=0)


def test_traces_name_what_is_sent(model: ChatKVWeave) -> None:
    told = model._get_ls_params(model="other")
    assert told == {
        "ls_provider": "kvweave",
        "ls_model_type": "chat",
        "ls_model_name": "other",
        "ls_temperature": 0,
        "ls_stop": ["."],
    }
    assert model.metadata is not None and {*model.metadata["lc_versions"]} >= {"langchain-core", "langchain-kvweave"}
    assert model.profile is not None and model.profile.get("tool_calling") is False


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (HumanMessage("hello", name="somebody"), {"role": "user", "content": "hello"}),
        (SystemMessage("be\0 brief"), {"role": "system", "content": "be brief"}),
        (ChatMessage(content="go on", role="developer"), {"role": "developer", "content": "go on"}),
        (HumanMessage(["one", {"type": "text", "text": "two"}]), {"role": "user", "content": "one\ntwo"}),
        (
            AIMessage(
                content=[
                    {"type": "reasoning", "reasoning": "hm"},
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b"},
                ]
            ),
            {"role": "assistant", "content": "ab"},
        ),
    ],
)
def test_a_message_goes_over_as_text(message: BaseMessage, said: dict[str, str]) -> None:
    assert to_messages([message]) == [said]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (ToolMessage(content="5", tool_call_id="1"), "'tool'; kvweave serves no tools"),
        (FunctionMessage(content="5", name="add"), "'function'; kvweave serves no tools"),
        (AIMessage(content="", tool_calls=[{"name": "add", "args": {}, "id": "1"}]), "serves no tools"),
        (ChatMessage(content="x", role="critic"), "'critic'"),
        (HumanMessage([{"type": "image_url", "image_url": {"url": "data:"}}]), "'image_url'"),
        (HumanMessage([{"type": "audio", "base64": "", "mime_type": "audio/wav"}]), "'audio'"),
    ],
)
def test_what_is_not_served_is_named(message: BaseMessage, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        to_messages([HumanMessage("hello"), message])


def test_an_answer_comes_with_all_of_its_report() -> None:
    report = dict.fromkeys(Report.__struct_fields__)
    report |= {"policy": "full", "ratio": 0.0, "chunks": [], "dropped": ["c"], "timings_ms": {"total": 1.5}}
    report |= {"expected_ms": {"full": 2.0}, "reason": "sooner", "notes": ["nothing was found"]}
    report["relevance"] = {"found": False, "best": 0.1, "floor": 0.4}
    answer = ChatAnswer("1", "m", "so", "stop", Usage(3, 2, 1, 1), (), msgspec.convert(report, Report))
    told = result(answer).generations[0].message.response_metadata["kvweave"]
    assert told == {**report, "recomputed_tokens": 1, "sources": []}


def test_tools_are_refused_by_name(model: ChatKVWeave) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    with pytest.raises(NotImplementedError, match=r"no tools.*with_structured_output"):
        model.bind_tools([tool])
    with pytest.raises(NotImplementedError, match="no tools"):
        model.invoke("hello", tools=[tool])


def test_documents_of_another_kind_are_refused(model: ChatKVWeave) -> None:
    with pytest.raises(TypeError, match="got str"):
        model.invoke("hello", documents=["text"])


def test_tokens_are_counted_roughly_or_by_what_is_given(model: ChatKVWeave) -> None:
    assert model.get_num_tokens("x" * 40) == 10
    assert model.get_num_tokens_from_messages([HumanMessage("x" * 40)]) > 10
    with pytest.raises(NotImplementedError, match="custom_get_token_ids"):
        model.get_token_ids("x")
    exact = model.model_copy(update={"custom_get_token_ids": lambda text: [ord(letter) for letter in text]})
    assert exact.get_num_tokens("abc") == 3 and exact.get_token_ids("ab") == [97, 98]
    assert exact.get_num_tokens_from_messages([HumanMessage("ab"), AIMessage(content="c")]) == 3


def test_copies_and_pickles_reach_the_service_that_they_name(model: ChatKVWeave) -> None:
    assert model.asked() is copy.deepcopy(model).asked() is pickle.loads(pickle.dumps(model)).asked()
    assert model.model_copy(update={"base_url": "http://127.0.0.1:8"}).asked() is not model.asked()
    assert model.model_copy(update={"api_key": None}).asked() is not model.asked()


def test_a_client_that_is_given_is_used(model: ChatKVWeave) -> None:
    with Client(NOWHERE) as mine:
        assert KVWeaveRetriever(client=mine).asked() is mine


def test_each_loop_has_connections_that_end_with_it(model: ChatKVWeave) -> None:
    async def ask() -> httpx.AsyncClient:
        for each in (model, model.model_copy()):
            with pytest.raises(ConnectionFailed):
                await each.ainvoke("hello")
        return await shared._http_of_loop()

    first, second = asyncio.run(ask()), asyncio.run(ask())
    assert first is not second and first.is_closed and second.is_closed
