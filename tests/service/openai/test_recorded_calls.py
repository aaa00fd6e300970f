"""What Open WebUI and LiteLLM send, played against a running service: answered in the form that they read.

The bodies are ours. Their shapes are those of open-webui/open-webui (`routers/openai.py`, `routers/tasks.py` and
`utils/middleware.py` of its backend), and what LiteLLM 1.110.2 sent a recording server, as `openai` and `hosted_vllm`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import httpx
import pytest

from service.builtin import CHECKPOINT
from tests.service.openai.test_own_tools import BUILTIN
from tests.service.serving import Json, good, in_process, settings_in

CHAT = "/v1/chat/completions"
ASKED: Json = {"role": "user", "content": "Where does Halio live?"}
CLOCK: Json = {
    "name": "get_time",
    "description": "The time of day.",
    "parameters": {"type": "object", "properties": {}, "required": []},
}
TOOL: Json = {"type": "function", "function": CLOCK}
STRICT: Json = {
    "type": "function",
    "function": {**CLOCK, "strict": True, "parameters": {**CLOCK["parameters"], "additionalProperties": False}},
}
CALL: Json = {"id": "Abcdef123", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
GAVE: Json = {"role": "tool", "tool_call_id": "Abcdef123", "content": "noon"}
TASK: Json = {"task": "title_generation", "task_body": {"model": "default", "messages": [ASKED]}, "chat_id": "c-1"}
SCHEMA: Json = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
USAGE: Json = {"stream_options": {"include_usage": True}}

WEBUI: list[Json] = [
    {"messages": [ASKED]},
    {
        "messages": [{"role": "system", "content": "Be brief."}, ASKED],
        "temperature": 0.8,
        "top_p": 0.9,
        "min_p": 0.05,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "seed": 7,
        "stop": ["###"],
        "logit_bias": {"100": -10},
        "reasoning_effort": "medium",
        "max_tokens": 8,
        **USAGE,
    },
    {"messages": [ASKED], "max_completion_tokens": 8, "metadata": TASK},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 8},
    {"messages": [ASKED], "tools": [TOOL], "max_tokens": 8},
    {
        "messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [{**CALL, "index": 0}]}, GAVE],
        "tools": [TOOL],
        "max_tokens": 8,
    },
    {
        "messages": [ASKED, {"role": "assistant", "content": "K7.", "reasoning_content": "A letter says so."}, ASKED],
        "max_tokens": 8,
    },
]
LITELLM: list[Json] = [
    {"messages": [ASKED], "temperature": 0.2, "max_tokens": 5, "seed": 1, "user": "u-1"},
    {"messages": [ASKED], "n": 1, "max_completion_tokens": 4, "reasoning_effort": "low", "top_k": 3},
    {"messages": [ASKED], "max_tokens": 5, "tools": [STRICT], "tool_choice": "auto", "parallel_tool_calls": False},
    {
        "messages": [ASKED],
        "max_tokens": 30,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
    },
    {
        "messages": [
            {"role": "system", "content": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
        ],
        "max_tokens": 5,
    },
    {
        "messages": [ASKED, {"role": "assistant", "tool_calls": [CALL]}, {**GAVE, "name": "get_time"}],
        "max_tokens": 5,
        "tools": [STRICT],
    },
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copytree(CHECKPOINT, folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(BUILTIN)
    with in_process(settings_in(folder, model=str(folder / "model"))) as service, service.client() as client:
        yield client


@pytest.mark.parametrize("body", [*WEBUI, *LITELLM])
def test_a_whole_answer_has_what_is_read_of_it(client: httpx.Client, body: Json) -> None:
    whole = {name: each for name, each in body.items() if name != "stream_options"}
    answer = good(client.post(CHAT, json={"model": "default", "stream": False, **whole}))
    [choice] = answer["choices"]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] in ("stop", "length", "tool_calls")
    assert isinstance(choice["message"]["content"], str) or choice["message"]["tool_calls"]
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("body", [*WEBUI, *LITELLM])
def test_a_stream_is_lines_of_chunks_with_the_usage_last(client: httpx.Client, body: Json) -> None:
    answer = client.post(CHAT, json={"model": "default", "stream": True, **body, **USAGE})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    *lines, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    chunks = [json.loads(line) for line in lines]
    assert done == "[DONE]" and all(len(each["choices"]) == 1 for each in chunks[:-1])
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] > 0
    assert [each["choices"][0]["finish_reason"] for each in chunks[:-1]][-1] in ("stop", "length", "tool_calls")


def test_models_are_listed_and_a_base_url_without_its_end_is_told(client: httpx.Client) -> None:
    assert good(client.get("/v1/models"))["data"][0]["id"] == "model"
    for method, path in (("GET", "/models"), ("POST", "/chat/completions"), ("POST", "/embeddings")):
        lost = client.request(method, path, json={} if method == "POST" else None)
        assert lost.status_code == 404
        assert f"/v1{path} is one, so end a client's base URL in /v1" in lost.json()["detail"]
    assert "/openapi.json lists all" in client.get("/model/info").json()["detail"]
