"""A chat with tools as messages for vLLM, which renders it: leaves out or refuses texts that hold control tokens.

vLLM matches control tokens in what it renders. So no text that holds one is passed to it: a passage that a search
found is left out, any other text refuses the request.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from blend.text.tokenizer import Tokenizer
from retriever.documents import Json
from service.answers.answer_request import ToolUse
from service.answers.gather import Gathered
from service.errors import Invalid

NOTE = "tools are offered: vLLM renders and computes this prompt, exactly, and nothing is handed over"


@dataclass(frozen=True, slots=True)
class ToolPrompt:
    """The chat with its passages, and the tools that its answer may call."""

    gathered: Gathered
    tools: ToolUse

    def controlled(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The passages to leave out. Raises Invalid for any other text that holds a control token."""
        gathered, found = self.gathered, set[int]()
        for number, each in enumerate(gathered.passages):
            if each.found and _holds_control(tokenizer, each.titled.text + each.titled.gap):
                found.add(number)
        for text in self._texts(frozenset(found)):
            if _holds_control(tokenizer, text):
                raise Invalid(
                    f"with tools, no text may hold a control token of the model, got {text[:80]!r}: leave it out",
                    field="messages",
                )
        return frozenset(found)

    def fields(self, without: frozenset[int]) -> Json:
        """The request as fields of vLLM's chat endpoint."""
        turns = self.gathered.turns(without=without)
        messages: list[Json] = []
        for turn, calls in zip(turns, self.tools.calls, strict=True):
            text = "".join(part.text for part in turn.parts)
            messages.append({"role": turn.role, "content": text or (None if "tool_calls" in calls else ""), **calls})
        ask = self.gathered.ask
        options = {"chat_template_kwargs": dict(ask.template)} if ask.template else {}
        return {**self.tools.fields, **options, "messages": messages, "stop": list(ask.sampling.stop)}

    def _texts(self, without: frozenset[int]) -> Iterator[str]:
        for turn in self.gathered.turns(without=without):
            yield "".join(part.text for part in turn.parts)
        for each in (self.tools.fields, *self.tools.calls, self.gathered.ask.template):
            yield from _strings(each)


def _strings(given: object) -> Iterator[str]:
    """All texts in a JSON value, names of fields too, and those in texts that are JSON themselves."""
    if isinstance(given, str):
        yield given
        try:
            inner = cast(object, json.loads(given)) if given[:1] in "{[" else None
        except ValueError:
            inner = None
        if inner is not None:
            yield from _strings(inner)
    elif isinstance(given, Mapping):
        for name, each in cast("Mapping[str, object]", given).items():
            yield name
            yield from _strings(each)
    elif isinstance(given, list | tuple):
        for each in cast("list[object]", given):
            yield from _strings(each)


def _holds_control(tokenizer: Tokenizer, text: str) -> bool:
    return not tokenizer.control.isdisjoint(tokenizer.encode_template(text))
