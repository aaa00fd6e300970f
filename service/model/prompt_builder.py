"""Lays out prompts as token ids: turns, passages and their gaps, the system prompts; refuses texts beyond the window.

A prompt is laid out of turns, a turn of parts. What stands before the first passage is the prefix, what stands behind
the last one is the suffix. Of a question the order is fixed: the template's head, the passages with a gap behind each,
the question, the template's tail.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import cast

from blend.errors import PromptError, TokenizerError
from blend.fuse.prompt import ChunkSegment, Prompt, TextSegment
from blend.text import template
from blend.text.call_frame import CallFrame, find_call_frame
from blend.text.template import CallForm, ChatMessage, Fields, MadeCall, Option, TemplatePiece
from blend.text.tokenizer import Tokenizer
from store.record_source import RecordSource

SYSTEM = "Answer the question from the documents."
GROUNDED = "Answer from the documents alone. If the answer is not in them, say that it is not there."
ASK = "Question: "

_REMEMBERED = 4096  # texts whose ids are kept: of passages and of templates

_LONG = 8  # characters a token, on average, above which texts are counted before they are read as a whole
_SLICE = 1 << 14  # characters that are counted at a time: the tokenizer lets no other thread work meanwhile
_SEAMS = 64  # tokens that a slice may have more than the same text in one piece

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptPassage:
    """A passage in a prompt. Its title follows it, so that the first passage stands right behind the prefix."""

    text: str
    title: str = ""

    @property
    def gap(self) -> str:
        return f"\n({self.title})\n\n" if self.title else "\n\n"


@dataclass(frozen=True, slots=True)
class TurnPart:
    """A stretch of a turn. `passage`: its number among the passages of the prompt; None for other text."""

    text: str
    passage: int | None = None


@dataclass(frozen=True, slots=True)
class TurnParts:
    """A turn of a chat. `calls` and `answers` are as in `ChatMessage`."""

    role: str
    parts: tuple[TurnPart, ...]
    calls: tuple[MadeCall, ...] = ()
    answers: str = ""


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Token ids that stand together: of a passage, or of what is between passages."""

    ids: Ids
    passage: int | None = None


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as token ids. The first and the last of `runs` are passages, if there are any.

    `question`: the number of tokens from the last user turn's first on; 0 where it is not known.
    """

    prefix: Ids
    runs: tuple[TokenRun, ...]
    suffix: Ids
    question: int = 0

    @property
    def tokens(self) -> int:
        return len(self.prefix) + sum(len(run.ids) for run in self.runs) + len(self.suffix)

    def prompt(self, sources: Mapping[int, RecordSource]) -> Prompt:
        segments = [
            TextSegment(run.ids) if run.passage is None else ChunkSegment(run.ids, sources.get(run.passage))
            for run in self.runs
        ]
        return Prompt(self.prefix, tuple(segments), self.suffix, self.question)


class PromptBuilder:
    """Turns chats into token ids; caches those of passages and templates. Safe for threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids = lru_cache(_REMEMBERED)(self._text_ids)  # of a passage
        self._of_template = lru_cache(_REMEMBERED)(self._template_ids)
        self._opening = lru_cache(_REMEMBERED)(self._opening_ids)

    def gap_ids(self, passage: PromptPassage) -> Ids:
        return self._part_ids(TurnPart(passage.gap))

    def says(self, text: str) -> bool:
        """Whether a text survives the round trip through its token ids."""
        return self.tokenizer.round_trips(text, self.ids(text))

    def check_length(self, texts: Sequence[str], *, window: int) -> None:
        """Raises PromptError where the texts cannot fit the window, as soon as so many tokens are counted."""
        if sum(map(len, texts)) <= _LONG * window:
            return
        tokens = 0
        for text in texts:
            for start in range(0, len(text), _SLICE):
                tokens += max(1, len(self.tokenizer.encode_text(text[start : start + _SLICE])) - _SEAMS)
                if tokens > window:
                    raise PromptError(
                        f"the texts of the request have {sum(map(len, texts)):,} characters, more tokens than the "
                        f"model's window of {window}: shorten them, or put documents in and let a search choose"
                    )

    @cached_property
    def call_frame(self) -> CallFrame:
        """How the model's template writes calls of tools. Raises TokenizerError where it knows none."""
        return find_call_frame(self.tokenizer)

    def lay(
        self,
        turns: Sequence[TurnParts],
        *,
        options: Mapping[str, Option] | None = None,
        tools: Sequence[Fields] = (),
    ) -> PromptTokens:
        """The prompt of a chat, ready for the answer. Without a passage, the last turn's own text is in the suffix."""
        return _laid(list(self.rows(turns, options=options, tools=tools)), turns)

    def lay_plain(self, turns: Sequence[TurnParts]) -> PromptTokens:
        """The prompt of a chat without the template, about as long, for prompts that vLLM renders."""
        return _laid(list(self._plain(turns)), turns)

    def lay_raw(self, turns: Sequence[TurnParts]) -> PromptTokens:
        """The prompt that the text of the turns is by itself."""
        return _laid(list(self._plain(turns, is_raw=True)), turns)

    def rows(
        self,
        turns: Sequence[TurnParts],
        *,
        options: Mapping[str, Option] | None = None,
        tools: Sequence[Fields] = (),
    ) -> Iterator[tuple[Ids, TurnPart | None]]:
        """Ids in order, with the part that they are of; None for those of the template.

        Where the template knows no system role, the system prompt is the user's first words; without a template all
        is plain text.
        """
        has_tools = bool(tools) or any(turn.calls or turn.answers for turn in turns)
        form = self.call_frame.form if has_tools else CallForm()
        if not cast(object, self.tokenizer.source.chat_template):  # pyright: ignore[reportUnknownMemberType]
            yield from self._plain(turns)
            return
        try:
            pieces = template.render(self.tokenizer, _messages(turns), options=options, tools=tools, form=form)
        except TokenizerError:
            merged = _merged(turns)
            if merged == turns:
                raise
            turns = merged
            pieces = template.render(self.tokenizer, _messages(turns), options=options, tools=tools, form=form)
        for number, piece in enumerate(pieces):
            if piece.place is None:
                yield self._written_ids(piece, opens=number == 0), None
                continue
            part = turns[piece.place.message].parts[piece.place.part]
            if piece.text != part.text:  # the template escapes it: then it is no chunk's text
                part = TurnPart(piece.text)
            yield self._part_ids(part), part

    def _plain(self, turns: Sequence[TurnParts], *, is_raw: bool = False) -> Iterator[tuple[Ids, TurnPart | None]]:
        """Begins as the model's own tokenizer does, which a template does itself."""
        yield self.tokenizer.front, None
        opens = True
        for turn in turns:
            asked = turn.role == "user"
            for part in turn.parts:
                yield self._part_ids(part, opens=opens), part
                opens = opens and not part.text
            if not is_raw:
                yield self._of_template("\nAnswer:" if asked else "\n\n"), None

    def _part_ids(self, part: TurnPart, *, opens: bool = False) -> Ids:
        return self._text_ids(part.text, opens=opens) if part.passage is None else self.ids(part.text)

    def _written_ids(self, piece: TemplatePiece, *, opens: bool) -> Ids:
        """The ids of a template's own text. Those that hold users' texts are not kept for others."""
        if piece.foreign:
            encode = self.tokenizer.encode_opening if opens else self.tokenizer.encode_template
            return tuple(encode(piece.text, piece.foreign))
        return (self._opening if opens else self._of_template)(piece.text)

    def _text_ids(self, text: str, *, opens: bool = False) -> Ids:
        return tuple(self.tokenizer.encode_text(text, opens=opens))

    def _template_ids(self, text: str) -> Ids:
        return tuple(self.tokenizer.encode_template(text))

    def _opening_ids(self, text: str) -> Ids:
        return tuple(self.tokenizer.encode_opening(text))


