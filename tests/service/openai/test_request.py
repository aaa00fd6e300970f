"""OpenAI's body: what becomes of each field, and the sentence for each that is refused."""

import asyncio
from dataclasses import replace
from typing import get_args

import httpx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import completion_create_params
from pydantic import BaseModel, ValidationError

from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from retriever.documents import Json
from service.answers.answer_request import AnswerRequest, Lookup, RequestDocument, Turn
from service.api.questions import AskedQuestion
from service.api.uploads import Upload
from service.errors import Invalid
from service.openai.defaults import Defaults, to_answer_request
from service.openai.request import MOST_TOKENS, ChatRequest
from service.openai.responses.request import ResponseRequest
from tests.service.openai.served import CHUNK, READER, FakeCore, FakePipeline, app_over, http, tale

DEFAULTS = Defaults(BlendOrder("hybrid", 0.15), top_k=7)
USER = {"role": "user", "content": "Where?"}
RARER = {"top_k": 5, "min_p": 0.25, "repetition_penalty": 1.5}


def asked(**more: object) -> AnswerRequest:
    request = ChatRequest.model_validate({"model": "default", "messages": [USER], **more})
    return to_answer_request(request, READER, id="chatcmpl-1", defaults=DEFAULTS)


def post(body: object, *, content: bytes | None = None) -> httpx.Response:
    async def send() -> httpx.Response:
        web, headers = http(FakeCore(FakePipeline(tale("Aveiro", "")))), {"Content-Type": "application/json"}
        if content is None:
            return await web.post("/v1/chat/completions", json=body)
        return await web.post("/v1/chat/completions", content=content, headers=headers)

    return asyncio.run(send())


def refused(**more: object) -> dict[str, str]:
    answer = post({"model": "default", "messages": [USER], **more})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    return answer.json()["error"]


def test_what_is_left_out_is_as_at_openai() -> None:
    ask = asked()
    sampling = ask.sampling
    assert (sampling.temperature, sampling.top_p, sampling.stop, sampling.seed) == (1, 1, (), None)
    assert (sampling.max_tokens, sampling.logprobs, sampling.processor) == (MOST_TOKENS, None, None)
    assert (ask.principal, ask.id, ask.turns) == (READER, "chatcmpl-1", (Turn("user", "Where?"),))
    assert (ask.inline, ask.asks) == (True, False)
    assert (ask.lookup, ask.grammar, ask.order, ask.chunk_ids, ask.documents) == (None, None, None, (), ())


def test_a_model_samples_as_usual_where_the_request_says_nothing() -> None:
    usual = Sampling(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1)
    bodies = ({}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 0, "min_p": 0, "repetition_penalty": 1})
    requests = [ChatRequest.model_validate({"model": "default", "messages": [USER], **body}) for body in bodies]
    found = [to_answer_request(each, READER, id="c", defaults=replace(DEFAULTS, usual=usual)) for each in requests]
    assert [each.sampling for each in found] == [
        replace(usual, max_tokens=MOST_TOKENS),
        replace(usual, max_tokens=MOST_TOKENS, temperature=0.0),
        replace(usual, max_tokens=MOST_TOKENS, top_p=0.5),
        Sampling(max_tokens=MOST_TOKENS, temperature=0.6, top_p=0.9),
    ]


def test_null_is_the_same_as_nothing() -> None:
    nothing = {name: None for name in ChatRequest.model_fields if name not in ("model", "messages")}
    assert asked(**nothing) == asked()


def test_every_field_reaches_the_sampling() -> None:
    sampling = asked(
        max_tokens=5, temperature=0, top_p=0.5, stop=["a", "b"], seed=-3, logprobs=True, top_logprobs=4, **RARER
    ).sampling
    assert {name: getattr(sampling, name) for name in RARER} == RARER
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (5, 0, 0.5)
    assert (sampling.stop, sampling.seed, sampling.logprobs) == (("a", "b"), -3, 4)
    assert asked(max_tokens=5, max_completion_tokens=9).sampling.max_tokens == 9
    assert asked(stop="a").sampling.stop == ("a",)
    assert asked(logprobs=True).sampling.logprobs == 0
    assert asked(logprobs=False).sampling.logprobs is None
    assert 0 < asked(top_p=0).sampling.top_p < 1e-6


