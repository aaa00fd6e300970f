"""Tools of a chat: what the model is told of them, and the calls that an answer makes, whole and in pieces."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import torch

from blend.engine.answer_builder import AnswerText
from blend.engine.engine import Done, Event, MessagePiece
from blend.engine.sampling import LogitsProcessor, Picked, Sampler, Sampling
from blend.text.template import MadeCall
from service.answers.call_reader import CallReader
from service.builtin import CHECKPOINT
from service.errors import Invalid
from service.model.call_offer import CallOffer, arguments_schema
from service.model.constraint import CallBan, Grammars
from tests.blend import tool_templates
from tests.blend.test_tool_prompts import SEVERAL, SHAPES, TIME, chat_of, frame_of, stock, tokenizer_of
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
ASKED = {"role": "user", "content": "What is the weather in Rome?"}
# The built-in model's own markers, around the same frames as `TAGGED`.
BUILTIN = tool_templates.TAGGED.replace("'<|im_start|>' + message.role + '\n'", "'<|' + message.role + '|>'").replace(
    "<|im_start|>assistant\n", "<|assistant|>"
)
MOST = 1500
HERE = MadeCall("Abcdef123", "get_weather", {"city": "Rome", "days": [1, 2], "at": {"x": '"}]'}})
SCHEMAS: dict[str, Json] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 5},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
            "at": {"type": "object", "properties": {"x": {"enum": ['"}]', None]}}, "additionalProperties": False},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "get_time": {**arguments_schema("get_time", None)},
}


# What a template's own way to call does not touch: pieces, clients and refusals.
by_one_template = pytest.mark.parametrize("inside", ["TAGGED"], indirect=True)


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


@by_one_template
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


@by_one_template
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


@by_one_template
def test_langchain_reads_the_calls(inside: Inside) -> None:
    with langchain(inside, seed=3) as model:
        answer = model.bind_tools(TOOLS, tool_choice="any", parallel_tool_calls=False).invoke(ASKED["content"])
    [call] = answer.tool_calls
    jsonschema.validate(call["args"], WEATHER if call["name"] == "get_weather" else {"const": {}})
    assert not answer.invalid_tool_calls


@by_one_template
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


@by_one_template
def test_arguments_that_are_no_object_are_refused(client: openai.OpenAI) -> None:
    for arguments in ("{", "[]", '{"a": ' * 5000):
        call = {"id": "Abcdef123", "type": "function", "function": {"name": "f", "arguments": arguments}}
        with pytest.raises(openai.BadRequestError, match=r"arguments are (no JSON|a JSON object)"):
            ask(client, messages=[ASKED, {"role": "assistant", "tool_calls": [call]}])


class Answer:
    """What is told of an answer, and its tokens."""

    def __init__(self, shape: str, *, is_needed: bool, stop: tuple[str, ...] = ()) -> None:
        self.ids: list[int] = []
        self.reason = ""
        self.text = ""
        self.calls: list[dict[str, str]] = []
        self._tokenizer = tokenizer_of(shape)
        self._read = CallReader(frame_of(shape), self._tokenizer, is_needed=is_needed).read
        self._answer = AnswerText(Sampling(stop=stop, max_tokens=MOST), self._tokenizer)

    def take(self, token: int) -> bool:
        """As the engine does; whether the answer goes on."""
        self.ids.append(token)
        event = self._answer.add(Picked(token))
        self._tell(self._read(event) if event else ())
        if self._answer.end is None:
            return True
        reason, text = self._answer.finish(self._answer.end)
        self._tell(self._read(Done(reason, text, len(self.ids), 0.0)))
        return False

    def _tell(self, events: Iterator[Event] | tuple[()]) -> None:
        for event in events:
            if isinstance(event, Done):
                self.reason = event.reason
            if isinstance(event, MessagePiece):
                self._merge({**event.delta})

    def _merge(self, delta: Json) -> None:
        self.text += delta.get("content", "")
        for each in delta.get("tool_calls", ()):
            if each["index"] == len(self.calls):
                self.calls.append({"id": each["id"], "name": each["function"]["name"], "arguments": ""})
            self.calls[each["index"]]["arguments"] += each["function"].get("arguments", "")


def size_of(shape: str) -> int:
    return len(tokenizer_of(shape).source)


def processor_of(shape: str, *, is_needed: bool, is_several: bool = True) -> LogitsProcessor:
    offer = CallOffer(SCHEMAS, is_needed=is_needed, is_several=is_several)
    return Grammars(tokenizer_of(shape), size_of(shape)).calls(offer, frame_of(shape))


def random_answer(shape: str, *, seed: int, is_several: bool = True) -> Answer:
    """An answer that has to call, of a model with nothing in its head."""
    answer = Answer(shape, is_needed=True)
    sampling = Sampling(temperature=1, seed=seed, processor=processor_of(shape, is_needed=True, is_several=is_several))
    sampler = Sampler(sampling, [], device=torch.device("cpu"))
    noise = torch.Generator().manual_seed(seed)
    while answer.take(sampler.pick(3 * torch.randn(size_of(shape), generator=noise)).token):
        pass
    return answer


def scripted(shape: str, ids: list[int], *, is_needed: bool) -> Answer:
    """An answer of a model that wants these tokens, and gets them where they are allowed."""
    answer, processor = Answer(shape, is_needed=is_needed), processor_of(shape, is_needed=is_needed)
    for at, token in enumerate(ids):
        logits = torch.zeros(size_of(shape))
        logits[token] = 1
        assert int(processor(ids[:at], logits).argmax()) == token, tokenizer_of(shape).decode(ids[: at + 1])
        answer.take(token)
    return answer


def said_by_transformers(shape: str, *calls: MadeCall, text: str = "") -> list[int]:
    """The tokens of an assistant's turn with calls, behind a prompt; its end is the last one."""
    chat = chat_of(*calls)[:2]
    before = stock(shape, chat[:1], tools=[])
    after = stock(shape, chat, tools=[], add_generation_prompt=False)
    assert after.startswith(before)
    source = tokenizer_of(shape).source
    ids: list[int] = source.encode(before + text + after.removeprefix(before), add_special_tokens=False)
    begin = len(source.encode(before, add_special_tokens=False))
    return ids[begin : len(ids) - ids[::-1].index(min(tokenizer_of(shape).stop_ids))]


