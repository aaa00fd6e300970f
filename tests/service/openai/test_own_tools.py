"""Tools by our own engine, asked for by OpenAI's client and LangChain, over whole services."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from service.builtin import CHECKPOINT
from tests.blend import tool_templates
from tests.service.checkpoints import checkpoint
from tests.service.official import langchain, official
from tests.service.serving import Inside, Json, in_process, settings_in

WEATHER: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
]
NAMED: Json = {"type": "function", "function": {"name": "get_weather"}}
ASKED = {"role": "user", "content": "What is the weather in Rome?"}
# The built-in model's own markers, around the same frames as `TAGGED`.
BUILTIN = tool_templates.TAGGED.replace("'<|im_start|>' + message.role + '\n'", "'<|' + message.role + '|>'").replace(
    "<|im_start|>assistant\n", "<|assistant|>"
)


@pytest.fixture(scope="module", params=["TAGGED", "BARE", "LISTED", "builtin"])
def inside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    folder: Path = tmp_path_factory.mktemp("tools")
    if request.param == "builtin":
        shutil.copytree(CHECKPOINT, folder / "model")
        (folder / "model" / "chat_template.jinja").write_text(BUILTIN)
    else:
        checkpoint(folder / "model", chat_template=getattr(tool_templates, request.param))
    with in_process(settings_in(folder, model=str(folder / "model"))) as service:
        yield service


@pytest.fixture(scope="module")
def client(inside: Inside) -> Iterator[openai.OpenAI]:
    with official(inside) as client:
        yield client


def ask(client: openai.OpenAI, **more: object) -> Any:  # noqa: ANN401 - what the client gives has many forms
    asked = {"model": "default", "messages": [ASKED], "tools": TOOLS, "seed": 3, "max_tokens": 700, **more}
    create: Any = client.chat.completions.create
    return create(**asked)


def check(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), WEATHER if name == "get_weather" else {"const": {}})


def test_calls_that_are_wanted_are_made_and_what_tools_say_goes_on(client: openai.OpenAI, inside: Inside) -> None:
    [choice] = ask(client, tool_choice="required", parallel_tool_calls=False).choices
    [call] = choice.message.tool_calls
    check(call.function.name, call.function.arguments)
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    turns = [ASKED, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    went_on = ask(client, messages=turns, tool_choice="none", max_tokens=3)
    source: Any = inside.core.model.prompt_builder.tokenizer.source
    made = {"name": call.function.name, "arguments": json.loads(call.function.arguments)}
    calls = [{"id": call.id, "type": "function", "function": made}]
    chat = [ASKED, {"role": "assistant", "content": "", "tool_calls": calls}, {**turns[2], "name": call.function.name}]
    whole = source.apply_chat_template(chat, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert went_on.usage.prompt_tokens == len(source.encode(whole, add_special_tokens=False))
    assert went_on.choices[0].message.tool_calls is None


def respond(client: openai.OpenAI, **more: object) -> Any:  # noqa: ANN401 - what the client gives has many forms
    tools = [{"type": "function", **each["function"]} for each in TOOLS]
    asked = {"model": "default", "input": [ASKED], "tools": tools, "max_output_tokens": 700, **more}
    create: Any = client.responses.stream if asked.pop("streamed", False) else client.responses.create
    return create(**asked, extra_body={"seed": 3})


def called(answer: Any) -> list[tuple[str, str]]:  # noqa: ANN401
    return [(each.name, each.arguments) for each in answer.output if each.type == "function_call"]


def test_a_response_calls_as_the_chat_does_and_goes_on_as_it_does(client: openai.OpenAI) -> None:
    one = {"tool_choice": "required", "parallel_tool_calls": False}
    [choice], first = ask(client, **one).choices, respond(client, **one)
    [call] = first.output
    assert called(first) == [(each.function.name, each.function.arguments) for each in choice.message.tool_calls]
    check(call.name, call.arguments)
    said = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    free = {"tool_choice": "none", "max_output_tokens": 3}
    kept = respond(client, input=[said], previous_response_id=first.id, **free)
    whole = respond(client, input=[ASKED, call.to_dict(), said], **free)
    made = {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    turns = [
        ASKED,
        {"role": "assistant", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call.call_id, "content": "sunny"},
    ]
    chat = ask(client, messages=turns, tool_choice="none", max_tokens=3)
    assert kept.output_text == whole.output_text == chat.choices[0].message.content
    assert kept.usage.input_tokens == whole.usage.input_tokens == chat.usage.prompt_tokens
    with pytest.raises(openai.BadRequestError, match="no tool 'nope'") as caught:
        respond(client, tool_choice={"type": "function", "name": "nope"})
    assert caught.value.param == "tool_choice"


def test_a_response_is_streamed_call_by_call(client: openai.OpenAI) -> None:
    whole = respond(client, tool_choice={"type": "function", "name": "get_weather"})
    with respond(client, tool_choice={"type": "function", "name": "get_weather"}, streamed=True) as stream:
        events = [*stream]
        final = stream.get_final_response()
    assert called(final) == called(whole)
    assert {name for name, _ in called(whole)} == {"get_weather"}
    for index, (name, arguments) in enumerate(called(final)):
        mine = [each for each in events if getattr(each, "output_index", None) == index]
        deltas = [each.delta for each in mine if each.type == "response.function_call_arguments.delta"]
        [done] = [each for each in mine if each.type == "response.function_call_arguments.done"]
        assert "".join(deltas) == done.arguments == arguments
        assert [mine[0].type, mine[-1].type] == ["response.output_item.added", "response.output_item.done"]
        assert (mine[0].item.arguments, mine[-1].item.arguments) == ("", arguments)
        check(name, arguments)


def test_the_tool_that_is_named_is_called(client: openai.OpenAI) -> None:
    [choice] = ask(client, tool_choice=NAMED).choices
    assert {call.function.name for call in choice.message.tool_calls} == {"get_weather"}
    for call in choice.message.tool_calls:
        check("get_weather", call.function.arguments)


def test_streamed_pieces_are_the_whole_answer(client: openai.OpenAI) -> None:
    [choice] = ask(client, tool_choice="required").choices
    calls: dict[int, list[str]] = {}
    *chunks, last = [chunk.choices[0] for chunk in ask(client, tool_choice="required", stream=True)]
    for each in (call for chunk in chunks for call in chunk.delta.tool_calls or ()):
        if each.index not in calls:
            assert each.id and each.type == "function" and each.function.name
            calls[each.index] = [each.function.name, ""]
        calls[each.index][1] += each.function.arguments or ""
    assert [*calls.values()] == [[each.function.name, each.function.arguments] for each in choice.message.tool_calls]
    assert last.finish_reason == "tool_calls"


def test_langchain_reads_the_calls(inside: Inside) -> None:
    with langchain(inside, seed=3) as model:
        answer = model.bind_tools(TOOLS, tool_choice="any", parallel_tool_calls=False).invoke(ASKED["content"])
    [call] = answer.tool_calls
    jsonschema.validate(call["args"], WEATHER if call["name"] == "get_weather" else {"const": {}})
    assert not answer.invalid_tool_calls


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "no tool 'nope'.*get_weather, get_time"),
        ({"tools": [*TOOLS, TOOLS[1]]}, "two tools have the name 'get_time'"),
        ({"response_format": {"type": "json_object"}}, "either tools or a response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "an object"),
    ],
)
def test_what_cannot_be_called_is_refused(client: openai.OpenAI, more: Json, told: str) -> None:
    with pytest.raises(openai.BadRequestError, match=told):
        ask(client, **more)


def test_arguments_that_are_no_object_are_refused(client: openai.OpenAI) -> None:
    for arguments in ("{", "[]", '{"a": ' * 5000):
        call = {"id": "Abcdef123", "type": "function", "function": {"name": "f", "arguments": arguments}}
        with pytest.raises(openai.BadRequestError, match=r"arguments are (no JSON|a JSON object)"):
            ask(client, messages=[ASKED, {"role": "assistant", "tool_calls": [call]}])