def test_penalties_and_biases_become_a_processor() -> None:
    processor = asked(frequency_penalty=1, presence_penalty=0.5, logit_bias={"2": 7}).sampling.processor
    assert processor is not None
    assert processor([1, 1], torch.zeros(4)).tolist() == [0, -2.5, 7, 0]


def test_messages_keep_their_order_and_their_parts() -> None:
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "mira"},
        {"role": "assistant", "content": "Yes.", "refusal": None, "tool_calls": []},
        USER,
    ]
    turns = asked(messages=messages).turns
    assert turns == (
        Turn("system", "Be brief."),
        Turn("user", "One.\nTwo."),
        Turn("assistant", "Yes."),
        Turn("user", "Where?"),
    )


def test_documents_arrive_in_each_of_their_ways() -> None:
    ask = asked(
        documents=[{"text": "Mira lives in Aveiro.", "title": "Cities", "id": "c"}, {"text": "Plain."}],
        chunk_ids=[CHUNK],
        collection="cities",
        blend={"ratio": 0.5},
        chat_template_kwargs={"enable_thinking": False},
    )
    assert ask.documents == (RequestDocument("Mira lives in Aveiro.", "Cities", "c"), RequestDocument("Plain."))
    assert ask.chunk_ids == (CHUNK,)
    assert ask.lookup == Lookup("Where?", collections=("cities",), top_k=7)
    assert ask.order == BlendOrder("hybrid", 0.5)
    assert ask.template == {"enable_thinking": False}
    assert asked(blend={"policy": "full"}).order == BlendOrder("full", 0.15)
    assert asked(blend={}).order is None


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", "a": 1}] * 1000}]}),
        (ResponseRequest, {"input": [{"role": "user", "content": [{"type": "input_text", "a": 1}] * 1000}]}),
        (AskedQuestion, {"question": "Who?", "documents": [{"a": 1}] * 1000}),
        (Upload, {"documents": [{"a": 1}] * 1000}),
    ],
)
def test_of_very_many_faults_the_first_is_told(model: type[BaseModel], body: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    assert refused.value.error_count() < 10


def test_documents_want_a_question_behind_them() -> None:
    messages = [USER, {"role": "assistant", "content": "In"}]
    assert asked(messages=messages).turns[-1].role == "assistant"
    with pytest.raises(Invalid, match="the last message is the user's"):
        asked(messages=messages, chunk_ids=[CHUNK])


@pytest.mark.parametrize(
    ("given_format", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}, "strict": True}},
            {"type": "null"},
        ),
    ],
)
def test_a_format_becomes_a_grammar(given_format: Json, grammar: Json | None) -> None:
    ask = asked(response_format=given_format)
    assert (ask.grammar, ask.sampling.max_tokens) == (grammar, MOST_TOKENS)


