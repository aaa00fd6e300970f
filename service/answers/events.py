"""The events of an answer, in this order: retrieved, loaded, fused, deltas, finished. Knows no interface.

On failure the stream raises a `ServiceError` instead of the next event.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from blend.engine.engine import Finish
from retriever.types import Passage
from service.reports import ChunkReport, Report, Usage


@dataclass(frozen=True, slots=True)
class Source:
    """A passage that the answer may rest on. `passage`: None for a document that came with the request."""

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
class MessageAdded:
    """An addition to the answer's message, in OpenAI's form; it replaces deltas where tools are offered."""

    fields: Mapping[str, object]
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The end of one of several answers, while others go on. `text` is what was still held back of it."""

    choice: int
    reason: Finish
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end, of the last of several answers too. `text` is what was still held back of it."""

    reason: Finish
    text: str
    usage: Usage
    report: Report
    choice: int = 0


Event = Retrieved | Loaded | Fused | Delta | MessageAdded | ChoiceFinished | Finished