@pytest.mark.parametrize("shape", SHAPES)
def test_any_choice_among_the_allowed_tokens_is_calls_that_the_tools_take(shape: str) -> None:
    counts: set[int] = set()
    for seed in range(8):
        answer = random_answer(shape, seed=seed)
        assert (answer.reason, answer.text) == ("tool_calls", "")
        for call in answer.calls:
            jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
        assert len({call["id"] for call in answer.calls}) == len(answer.calls)
        check_is_rendered_alike(shape, answer)
        counts.add(len(answer.calls))
    assert counts == {1} if shape not in SEVERAL else max(counts) > 1


def check_is_rendered_alike(shape: str, answer: Answer) -> None:
    """The next prompt has the answer's frame in its tokens, and its arguments as they were written."""
    tokenizer = tokenizer_of(shape)
    made = [MadeCall(call["id"], call["name"], json.loads(call["arguments"])) for call in answer.calls]
    ids = said_by_transformers(shape, *made)
    opening = len(tokenizer.encode_template(frame_of(shape).opening.text + made[0].name))
    assert answer.ids[:opening] == ids[:opening]
    assert [each for each in answer.ids if each in tokenizer.control] == [
        each for each in ids if each in tokenizer.control
    ]
    if all(json.dumps(call.arguments, ensure_ascii=False) in tokenizer.decode(answer.ids) for call in made):
        assert tokenizer.decode(answer.ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("shape", SEVERAL)
def test_one_call_alone_is_made_where_one_is_wanted(shape: str) -> None:
    assert all(len(random_answer(shape, seed=seed, is_several=False).calls) == 1 for seed in range(5))


@pytest.mark.parametrize("is_needed", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_transformers_renders_for_calls_is_allowed_and_read_as_them(shape: str, *, is_needed: bool) -> None:
    calls = [HERE, TIME] if shape in SEVERAL else [HERE]
    answer = scripted(shape, said_by_transformers(shape, *calls), is_needed=is_needed)
    assert answer.reason == "tool_calls"
    assert [(each["name"], json.loads(each["arguments"])) for each in answer.calls] == [
        (call.name, call.arguments) for call in calls
    ]
    if shape == "LISTED":
        assert [each["id"] for each in answer.calls] == [call.id for call in calls]


@pytest.mark.parametrize("shape", ["TAGGED", "INDENTED"])
@pytest.mark.parametrize(("text", "told"), [("It rains. ", "It rains."), (" \n", ""), ("", "")])
def test_text_before_a_call_is_free_and_told(shape: str, text: str, told: str) -> None:
    answer = scripted(shape, said_by_transformers(shape, HERE, text=text), is_needed=False)
    assert (answer.text, answer.reason, len(answer.calls)) == (told, "tool_calls", 1)


@pytest.mark.parametrize("text", ['{"name": 7}', '{"nam', "no { call", '{"names": "get_time"}'])
def test_text_that_is_no_call_is_text(text: str) -> None:
    tokenizer = tokenizer_of("BARE")
    answer = scripted("BARE", [*tokenizer.encode_text(text), min(tokenizer.stop_ids)], is_needed=False)
    assert (answer.text, answer.reason, answer.calls) == (text, "stop", [])


def test_a_call_that_a_text_begins_with_is_bound_in_the_token_that_ends_its_beginning() -> None:
    tokenizer = tokenizer_of("BARE")
    [*others, quote] = tokenizer.encode_text('{"name": "')
    processor = processor_of("BARE", is_needed=False)
    steps = [processor(others[:at], torch.zeros(size_of("BARE"))).isfinite() for at in range(len(others) + 1)]
    allowed = steps[-1]
    pieces = [tokenizer.token_bytes(token) for token in range(size_of("BARE"))]
    assert {pieces[token] for token in (~allowed).nonzero()[:, 0].tolist()} <= {
        piece for piece in pieces if piece.startswith(b'"')
    }
    behind = processor([*others, quote], torch.zeros(size_of("BARE"))).isfinite()
    assert {pieces[token][:1] for token in behind.nonzero()[:, 0].tolist()} == {b"g"}


def test_a_stop_string_ends_text_and_a_call_that_it_cuts_is_none() -> None:
    tokenizer = tokenizer_of("TAGGED")
    answer = Answer("TAGGED", is_needed=False, stop=("Rome",))
    for token in said_by_transformers("TAGGED", HERE, text="Where? "):
        if not answer.take(token):
            break
    assert (answer.text, answer.reason) == ("Where?", "stop")
    answer = Answer("TAGGED", is_needed=False, stop=("END",))
    all(answer.take(token) for token in tokenizer.encode_text("An EN, and END"))
    assert (answer.text, answer.reason, answer.calls) == ("An EN, and ", "stop", [])


def test_where_no_call_is_wanted_none_begins() -> None:
    frame = frame_of("TAGGED")
    logits = CallBan(frame)([], torch.zeros(size_of("TAGGED")))
    assert (~logits.isfinite()).nonzero()[:, 0].tolist() == [frame.control]


def test_parameters_that_cannot_be_followed_are_refused_by_the_name_of_their_tool() -> None:
    unknown: Json = {"type": "object", "unevaluatedProperties": False}
    grammars, frame = Grammars(tokenizer_of("TAGGED"), size_of("TAGGED")), frame_of("TAGGED")
    with pytest.raises(Invalid, match=r"tool 'odd'.*unevaluatedProperties") as caught:
        grammars.calls(CallOffer({**SCHEMAS, "odd": unknown}), frame)
    assert caught.value.field == "tools"
    many: Json = {"type": "object", "properties": {f"p{number}": {} for number in range(1000)}}
    with pytest.raises(Invalid, match=r"all tools together.*at most 1,000"):
        grammars.calls(CallOffer({"one": many}), frame)
    with pytest.raises(Invalid, match="the tool 'word' have the type 'string'"):
        arguments_schema("word", {"type": "string"})