def test_every_parameter_of_the_official_client_is_known() -> None:
    """Taken, ignored or refused with a reason, but never unrecognized."""
    official = set(completion_create_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert official - set(ChatRequest.model_fields) == set()


@pytest.mark.parametrize(
    "neutral",
    [
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"metadata": {"a": "b"}, "service_tier": "auto", "store": False, "modalities": ["text"], "n": 1},
        {"reasoning_effort": "low", "verbosity": "low", "parallel_tool_calls": True},
        {"tools": [], "tool_choice": "none", "functions": None, "function_call": "none"},
        {"prediction": {"type": "content", "content": "x"}, "stream_options": {"include_obfuscation": False}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)
def test_what_changes_no_answer_is_taken(neutral: dict[str, object]) -> None:
    assert asked(**neutral) == asked()


TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("more", "param", "told"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
        ({"tools": [TOOL], "logprobs": True}, "logprobs", "no logprobs"),
        ({"tool_choice": "auto"}, "tool_choice", "no tools to choose of"),
        ({"tool_choice": "sometimes"}, "tool_choice", "or a tool of the type function, got 'sometimes'"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice", "got 'allowed_tools'"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name", "Unrecognized request argument"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name", "Missing required"),
        ({"functions": [{"name": "f"}]}, "functions", "no functions"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "has a tool_call_id"),
        ({"messages": [{**USER, "tool_calls": [CALL]}]}, "messages[0]", "the assistant's"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "'system', 'developer'"),
        *(
            (
                {"messages": [{"role": "user", "content": [{"type": kind}]}]},
                "messages[0].content",
                f"{kind!r}: leave it out",
            )
            for kind in ("image_url", "input_audio", "video_url", "file")
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0]", "is a string"),
        ({"messages": [{"role": "user"}]}, "messages[0]", "is required"),
        ({"messages": []}, "messages", "at least 1"),
        ({"n": 2}, "n", "one answer"),
        ({"store": True}, "store", "keeps no answers"),
        ({"audio": {"voice": "x"}}, "audio", "text only"),
        ({"modalities": ["audio"]}, "modalities[0]", "'text'"),
        ({"web_search_options": {"x": 1}}, "web_search_options", "searches no web"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": "1"}, "temperature", "number"),
        ({"top_k": -1}, "top_k", "greater than or equal to 0"),
        ({"min_p": 1.5}, "min_p", "less than or equal to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than or equal to 0.1"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"logit_bias": {"3": 101}}, "logit_bias.3", "less than or equal to 100"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"chunk_ids": ["x"]}, "chunk_ids[0]", "pattern"),
        ({"blend": {"policy": "best"}}, "blend.policy", "hybrid"),
        ({"documents": [{"title": "t"}]}, "documents[0].text", "Missing required"),
        ({"documents": [{"text": ""}]}, "documents[0].text", "at least 1"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "Missing required"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
    ],
)
def test_a_refusal_names_the_parameter_and_the_reason(more: dict[str, object], param: str, told: str) -> None:
    error = refused(**more)
    assert told in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize(("more", "param"), [({"foo": 1}, "foo"), ({"messages": [{**USER, "x": 1}]}, "messages[0].x")])
def test_an_unknown_parameter_is_told_in_openais_words(more: dict[str, object], param: str) -> None:
    error = refused(**more, temperature=7)
    assert error["message"] == f"Unrecognized request argument supplied: {param}"
    assert (error["param"], error["code"]) == (param, "unknown_parameter")


def test_a_body_that_is_no_json_is_a_400() -> None:
    answer = post(None, content=b'{"model": "default", ')
    assert answer.status_code == 400 and "JSON" in answer.json()["error"]["message"]


def test_what_is_no_field_is_named_for_what_it_is() -> None:
    async def send(content: bytes, within: str) -> httpx.Response:
        headers = {"Content-Type": "application/json", "X-Request-Timeout": within}
        return await http(FakeCore(FakePipeline([]))).post("/v1/chat/completions", content=content, headers=headers)

    error = asyncio.run(send(b"[]", "1")).json()["error"]
    assert error["message"].startswith("Invalid value for the body: ") and error["param"] is None
    error = asyncio.run(send(b'{"model": "default", "messages": [{"role": "user", "content": "?"}]}', "soon")).json()
    assert error["error"]["param"] == "X-Request-Timeout"


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(ChatRequest.model_fields)),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=5,
        ),
    )
)
def test_any_values_make_a_question_or_a_refusal(more: dict[str, object]) -> None:
    try:
        request = ChatRequest.model_validate({"model": "default", "messages": [USER], **more})
        ask = to_answer_request(request, READER, id="1", defaults=DEFAULTS)
    except (ValidationError, Invalid):
        return
    assert ask.turns


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_the_description_of_the_interface_names_every_kind_of_answer(path: str) -> None:
    described = app_over(FakeCore(FakePipeline([]))).openapi()
    responses = described["paths"][path]["post"]["responses"]
    assert set(responses) == {"200", "4XX", "5XX"}
    assert set(responses["200"]["content"]) == {"application/json", "text/event-stream"}
    assert responses["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
    assert len(get_args(ChatRequest.model_fields["response_format"].annotation)) == 4
