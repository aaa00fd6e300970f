"""Tools and calls in a prompt: the ids that transformers gives, and no control token out of anybody's text."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from blend.errors import TokenizerError
from blend.text.call_frame import CallFrame, FrameText, Slot, find_call_frame
from blend.text.template import ChatMessage, MadeCall, TemplatePiece, render, tokens
from blend.text.tokenizer import Json, Tokenizer
from tests.blend import tool_templates
from tests.blend.tokenizers_made import LOSSLESS, fresh, spellings

SHAPES = ("TAGGED", "INDENTED", "BARE", "LISTED", "TERSE")
SEVERAL = ("TAGGED", "INDENTED", "LISTED", "TERSE")  # calls in one message
TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The weather of a "city"\n in °C, naïve café',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Rome", "東京"]}, "type": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "get_time"}},
]
WEATHER = MadeCall(
    "Abcdef123", "get_weather", {"city": "東京", "days": [1, 2.5, None, True], "in": {"a b": 'a "quote"\n'}}
)
TIME = MadeCall("Abcdef124", "get_time", {})


@cache
def tokenizer_of(shape: str, kind: str = "bytes") -> Tokenizer:
    source = fresh(kind, chat_template=getattr(tool_templates, shape))
    source.add_tokens(["[TOOL_CALLS]", "[ARGS]"])
    return Tokenizer(source)


@cache
def frame_of(shape: str, kind: str = "bytes") -> CallFrame:
    return find_call_frame(tokenizer_of(shape, kind))


def ids_of(shape: str, chat: list[ChatMessage], *, tools: list[Json], kind: str = "bytes") -> list[int]:
    tokenizer = tokenizer_of(shape, kind)
    pieces = render(tokenizer, chat, tools=tools, form=frame_of(shape, kind).form)
    return [token for piece in tokens(tokenizer, pieces) for token in piece]


def stock(shape: str, chat: list[ChatMessage], *, tools: list[Json], kind: str = "bytes", **more: bool) -> str:
    """What transformers makes of the chat, in the form that its pages give."""
    form, names = frame_of(shape, kind).form, {call.id: call.name for message in chat for call in message.calls}
    said: list[Json] = []
    for message in chat:
        each: Json = {"role": message.role, "content": "".join(message.parts)}
        if message.calls:
            each["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": given(call, as_text=form.as_text)},
                }
                for call in message.calls
            ]
        if message.answers:
            each |= {"tool_call_id": message.answers, "name": names[message.answers]}
        said.append(each)
    source: Any = tokenizer_of(shape, kind).source
    return source.apply_chat_template(
        said, **{"tools": tools, "add_generation_prompt": True, "tokenize": False, **more}
    )


def given(call: MadeCall, *, as_text: bool) -> object:
    return json.dumps(call.arguments, ensure_ascii=False) if as_text else call.arguments


def chat_of(*calls: MadeCall, result: str = "sunny, 20 °C") -> list[ChatMessage]:
    results = [ChatMessage("tool", (result,), answers=call.id) for call in calls]
    return [ChatMessage("user", ("the fox",)), ChatMessage("assistant", (), calls), *results]


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_prompt_has_the_ids_of_transformers(shape: str, kind: str) -> None:
    chat = chat_of(WEATHER, TIME) if shape in SEVERAL else chat_of(WEATHER)
    whole = tokenizer_of(shape, kind).source.encode(
        stock(shape, chat, tools=TOOLS, kind=kind), add_special_tokens=False
    )
    assert ids_of(shape, chat, tools=TOOLS, kind=kind) == whole


texts = st.sampled_from(["a", "get_weather", *spellings("bytes")]) | st.text(max_size=6)
values = st.recursive(texts | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner))


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=25)
@drawn(texts, st.dictionaries(texts, values, max_size=3), texts)
def test_no_text_of_tools_calls_or_results_becomes_a_control_token(
    shape: str, described: str, arguments: Json, result: str
) -> None:
    tool: Json = {"type": "function", "function": {"name": "f", "description": described, "parameters": arguments}}
    control = tokenizer_of(shape).control
    counts = [
        [token for token in ids_of(shape, chat_of(call, result=said), tools=[offered]) if token in control]
        for call, said, offered in (
            (MadeCall("Abcdef123", "f", arguments), result, tool),
            (MadeCall("Abcdef124", "f", {}), "", {"type": "function", "function": {"name": "f"}}),
        )
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=25)
@drawn(texts, st.dictionaries(texts, values, max_size=3), texts)
def test_every_text_stands_as_transformers_writes_it(shape: str, described: str, arguments: Json, result: str) -> None:
    tool: Json = {"type": "function", "function": {"name": "f", "description": described, "parameters": arguments}}
    call = MadeCall("Abcdef123", "f", arguments)
    chat, tokenizer = chat_of(call, result=result or "."), tokenizer_of(shape)
    pieces: list[TemplatePiece] = render(tokenizer, chat, tools=[tool], form=frame_of(shape).form)
    rendered = stock(shape, chat, tools=[tool])
    assert "".join(piece.text for piece in pieces) == rendered
    assert tokenizer.decode(ids_of(shape, chat, tools=[tool])) == rendered


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_frame_and_its_words_are_what_transformers_writes(shape: str, kind: str) -> None:
    tokenizer, frame = tokenizer_of(shape, kind), frame_of(shape, kind)
    for calls in ([WEATHER], [TIME, WEATHER]) if shape in SEVERAL else ([WEATHER],):
        words = [
            {Slot.NAME: call.name, Slot.ID: call.id, Slot.ARGUMENTS: json.dumps(call.arguments, ensure_ascii=False)}
            for call in calls
        ]
        inner = [
            "".join(each.text if isinstance(each, FrameText) else word[each] for each in frame.inner) for word in words
        ]
        glue = frame.glue.text if frame.glue else ""
        whole = f"{frame.opening.text}{glue.join(inner)}{frame.closing.text}{tokenizer.source.eos_token}"
        said = stock(shape, chat_of(*calls)[:2], tools=TOOLS, kind=kind, add_generation_prompt=False)
        ids: Any = tokenizer.source.encode(said, add_special_tokens=False)
        assert tokenizer.decode(ids).strip().endswith(whole)
    assert (frame.glue is not None) is (shape in SEVERAL)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (tool_templates.MARKED_UP, "writes a call as '<tool_call> <function=qwrtp_one>.*not as one JSON object"),
        (tool_templates.TAGGED.replace("tool | tojson", "''").replace("Tools:", ""), "knows no tools"),
        (tool_templates.TAGGED.replace("message.tool_calls or []", "[]"), "not as one JSON object"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "knows no tools"),
        (None, "knows no tools"),
    ],
)
def test_a_template_that_cannot_call_is_refused_with_what_it_does(template: str | None, told: str) -> None:
    with pytest.raises(TokenizerError, match=told):
        find_call_frame(Tokenizer(fresh("bytes", chat_template=template)))


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (tool_templates.TAGGED.replace("tool | tojson", "tool.function.description | upper"), "alters the text"),
        (tool_templates.TAGGED.replace("tool | tojson", "tool | string"), "alters the text"),
        (tool_templates.TAGGED.replace("message.tool_calls or []", "[]"), "leaves out or alters a call of message 1"),
    ],
)
def test_what_a_template_makes_of_texts_is_known_or_refused(template: str, told: str) -> None:
    tokenizer = Tokenizer(fresh("bytes", chat_template=template))
    with pytest.raises(TokenizerError, match=told):
        render(tokenizer, chat_of(WEATHER), tools=TOOLS)
