"""A response's body: the same request as the chat that it stands for, and the sentence for each that is refused."""

import asyncio
from dataclasses import replace

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import response_create_params
from pydantic import ValidationError

from service.answers.answer_request import AnswerRequest
from service.errors import Invalid
from service.openai.defaults import to_answer_request
from service.openai.request import ChatRequest
from service.openai.responses.chat_body import chat_body
from service.openai.responses.request import ResponseRequest
from tests.service.openai.served import CHUNK, READER, FakeCore, FakePipeline, http, tale
from tests.service.openai.test_request import DEFAULTS

USER = {"role": "user", "content": "Where?"}
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_a"]}
LOOK = {"name": "f", "description": "Looks up.", "parameters": {"type": "object", "default": None}, "strict": True}
NAMED = {"type": "function", "function": {"name": "f"}}
SAID = {"role": "assistant", "content": "Wait."}
SCHEMA = {"name": "n", "schema": {"type": "null"}, "strict": True}


def called(name: str) -> dict[str, object]:
    return {
        "type": "function_call",
        "call_id": name,
        "name": "f",
        "arguments": "{}",
        "id": "fc_1",
        "status": "completed",
    }


def gave(name: str) -> dict[str, object]:
    return {
        "type": "function_call_output",
        "call_id": name,
        "output": [{"type": "input_text", "text": t} for t in "12"],
    }


def made(name: str) -> dict[str, object]:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def asked(**more: object) -> AnswerRequest:
    request = ResponseRequest.model_validate({"model": "default", "input": "Where?", **more})
    return to_answer_request(chat_body(request), READER, id="1", defaults=DEFAULTS)


def chatted(**more: object) -> AnswerRequest:
    request = ChatRequest.model_validate({"model": "default", "messages": [USER], **more})
    return to_answer_request(request, READER, id="1", defaults=DEFAULTS)


def refused(**more: object) -> dict[str, str]:
    async def send() -> httpx.Response:
        body = {"model": "default", "input": "Where?", **more}
        return await http(FakeCore(FakePipeline(tale("Aveiro", "")))).post("/v1/responses", json=body)

    answer = asyncio.run(send())
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "chat"),
    [
        ({}, {}),
        ({"input": [USER]}, {}),
        ({"input": [{"type": "message", **USER, "id": "i", "status": "completed", "phase": None}]}, {}),
        (
            {"instructions": "Be brief.", "input": [{"role": "developer", "content": "Now."}, USER]},
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "developer", "content": "Now."},
                    USER,
                ]
            },
        ),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": t} for t in ("One.", "Two.")]},
                    {
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}],
                    },
                    USER,
                ]
            },
            {"messages": [{"role": "user", "content": "One.\nTwo."}, {"role": "assistant", "content": "Yes."}, USER]},
        ),
        ({"max_output_tokens": 5, "temperature": 0, "top_p": 0.5}, {"max_tokens": 5, "temperature": 0, "top_p": 0.5}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
        ({"input": [{"type": "file_search_call", "id": "fs_1", "queries": ["Who?"]}, USER]}, {}),
        ({"tools": [SEARCH], "tool_choice": "none"}, {}),
        (
            {"tools": [{"type": "function", **LOOK}, SEARCH], "tool_choice": "required"},
            {"tools": [{"type": "function", "function": LOOK}], "tool_choice": "required"},
        ),
        (
            {"tools": [{"type": "function", **LOOK}], "tool_choice": {"type": "function", "name": "f"}},
            {"tools": [{"type": "function", "function": LOOK}], "tool_choice": NAMED},
        ),
        (
            {"tools": [{"type": "function", **LOOK}, SEARCH], "tool_choice": {"type": "file_search"}},
            {"tools": [{"type": "function", "function": LOOK}], "tool_choice": "none"},
        ),
        (
            {"tools": [{"type": "function", **LOOK}], "parallel_tool_calls": False},
            {"tools": [{"type": "function", "function": LOOK}], "parallel_tool_calls": False},
        ),
        (
            {"input": [USER, SAID, called("a"), called("b"), gave("a"), gave("b"), called("c"), gave("c")]},
            {
                "messages": [
                    USER,
                    {**SAID, "tool_calls": [made("a"), made("b")]},
                    *({"role": "tool", "tool_call_id": each, "content": "1\n2"} for each in "ab"),
                    {"role": "assistant", "tool_calls": [made("c")]},
                    {"role": "tool", "tool_call_id": "c", "content": "1\n2"},
                ]
            },
        ),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", **SCHEMA}}},
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        ),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        *(
            (more, more)
            for more in (
                {"collection": "cities", "session": "s", "blend": {"ratio": 0.5}},
                {"documents": [{"text": "Mira lives in Aveiro.", "title": "Cities"}], "chunk_ids": [CHUNK]},
                {"chat_template_kwargs": {"enable_thinking": False}},
            )
        ),
    ],
)
def test_a_response_asks_what_the_chat_asks(body: dict[str, object], chat: dict[str, object]) -> None:
    assert asked(**body) == replace(chatted(**chat), as_of=0.0)


