"""Calls of tools: whatever is chosen among the tokens that are allowed is read as calls that the tools take."""

import json
from collections.abc import Iterator

import jsonschema
import pytest
import torch

from blend.engine.answer_builder import AnswerText
from blend.engine.engine import Done, Event, MessagePiece
from blend.engine.sampling import LogitsProcessor, Picked, Sampler, Sampling
from blend.text.template import MadeCall
from service.answers.call_reader import CallReader
from service.errors import Invalid
from service.model.call_offer import CallOffer, arguments_schema
from service.model.grammar import CallBan, Grammars
from tests.blend.test_tool_prompts import SEVERAL, SHAPES, TIME, chat_of, frame_of, stock, tokenizer_of
from tests.service.serving import Json

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


@pytest.mark.parametrize(("text", "told"), [("It rains. ", "It rains."), (" \n", ""), ("", "")])
def test_text_before_a_call_is_free_and_told(text: str, told: str) -> None:
    answer = scripted("TAGGED", said_by_transformers("TAGGED", HERE, text=text), is_needed=False)
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
