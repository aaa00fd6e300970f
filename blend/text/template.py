"""Renders chat messages into trusted and untrusted pieces; refuses bad roles and options, templates that lose a text.

The template never sees a user's text: it renders marks in their place, and the result is cut where they stand.
"""

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import jinja2
from transformers import PreTrainedTokenizerBase

from blend.errors import TokenizerError
from blend.text.marks import Marks, WrittenText
from blend.text.tokenizer import Json, Stretch, Tokenizer

Fields = Mapping[str, object]  # of JSON
Option = str | int | float | bool | None

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")  # templates build control tokens from these
_APPLY = cast(Callable[..., object], PreTrainedTokenizerBase.apply_chat_template)  # pyright: ignore[reportUnknownMemberType]
_TAKEN = {"messages", *inspect.signature(_APPLY).parameters}


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call of a tool that an answer made."""

    id: str
    name: str
    arguments: Fields


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a template takes calls: `empty` is the content of a message that has calls alone, None for a message without
    one; `as_text` says whether arguments are given as text of JSON.
    """

    empty: str | None = None
    as_text: bool = False

    def message(self, calls: Sequence[MadeCall], *, content: str = "") -> Json:
        """A message with calls, as the template gets it."""
        said = content or self.empty
        return {
            "role": "assistant",
            "tool_calls": [self._call(call) for call in calls],
            **({} if said is None else {"content": said}),
        }

    def _call(self, call: MadeCall) -> Json:
        arguments = json.dumps(call.arguments, ensure_ascii=False) if self.as_text else call.arguments
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a chat. Its parts follow each other with nothing between them.

    `calls`: those that an assistant's turn makes; `answers`: the id of the call that a tool's turn answers.
    """

    role: str
    parts: tuple[str, ...]
    calls: tuple[MadeCall, ...] = ()
    answers: str = ""


@dataclass(frozen=True, slots=True)
class PartPlace:
    """A part of a message, by the numbers of both."""

    message: int
    part: int


@dataclass(frozen=True, slots=True)
class TemplatePiece:
    """A piece of the prompt: a message's part, as the template writes it, or text of the template, which has no place.

    `foreign`: the stretches of the template's text that tools and calls are, which nobody may trust.
    """

    text: str
    place: PartPlace | None = None
    foreign: tuple[Stretch, ...] = ()

    @property
    def trusted(self) -> bool:
        """Whether this text may hold control tokens, outside of what is foreign."""
        return self.place is None


def render(
    tokenizer: Tokenizer,
    messages: Sequence[ChatMessage],
    *,
    options: Mapping[str, Option] | None = None,
    tools: Sequence[Fields] = (),
    form: CallForm = CallForm(),
) -> list[TemplatePiece]:
    """Render the prompt up to where the answer begins. Every part is returned as a piece of its own.

    `options` are variables of the template, such as `enable_thinking`; `tools` are in OpenAI's form.
    """
    variables = options or {}
    _check(tokenizer, messages, options=variables)
    marked = _MarkedChat(messages, tools, form=form)
    return marked.pieces(apply(tokenizer, marked.chat, tools=marked.tools, add_generation_prompt=True, **variables))


def tokens(tokenizer: Tokenizer, pieces: Sequence[TemplatePiece]) -> list[list[int]]:
    """The ids of every piece; a piece's ids depend on its own text alone, and on whether the prompt begins with it."""
    ids: list[list[int]] = []
    for number, piece in enumerate(pieces):
        if not piece.trusted:
            ids.append(tokenizer.encode_text(piece.text))
        elif number == 0:
            ids.append(tokenizer.encode_opening(piece.text, piece.foreign))
        else:
            ids.append(tokenizer.encode_template(piece.text, piece.foreign))
    return ids


def apply(tokenizer: Tokenizer, chat: Sequence[Fields], *, tools: Sequence[Fields] = (), **variables: Option) -> str:
    """What the template makes of a chat in the form that transformers takes. No text in it may be a user's."""
    apply_template = cast(Callable[..., object], tokenizer.source.apply_chat_template)  # pyright: ignore[reportUnknownMemberType]
    try:
        rendered = apply_template([*chat], tools=[*tools] or None, tokenize=False, **variables)
    except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        roles = ", ".join(str(message["role"]) for message in chat)
        raise TokenizerError(
            f"the model's chat template refuses messages of the roles {roles}: {error}; send what it allows"
        ) from error
    assert isinstance(rendered, str)
    return rendered


