"""Finds out how a chat template writes tool calls, by having it render some, and what a call not asked for begins with.

A call is a frame with places for its name, its arguments and, in some templates, its id.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Final

from blend.errors import TokenizerError
from blend.text.template import CallForm, MadeCall, apply
from blend.text.tokenizer import Json, Stretch, Tokenizer

Separators = tuple[str, str]  # between members of JSON, and behind their names


class Slot(StrEnum):
    """What changes from call to call."""

    NAME = "name"
    ID = "id"
    ARGUMENTS = "arguments"


ID: Final = re.compile("[A-Za-z0-9]{9}")  # of calls: the one form that all templates take

_USER: Json = {"role": "user", "content": "Which one?"}
_CONTENT = "qwrtp content"
_NAMES = ("qwrtp_one", "qwrtp_two")
_IDS = ("Qwrtp0001", "Qwrtp0002")
_ARGUMENTS: Json = {"qwrtp": "vbnmc", "inside": {"list": [1.5, True, None], "text": "a b"}, "number": 7}
_OFFERED = ("qwrtp_up", "qwrtp_at")
_TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"qwrtp": {"type": "string", "description": "A word."}}},
        },
    }
    for name in _OFFERED
]
_FORMS = tuple(CallForm(empty, as_text) for as_text in (False, True) for empty in (None, ""))
_SEPARATORS: tuple[Separators, ...] = ((", ", ": "), (",", ":"))
_ORDERS = (sorted([Slot.NAME, Slot.ARGUMENTS]), sorted(Slot))
_REMEDY = "use a model whose template does, or vLLM as the generator, with its parser for the model"


@dataclass(frozen=True, slots=True)
class FrameText:
    """Text of a frame, as a decoder gives it back, in the tokens of the model: ids of control tokens, and text between
    them.
    """

    text: str
    tokens: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class CallFrame:
    """What stands around names and arguments: `opening` before the first call's, `inner` from its first place to its
    last, `glue` between two calls, `closing` behind the last one. `glue` is None where a message has one call.
    """

    opening: FrameText
    inner: tuple[FrameText | Slot, ...]
    glue: FrameText | None
    closing: FrameText
    separators: Separators
    form: CallForm

    @property
    def control(self) -> int | None:
        """The control token by which calls are told from text; None where they begin with none."""
        return next((each for each in self.opening.tokens if isinstance(each, int)), None)

    @property
    def behind_text(self) -> "CallFrame":
        """The frame of calls that an answer may make behind text: from the control token on by which they are told."""
        if self.control is None:
            return self
        at = self.opening.tokens.index(self.control)
        front = "".join(map(str, self.opening.tokens[:at]))
        return replace(self, opening=FrameText(self.opening.text.removeprefix(front), self.opening.tokens[at:]))

    @property
    def controls(self) -> frozenset[int]:
        """The control tokens of the frame."""
        texts = [self.opening, *self.inner, self.glue, self.closing]
        tokens = (token for each in texts if isinstance(each, FrameText) for token in each.tokens)
        return frozenset(token for token in tokens if isinstance(token, int))


def find_call_frame(tokenizer: Tokenizer) -> CallFrame:
    """The frame of a model's template. Raises TokenizerError where it knows no tools, or calls of another form."""
    reason = TokenizerError(f"the model's chat template knows no tools: {_REMEDY}")
    if not tokenizer.source.chat_template:  # pyright: ignore[reportUnknownMemberType]
        raise reason
    try:
        known = all(name in apply(tokenizer, [_USER], tools=_TOOLS) for name in _OFFERED)
    except TokenizerError:
        known = False
    if not known:
        raise reason
    reasons: list[TokenizerError] = []
    for form in _FORMS:
        try:
            return _found(tokenizer, form)
        except TokenizerError as error:
            reasons.append(error)
    raise reasons[0]


def _found(tokenizer: Tokenizer, form: CallForm) -> CallFrame:
    """The frame of calls in this form. Raises TokenizerError where they are not written as JSON, each with its name."""
    one = _frame(tokenizer, form, calls=1)
    try:
        two = _frame(tokenizer, form, calls=2)
    except TokenizerError:
        return one
    return two if replace(two, glue=None) == one else one