def test_every_parameter_of_the_official_client_is_known() -> None:
    official = set(response_create_params.ResponseCreateParamsBase.__annotations__) | {"stream"}
    assert official - set(ResponseRequest.model_fields) == set()


@pytest.mark.parametrize(
    "neutral",
    [
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"prompt_cache_options": {"ttl": "30m"}, "metadata": {"a": "b"}, "service_tier": "auto", "store": False},
        {"reasoning": {"effort": "low"}, "max_tool_calls": 3, "parallel_tool_calls": True, "truncation": "disabled"},
        {"tools": [], "tool_choice": "auto", "background": False, "previous_response_id": None, "prompt": None},
        {"include": ["reasoning.encrypted_content"], "stream_options": {"include_obfuscation": False}},
    ],
)
def test_what_changes_no_answer_is_taken(neutral: dict[str, object]) -> None:
    assert asked(**neutral) == asked()


def test_null_is_the_same_as_nothing() -> None:
    nothing = {name: None for name in ResponseRequest.model_fields if name not in ("model", "input")}
    assert asked(**nothing) == asked()


@pytest.mark.parametrize(
    ("more", "param", "told"),
    [
        ({"input": []}, "input", "at least 1"),
        ({"input": 4}, "input", "a list of items"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "'reasoning': leave it out"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "'item_reference': leave it out"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role", "'user', 'assistant'"),
        ({"input": [{"role": "user"}]}, "input[0].content", "Missing required"),
        ({"input": [{**USER, "x": 1}]}, "input[0].x", "Unrecognized request argument"),
        *(
            ({"input": [{"role": "user", "content": [{"type": kind}]}]}, "input[0].content", f"{kind!r}: leave it out")
            for kind in ("input_image", "input_audio", "input_file", "refusal")
        ),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "json_object"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "Missing required"),
        ({"truncation": "auto"}, "truncation", "leaves out no turns"),
        ({"background": True}, "background", "at once or as a stream"),
        ({"previous_response_id": ""}, "previous_response_id", "at least 1"),
        ({"conversation": "conv_1"}, "conversation", "use previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools", "'web_search': leave it out"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "Missing required"),
        ({"tools": [{"type": "function", "name": "f", "x": 1}]}, "tools[0].x", "Unrecognized request argument"),
        ({"tools": [{"type": "function", **LOOK}] * 2}, "tools", "two tools have the name 'f'"),
        (
            {"tools": [{"type": "function", **LOOK}], "tool_choice": {"type": "file_search"}},
            "tool_choice",
            "no tools",
        ),
        ({"tools": [SEARCH], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "no tools to choose of"),
        ({"input": [USER, {**called("a"), "arguments": "{"}]}, "input", "the arguments are no JSON"),
        ({"input": [{"type": "function_call_output", "output": ""}]}, "input[0].call_id", "Missing required"),
        ({"input": [USER, {**gave("a"), "output": [{"type": "input_image"}]}]}, "input[1].output", "leave it out"),
        ({"tools": [{"type": "function", **LOOK}], "top_logprobs": 1}, "top_logprobs", "with tools"),
        ({"tools": [SEARCH, SEARCH]}, "tools", "searches once"),
        ({"tools": [{**SEARCH, "vector_store_ids": ["vs_a"] * 17}]}, "tools[0].vector_store_ids", "at most 16"),
        ({"tools": [{**SEARCH, "filters": {"type": "x"}}]}, "tools[0].filters", "'eq'"),
        (
            {"tools": [{**SEARCH, "ranking_options": {"hybrid_search": {"embedding_weight": 1, "text_weight": 1}}}]},
            "tools[0].ranking_options.hybrid_search",
            "weigh here as in every search",
        ),
        ({"tool_choice": "required"}, "tool_choice", "no tools to choose of"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "function or file_search, got 'web_search'"),
        ({"tool_choice": {"type": "function", "name": "!"}}, "tool_choice.name", "should match pattern"),
        ({"tools": [SEARCH], "tool_choice": "none", "input": [{"type": "file_search_call"}]}, "input", "at least 1"),
        ({"prompt": {"id": "p"}}, "prompt", "as instructions"),
        ({"include": ["everything"]}, "include[0]", "output_text.logprobs"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "at most 512"),
        ({"metadata": {str(each): "" for each in range(17)}}, "metadata", "at most 16"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"max_tokens": 3}, "max_tokens", "Unrecognized request argument"),
        ({"input": [USER, {"role": "assistant", "content": "In"}], "collection": "c"}, "input", "is the user's"),
        ({"instructions": "x", "input": [USER] * 1000}, "input", "at most 1,000"),
    ],
)
def test_a_refusal_names_the_parameter_and_the_reason(more: dict[str, object], param: str, told: str) -> None:
    error = refused(**more)
    assert told in error["message"]
    assert error["param"] == param


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(ResponseRequest.model_fields)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=5,
        ),
    )
)
def test_any_values_make_a_question_or_a_refusal(more: dict[str, object]) -> None:
    try:
        ask = asked(**more)
    except (ValidationError, Invalid):
        return
    assert ask.turns