def _check(tokenizer: Tokenizer, messages: Sequence[ChatMessage], *, options: Mapping[str, Option]) -> None:
    if not cast(object, tokenizer.source.chat_template):  # pyright: ignore[reportUnknownMemberType]
        raise TokenizerError("the model has no chat template: use a model that has one, or give one with the model")
    if not messages:
        raise TokenizerError("a chat needs at least one message, got none")
    for message in messages:
        if not _ROLE.fullmatch(message.role):
            raise TokenizerError(f"a role is a word such as 'user', got {message.role!r}")
    for name, value in options.items():
        if name in _TAKEN:
            raise TokenizerError(f"the template option {name!r} is set by the prompt itself: leave it out")
        if isinstance(value, str) and not tokenizer.control.isdisjoint(tokenizer.encode_opening(value)):
            raise TokenizerError(f"the template option {name!r} holds a control token: {value!r}")


class _MarkedChat:
    """A chat and tools as a template gets them, with marks in the places of texts."""

    def __init__(self, messages: Sequence[ChatMessage], tools: Sequence[Fields], *, form: CallForm) -> None:
        self._marks = Marks()
        self._messages = messages
        self._form = form
        self._places: dict[int, PartPlace] = {}  # by the numbers of marks
        self._calls: dict[int, int] = {}  # messages by the numbers of their calls' marks
        self._names = {call.id: call.name for message in messages for call in message.calls}
        self.chat = [self._message(number, message) for number, message in enumerate(messages)]
        self.tools = [cast(Json, self._marks.within(tool)) for tool in tools]

    def pieces(self, rendered: str) -> list[TemplatePiece]:
        """What was rendered, with the texts in their places. Raises TokenizerError where one is not there."""
        written = [*self._marks.cut(rendered)]
        found = Counter(each.mark for each in written)
        for mark, place in self._places.items():
            self._check_said(place.message, "the content", times=found[mark], most=1)
        for mark, message in self._calls.items():
            self._check_said(message, "a call", times=found[mark], most=len(written))
        for each in written:
            if each.mark is None:
                self._marks.check_unaltered(each.text)
        return [*_joined(written, self._places)]

    def _check_said(self, message: int, what: str, *, times: int, most: int) -> None:
        if not 1 <= times <= most:
            verb, role = "repeats" if times else "leaves out or alters", self._messages[message].role
            raise TokenizerError(
                f"the model's chat template {verb} {what} of message {message}, role {role!r}: "
                "send its text under another role, such as 'user', or use another template"
            )

    def _message(self, number: int, message: ChatMessage) -> Json:
        content = "".join(self._part(PartPlace(number, part), text) for part, text in enumerate(message.parts))
        made: Json = {"role": message.role, "content": content}
        if message.calls:
            calls = [self._call(call, number) for call in message.calls]
            made = self._form.message(calls, content=content)
        if message.answers:
            made["tool_call_id"] = self._marks.id(message.answers)
            made["name"] = self._marks.shared(self._names.get(message.answers, ""))
        return made

    def _part(self, place: PartPlace, text: str) -> str:
        mark = self._marks.new(text)
        self._places[self._marks.number(mark)] = place
        return mark

    def _call(self, call: MadeCall, message: int) -> MadeCall:
        name, arguments = self._marks.new(call.name), self._marks.within(call.arguments)
        self._calls[self._marks.number(name)] = message
        return MadeCall(self._marks.id(call.id), name, cast(Json, arguments))


def _joined(written: Sequence[WrittenText], places: Mapping[int, PartPlace]) -> Iterator[TemplatePiece]:
    """Pieces: a part is one, and all that is between two parts."""
    text, foreign = "", list[Stretch]()
    for each in written:
        place = None if each.mark is None else places.get(each.mark)
        if place is None:
            if each.mark is not None:
                foreign.append((len(text), len(text) + len(each.text)))
            text += each.text
            continue
        if text:
            yield TemplatePiece(text, None, tuple(foreign))
        yield TemplatePiece(each.text, place)
        text, foreign = "", []
    if text:
        yield TemplatePiece(text, None, tuple(foreign))
