"""The events of an answer, in this order: retrieved, loaded, fused, deltas, finished; and all that they tell, gathered.

Knows no interface. On failure the stream raises a `ServiceError` instead of the next event.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from blend.engine.engine import ChoiceEnded, Finish, MessagePiece
from retriever.types import Passage
from service.reports import ChunkReport, Report, Usage


@dataclass(frozen=True, slots=True)
class Source:
    """A passage that the answer may rest on. `document_id`: as the asker has it.

    `passage`: as it is stored, which is not shown; None for a document that came with the request.
    """

    chunk_id: str
    document_id: str
    title: str
    text: str
    score: float
    passage: Passage | None = None


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The sources in the order of the prompt."""

    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Which chunks have keys and values; `tokens` and `recomputed` are not known yet."""

    chunks: tuple[ChunkReport, ...]


@dataclass(frozen=True, slots=True)
class Fused:
    """The prompt is in place; the first token follows."""

    usage: Usage
    report: Report


@dataclass(frozen=True, slots=True)
class TopToken:
    """A token that could have stood there."""

    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Delta:
    """One generated token. `text` is what became certain with it, often its own, sometimes none."""

    text: str
    token: TopToken | None = None  # where log probabilities are asked for
    top: tuple[TopToken, ...] = ()
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end, of the last of several answers too. `text` is what was still held back of it."""

    reason: Finish
    text: str
    usage: Usage
    report: Report
    choice: int = 0


# Pieces of messages replace deltas where tools are offered; ends of choices are those of answers while others go on.
Piece = Delta | MessagePiece | ChoiceEnded
Event = Retrieved | Loaded | Fused | Delta | MessagePiece | ChoiceEnded | Finished


@dataclass(slots=True)
class WholeAnswer:
    """What was told so far: all of it once the last event was added."""

    sources: tuple[Source, ...] = ()
    pieces: list[Piece] = field(default_factory=list[Piece])
    _end: Finished | None = None

    def add(self, event: Event) -> None:
        match event:
            case Retrieved():
                self.sources = event.sources
            case Delta() | MessagePiece() | ChoiceEnded():
                self.pieces.append(event)
            case Finished():
                self._end = event
            case _:
                pass

    @property
    def end(self) -> Finished:
        assert self._end is not None, "the events ended without the last of them"
        return self._end

    @property
    def text(self) -> str:
        """The text of an answer that is the only one, and calls no tools."""
        return "".join(each.text for each in self.pieces if isinstance(each, Delta)) + self.end.text


async def whole_answer(events: AsyncGenerator[Event]) -> WholeAnswer:
    whole = WholeAnswer()
    async with aclosing(events):
        async for event in events:
            whole.add(event)
    return whole
