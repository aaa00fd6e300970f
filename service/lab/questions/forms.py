"""The forms in which applications hand passages to a model: where they stand, and what stands around them.

Knows no model and no tokens.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.model.prompt_builder import ASK, SYSTEM, PromptPassage, TurnPart, TurnParts


@dataclass(frozen=True, slots=True)
class Form:
    """A form of prompts. `{number}`, `{title}`, `{question}` are filled in; a piece without its title is two line ends.

    `opening` and `ending` stand around all passages, `lead` and `close` around each, `between` two. `role`: whose turn
    holds them; where that is the system's, the question is a turn of its own.
    """

    opening: str = ""
    lead: str = ""
    close: str = "\n({title})\n\n"
    between: str = ""
    ending: str = ""
    ask: str = ASK + "{question}"
    role: str = "user"
    is_json: bool = False

    def turns(
        self,
        passages: Sequence[PromptPassage],
        *,
        question: str,
        system: str = SYSTEM,
        before: Sequence[TurnParts] = (),
    ) -> list[TurnParts]:
        """The chat whose last part asks. `before` are turns of the chat so far."""
        asking = TurnPart(self.ask.replace("{question}", question))
        shown = tuple(self._parts(passages))
        if self.role == "system":
            head = TurnPart(system + "\n\n") if system and shown else TurnPart(system)
            return [TurnParts("system", (head, *shown)), *before, TurnParts("user", (asking,))]
        return [TurnParts("system", (TurnPart(system),)), *before, TurnParts("user", (*shown, asking))]

    def _parts(self, passages: Sequence[PromptPassage]) -> Iterator[TurnPart]:
        """Every passage with the text between it and the next one."""
        gap = self.opening
        for number, each in enumerate(passages):
            gap += self._filled(self.lead, each, number=number + 1)
            if gap:
                yield TurnPart(gap)
            yield TurnPart(self._escaped(each.text), number)
            gap = self._filled(self.close, each, number=number + 1)
            gap += self.between if number + 1 < len(passages) else self.ending
        if passages and gap:
            yield TurnPart(gap)

    def _filled(self, text: str, passage: PromptPassage, *, number: int) -> str:
        if "{title}" in text and not passage.title and not self.is_json:
            return "\n\n"
        return text.replace("{number}", str(number)).replace("{title}", self._escaped(passage.title))

    def _escaped(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.is_json else text


FORMS = {
    "titled": Form(),
    "untitled": Form(close="\n\n"),
    "numbered": Form(lead="[{number}] ", close="\n"),
    "bare": Form(close="", between=" ", ending="\n\n"),
    "json": Form(
        opening='{"documents": [',
        lead='{"title": "{title}", "text": "',
        close='"}',
        between=", ",
        ending="]}\n\n",
        is_json=True,
    ),
    "system": Form(close="\n\n", ask="{question}", role="system"),
}
