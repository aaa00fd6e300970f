"""Where everything stands in a prompt: system prompt, passages, question. Knows templates, but no caches and no search.

The order is fixed: the template's head, the passages with a gap behind each, the question, the template's tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from blend import template
from blend.errors import TokenizerError
from blend.prompt import Chunk, Prompt, Source, Text
from blend.template import Message
from blend.tokens import Tokenizer

SYSTEM = "Answer the question from the documents."
ASK = "Question: "


@dataclass(frozen=True, slots=True)
class Titled:
    """A passage in a prompt. Its title follows it, so that the first passage stands right behind the prefix."""

    text: str
    title: str = ""

    @property
    def gap(self) -> str:
        return f"\n({self.title})\n\n" if self.title else "\n\n"


@dataclass(frozen=True, slots=True)
class Assembled:
    """Token ids. `gaps` are as many as `passages`: what stands behind each."""

    prefix: tuple[int, ...]
    passages: tuple[tuple[int, ...], ...]
    gaps: tuple[tuple[int, ...], ...]
    suffix: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Of the whole prompt."""
        return len(self.prefix) + sum(map(len, (*self.passages, *self.gaps))) + len(self.suffix)

    def prompt(self, sources: Sequence[Source | None]) -> Prompt:
        """With a record, or None, for each passage."""
        places = zip(self.passages, sources, self.gaps, strict=True)
        segments = [each for ids, source, gap in places for each in (Chunk(ids, source), Text(gap))]
        return Prompt(self.prefix, tuple(segments), self.suffix)


def assemble(tokenizer: Tokenizer, passages: Sequence[Titled], *, question: str, system: str = SYSTEM) -> Assembled:
    """The prompt of one question.

    Where the template knows no system role, the system prompt is the user's first words; without a template all is
    plain text.
    """
    between = [part for passage in passages for part in (passage.text, passage.gap)]
    if not cast(object, tokenizer.source.chat_template):  # pyright: ignore[reportUnknownMemberType]
        return _plain(tokenizer, between, question=question, system=system)
    parts = (*between, ASK + question)
    try:
        pieces = template.render(tokenizer, [Message("system", (system,)), Message("user", parts)])
    except TokenizerError:
        pieces = template.render(tokenizer, [Message("user", (system + "\n\n", *parts))])
    ids = [tuple(each) for each in template.tokens(tokenizer, pieces)]
    last = max(number for number, piece in enumerate(pieces) if piece.place)
    first = last - len(between)
    return Assembled(
        _joined(ids[:first]), tuple(ids[first:last:2]), tuple(ids[first + 1 : last : 2]), _joined(ids[last:])
    )


def _plain(tokenizer: Tokenizer, between: Sequence[str], *, question: str, system: str) -> Assembled:
    head, *ids, tail = (
        tuple(tokenizer.encode_text(text)) for text in (f"{system}\n\n", *between, f"{ASK}{question}\nAnswer:")
    )
    return Assembled((*tokenizer.encode_opening(""), *head), tuple(ids[::2]), tuple(ids[1::2]), tail)


def _joined(pieces: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece)
