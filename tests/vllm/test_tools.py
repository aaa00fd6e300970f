"""Tools through kvweave into the real vLLM, which renders and parses them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import httpx
import pytest
from transformers import AutoTokenizer

from service.builtin import CHECKPOINT
from tests.service.serving import Json, good
from tests.vllm.conftest import Pair, cases
from tests.vllm.vllm_server import MODEL

pytestmark = pytest.mark.long

# The built-in model's, which knows no tools, with those in front, with calls and with what came of them.
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}{% for message in messages %}"
    "<|{{ 'user' if message.role == 'tool' else message.role }}|>{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks somebody up",
        "strict": True,  # else vLLM takes any JSON for arguments
        "parameters": {"type": "object", "properties": {"who": {"enum": ["Mira", "Bo"]}}, "required": ["who"]},
    },
}
NAMED = {"type": "function", "function": {"name": "look_up"}}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    path = Path(tmp_path_factory.mktemp("template")) / "tools.jinja"
    path.write_text(TEMPLATE)
    parser = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--chat-template", str(path)]
    return {
        "extra": [
            *parser,
            "--structured-outputs-config",
            json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
        ]
    }


@cache
def white_space() -> Json:
    """What the tiny model writes without end where JSON lets it: tokens of white space, made unlikely."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    blank = [each for each in range(len(tokenizer)) if not tokenizer.decode([each]).strip()]
    return {str(each): -100 for each in blank}


def chat(**more: object) -> Json:
    case = cases()[0]
    documents = [{"title": each.title, "text": each.text} for each in case.passages]
    messages = [{"role": "user", "content": case.question}]
    return {"model": "default", "messages": messages, "documents": documents, "temperature": 0, "tools": [TOOL], **more}


def asked(pair: Pair, **more: object) -> httpx.Response:
    return pair.kvweave.post("/v1/chat/completions", json=chat(max_tokens=100, **more))


@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_a_call_comes_back_with_its_arguments_streamed_and_whole(pair: Pair, choice: object) -> None:
    answer = good(asked(pair, tool_choice=choice, logit_bias=white_space()))
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look_up" and json.loads(call["function"]["arguments"])["who"] in ("Mira", "Bo")
    assert call["id"] and answer["kvweave"]["report"]["policy"] == "full"
    print(choice, answer["choices"][0]["finish_reason"], answer["usage"], call)
    lines = asked(pair, tool_choice=choice, logit_bias=white_space(), stream=True).text.splitlines()
    chunks = [json.loads(each.removeprefix("data: ")) for each in lines if each.startswith("data: {")]
    deltas = [each["delta"] for chunk in chunks for each in chunk["choices"]]
    parts = [each["function"] for delta in deltas for each in delta.get("tool_calls") or ()]
    assert "".join(each.get("name") or "" for each in parts) == "look_up"
    assert "".join(each.get("arguments") or "" for each in parts) == call["function"]["arguments"]
    assert chunks[-1]["kvweave"]["sources"] == answer["kvweave"]["sources"]
    assert len(pair.inside.core.handoffs) == 0


def test_where_none_is_called_the_text_is_vllms_own_for_these_messages(pair: Pair) -> None:
    answer = good(asked(pair, tool_choice="none"))
    case = cases()[0]
    text = "".join(f"{each.text}\n({each.title})\n\n" for each in case.passages) + case.question
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 100}
    theirs = good(pair.vllm.post("/v1/chat/completions", json={**body, "tools": [TOOL], "tool_choice": "none"}))
    assert answer["choices"][0]["message"]["content"] == theirs["choices"][0]["message"]["content"]
    assert answer["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]


def test_what_a_tool_said_goes_on_and_what_vllm_refuses_is_told(pair: Pair) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": '{"who": "Bo"}'}}
    turns = [
        *chat()["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "Bo keeps a yak."},
    ]
    answer = good(asked(pair, messages=turns, tool_choice="auto"))
    assert answer["choices"][0]["message"]["content"] and answer["choices"][0]["finish_reason"] in ("stop", "length")
    other = {"type": "function", "function": {"name": "other"}}
    refused = asked(pair, tool_choice=other)
    assert refused.status_code == 400 and "the generator refuses" in refused.text
    print(refused.text)
    assert asked(pair, tools=None).status_code == 200
