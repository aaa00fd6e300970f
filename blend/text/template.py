"""Turns chat messages into pieces of a prompt: the template's own text is trusted, every part of a message is not.

The template never sees a user's text: it renders random placeholders, and the result is cut where they stand.
"""

import inspect
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import jinja2
from transformers import PreTrainedTokenizerBase

from blend.errors import TokenizerError
from blend.text.tokenizer import Tokenizer

Option = str | int | float | bool | None

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")  # templates build control tokens from these
_APPLY = cast(Callable[..., object], PreTrainedTokenizerBase.apply_chat_template)  # pyright: ignore[reportUnknownMemberType]
_TAKEN = {"messages", *inspect.signature(_APPLY).parameters}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a chat. Its parts follow each other with nothing between them."""

    role: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartPlace:
    """A part of a message, by the numbers of both."""

    message: int
    part: int


@dataclass(frozen=True, slots=True)
class TemplatePiece:
    """A piece of the prompt: a message's part, or text of the template, which has no place."""

    text: str
    place: PartPlace | None = None

    @property
    def trusted(self) -> bool:
        """Whether this text may hold control tokens."""
        return self.place is None


def render(
    tokenizer: Tokenizer, messages: Sequence[ChatMessage], *, options: Mapping[str, Option] | None = None
) -> list[TemplatePiece]:
    """Render the prompt up to where the answer begins. Every part is returned as a piece of its own, unchanged.

    `options` are variables of the template, such as `enable_thinking`.
    """
    variables = options or {}
    _check(tokenizer, messages, options=variables)
    places = [PartPlace(i, k) for i, message in enumerate(messages) for k in range(len(message.parts))]
    nonce = secrets.token_hex(16)
    placeholders = {f"p{nonce}n{number}e": place for number, place in enumerate(places)}
    names = iter(placeholders)
    chat = [{"role": message.role, "content": "".join(next(names) for _ in message.parts)} for message in messages]
    pieces = list(_cut(_apply(tokenizer, chat, options=variables), nonce, messages=messages, places=placeholders))
    _check_all_there(pieces, places, messages=messages)
    return pieces


def tokens(tokenizer: Tokenizer, pieces: Sequence[TemplatePiece]) -> list[list[int]]:
    """The ids of every piece; a piece's ids depend on its own text alone, and on whether the prompt begins with it."""
    ids: list[list[int]] = []
    for number, piece in enumerate(pieces):
        if not piece.trusted:
            ids.append(tokenizer.encode_text(piece.text))
        elif number == 0:
            ids.append(tokenizer.encode_opening(piece.text))
        else:
            ids.append(tokenizer.encode_template(piece.text))
    return ids


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


def _apply(tokenizer: Tokenizer, chat: list[dict[str, str]], *, options: Mapping[str, Option]) -> str:
    apply = cast(Callable[..., object], tokenizer.source.apply_chat_template)  # pyright: ignore[reportUnknownMemberType]
    try:
        rendered = apply(chat, tokenize=False, add_generation_prompt=True, **options)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        roles = ", ".join(message["role"] for message in chat)
        raise TokenizerError(
            f"the model's chat template refuses messages of the roles {roles}: {error}; send what it allows"
        ) from error
    assert isinstance(rendered, str)
    return rendered


def _cut(
    rendered: str, nonce: str, *, messages: Sequence[ChatMessage], places: Mapping[str, PartPlace]
) -> Iterator[TemplatePiece]:
    for text in re.split(f"(p{nonce}n[0-9]+e)", rendered):
        place = places.get(text)
        if place is not None:
            yield TemplatePiece(messages[place.message].parts[place.part], place)
        elif text:
            yield TemplatePiece(text)


def _check_all_there(
    pieces: Sequence[TemplatePiece], places: Sequence[PartPlace], *, messages: Sequence[ChatMessage]
) -> None:
    found = Counter(piece.place for piece in pieces)
    for place in places:
        if found[place] != 1:
            role, what = messages[place.message].role, "repeats" if place in found else "leaves out or alters"
            raise TokenizerError(
                f"the model's chat template {what} the content of message {place.message}, role {role!r}: "
                "send its text under another role, such as 'user', or use another template"
            )
