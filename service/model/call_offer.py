"""Calls of tools by the frame of the model's template: the grammar of answers that make them, and where they begin."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from llguidance import LLMatcher

from blend.text.call_frame import ID, CallFrame, FrameText, Slot
from blend.text.tokenizer import Tokenizer
from retriever.documents import Json
from service.errors import Invalid
from service.model.schema_grammar import look_ahead, spaced

FIELD: Final = "tools"
MOST_CALLS: Final = 16  # in one answer


@dataclass(frozen=True, slots=True)
class CallOffer:
    """The functions that an answer may call, by their names with the schemas of their arguments.

    `is_needed`: it has to call; else it may, in the place of text. `is_several`: more than once.
    """

    functions: Mapping[str, Json]
    is_needed: bool = False
    is_several: bool = True

    def grammar(self, frame: CallFrame, *, spelled: bool = False) -> str:
        """The grammar in llguidance's form; `spelled` has control tokens as text, for a check without a vocabulary."""
        return LLMatcher.grammar_from_lark("\n".join(self._rules(frame, spelled=spelled)))

    @property
    def schema(self) -> Json:
        """One schema that has all others as its parts."""
        return {"anyOf": [*self.functions.values()]}

    def _rules(self, frame: CallFrame, *, spelled: bool) -> Iterator[str]:
        most = MOST_CALLS - 1 if self.is_several else 0
        opening, closing = (_terms(each, spelled=spelled) for each in (frame.opening, frame.closing))
        more = "" if frame.glue is None or not most else f"({_terms(frame.glue, spelled=spelled)} call){{0,{most}}}"
        yield f"{look_ahead(self.functions.values())}start: {opening} call {more} {closing}"
        yield "call: " + " | ".join(f"call_{number}" for number in range(len(self.functions)))
        for number, (name, schema) in enumerate(self.functions.items()):
            slots = {Slot.NAME: json.dumps(name), Slot.ID: f"/{ID.pattern}/", Slot.ARGUMENTS: f"arguments_{number}"}
            parts = (slots[each] if isinstance(each, Slot) else _terms(each, spelled=spelled) for each in frame.inner)
            yield f"call_{number}: {' '.join(parts)}"
            item, key = frame.separators
            yield f"arguments_{number}: {spaced(schema, item=item, key=key)}"


def arguments_schema(name: str, parameters: Json | None) -> Json:
    """The schema of a function's arguments: an object, without parameters an empty one. Raises Invalid for another."""
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if parameters.get("type", "object") != "object":
        reason = f"the parameters of the tool {name!r} have the type {parameters['type']!r}: arguments are an object"
        raise Invalid(reason, field=FIELD)
    return {"type": "object", **parameters}


def _terms(text: FrameText, *, spelled: bool) -> str:
    """A text of the frame as the grammar has it."""
    if spelled:
        return json.dumps(text.text) if text.text else ""
    return " ".join(f"<[{each}]>" if isinstance(each, int) else json.dumps(each) for each in text.tokens)


class CallStart:
    """One answer, token by token. Its calls begin at the first control token of the frame; where the frame begins
    with none, with the answer, as soon as all of it is how the frame opens.
    """

    def __init__(self, frame: CallFrame, tokenizer: Tokenizer) -> None:
        self.begun: int | None = None  # the number of the calls' first token
        self._control = frame.control
        self._opening = frame.opening.text.encode()
        self._tokenizer = tokenizer
        self._read = 0
        self._spelled: bytes | None = b""  # the answer so far, while it may still become a call; else None

    def read(self, ids: Iterable[int]) -> None:
        """Takes the next tokens."""
        for token in ids:
            if self.begun is None:
                self._take(token)
            self._read += 1

    @property
    def awaited(self) -> bytes:
        """What a call of a frame without control tokens would go on with; empty where there is none any more."""
        if self._control is not None or self._spelled is None or self.begun is not None:
            return b""
        return self._opening[len(self._spelled) :]

    def _take(self, token: int) -> None:
        if self._control is not None:
            self.begun = self._read if token == self._control else None
        elif self._spelled is not None:
            self._spelled += self._tokenizer.token_bytes(token)
            if self._spelled.startswith(self._opening):
                self.begun = 0
            elif not self._opening.startswith(self._spelled):
                self._spelled = None