def _frame(tokenizer: Tokenizer, form: CallForm, *, calls: int) -> CallFrame:
    """The frame of a message with so many calls."""
    spelled = _spelled_calls(tokenizer, form, calls=calls)
    separators = next((each for each in _SEPARATORS if _arguments(each) in spelled.text), None)
    if separators is None:
        shown = " ".join(spelled.text.split())[:160]
        raise TokenizerError(
            f"the model's chat template writes a call as {shown!r}, its arguments not as one JSON object: {_REMEDY}"
        )
    found = [*_slots(spelled.text, separators)]
    each = len(found) // calls
    order = [slot for slot, _ in found]
    if order != order[:each] * calls or sorted(order[:each]) not in _ORDERS:
        raise TokenizerError(f"the model's chat template does not write name and arguments of a call once: {_REMEDY}")
    starts, stops = ([place[side] for _, place in found] for side in (0, 1))
    end = next(
        (start for token, (start, _) in spelled.controls if token in tokenizer.stop_ids and start >= stops[-1]), None
    )
    return CallFrame(
        opening=spelled.cut(0, starts[0]),
        inner=tuple(_inner(spelled, found[:each])),
        glue=spelled.cut(stops[each - 1], starts[each]) if calls > 1 else None,
        closing=spelled.cut(stops[-1], len(spelled.text.rstrip()) if end is None else end),
        separators=separators,
        form=form,
    )


@dataclass(frozen=True, slots=True)
class _Spelled:
    """A text as its tokens spell it, and where the control tokens among them stand."""

    text: str
    controls: tuple[tuple[int, Stretch], ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, text: str) -> "_Spelled":
        """What the tokens of a rendered chat say."""
        said, controls = "", list[tuple[int, Stretch]]()
        for is_control, run in groupby(tokenizer.encode_opening(text), key=tokenizer.control.__contains__):
            for ids in [[each] for each in run] if is_control else [[*run]]:
                begin, said = len(said), said + tokenizer.decode(ids)
                controls += [(ids[0], (begin, len(said)))] if is_control else []
        return cls(said, tuple(controls))

    def cut(self, start: int, stop: int) -> FrameText:
        """A part of it."""
        tokens: list[int | str] = []
        at = start
        for token, (begin, end) in self.controls:
            if start <= begin and end <= stop:
                tokens += [self.text[at:begin], token]
                at = end
        tokens.append(self.text[at:stop])
        return FrameText(self.text[start:stop], tuple(each for each in tokens if each != ""))

    def behind(self, start: int) -> "_Spelled":
        """All of it from there on."""
        kept = ((token, (a - start, b - start)) for token, (a, b) in self.controls if a >= start)
        return _Spelled(self.text[start:], tuple(kept))


def _spelled_calls(tokenizer: Tokenizer, form: CallForm, *, calls: int) -> _Spelled:
    """All that stands in an assistant's turn with so many calls, and behind it."""
    made = [MadeCall(id, name, _ARGUMENTS) for id, name in zip(_IDS[:calls], _NAMES, strict=False)]
    said: Json = {"role": "assistant", "content": _CONTENT}
    plain, calling = (
        _Spelled.of(tokenizer, apply(tokenizer, [_USER, each], tools=_TOOLS)) for each in (said, form.message(made))
    )
    pairs = enumerate(zip(plain.text, calling.text, strict=False))
    begin = next((at for at, (one, other) in pairs if one != other), min(len(plain.text), len(calling.text)))
    within = [start for _, (start, stop) in calling.controls if start < begin < stop]
    return calling.behind(min([begin, *within]))


def _arguments(separators: Separators) -> str:
    return json.dumps(_ARGUMENTS, separators=separators)


def _slots(text: str, separators: Separators) -> Iterator[tuple[Slot, Stretch]]:
    """The places in a text, in order."""
    texts = {**dict.fromkeys(_NAMES, Slot.NAME), **dict.fromkeys(_IDS, Slot.ID), _arguments(separators): Slot.ARGUMENTS}
    for found in re.finditer("|".join(map(re.escape, texts)), text):
        yield texts[found[0]], found.span()


def _inner(spelled: _Spelled, found: Sequence[tuple[Slot, Stretch]]) -> Iterator[Slot | FrameText]:
    """The places of a call, with the text between each two."""
    for (slot, (_, end)), (_, (start, _)) in pairwise(found):
        yield from (slot, spelled.cut(end, start))
    yield found[-1][0]