def question_turns(passages: Sequence[PromptPassage], *, question: str, system: str = SYSTEM) -> list[TurnParts]:
    head = TurnParts("system", (TurnPart(system),))
    numbered = dict(enumerate(passages))
    return [head, TurnParts("user", (*passage_parts(numbered), TurnPart(ASK + question)))]


def passage_parts(passages: Mapping[int, PromptPassage]) -> Iterator[TurnPart]:
    """The parts of passages by their numbers, each with the gap behind it."""
    for number, passage in passages.items():
        yield TurnPart(passage.text, number)
        yield TurnPart(passage.gap)


def _messages(turns: Sequence[TurnParts]) -> list[ChatMessage]:
    return [ChatMessage(turn.role, tuple(p.text for p in turn.parts), turn.calls, turn.answers) for turn in turns]


def _merged(turns: Sequence[TurnParts]) -> list[TurnParts]:
    """The turns, where the first is the system's, with that as the beginning of the user's first one."""
    at = next((at for at, turn in enumerate(turns) if turn.role == "user"), None)
    if not turns or turns[0].role not in ("system", "developer") or at is None:
        return [*turns]
    user = TurnParts("user", (*turns[0].parts, TurnPart("\n\n"), *turns[at].parts))
    return [*turns[1:at], user, *turns[at + 1 :]]


def _joined(pieces: Iterable[Ids]) -> Ids:
    return tuple(token for piece in pieces for token in piece)


def _laid(rows: Sequence[tuple[Ids, TurnPart | None]], turns: Sequence[TurnParts]) -> PromptTokens:
    asking = next((turn.parts for turn in reversed(turns) if turn.role == "user"), ())
    begin = next((at for at, (_, part) in enumerate(rows) if any(part is each for each in asking)), len(rows))
    question = sum(len(ids) for ids, _ in rows[begin:])
    end = max((at for at, (ids, _) in enumerate(rows) if ids), default=0)  # text, as an answer follows no passage
    places = [at for at, (_, part) in enumerate(rows[:end]) if part and part.passage is not None]
    if not places:
        last = min(end, max((at for at, (_, part) in enumerate(rows) if part), default=end))
        return PromptTokens(
            _joined(ids for ids, _ in rows[:last]), (), _joined(ids for ids, _ in rows[last:]), question
        )
    first, last = places[0], places[-1] + 1
    runs = (TokenRun(ids, part.passage if part else None) for ids, part in rows[first:last])
    prefix, suffix = (_joined(ids for ids, _ in each) for each in (rows[:first], rows[last:]))
    return PromptTokens(prefix, tuple(run for run in runs if run.ids), suffix, question)
