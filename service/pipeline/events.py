"""What an answer tells on its way, in this order: retrieved, loaded, fused, deltas, finished. Knows no interface.

A report is written as JSON as it stands. Whatever goes wrong is raised by the stream instead of the next event: a
`ServiceError`.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PlainSerializer, WithJsonSchema

from blend.engine import Finish
from retriever.catalog.base import Passage
from store.errors import Miss


@dataclass(frozen=True, slots=True)
class Source:
    """A passage that the answer may rest on. `passage`: None for a document that came with the request."""

    chunk_id: str
    document_id: str
    title: str
    text: str
    score: float
    passage: Passage | None = None


def _in_words(miss: Miss | None) -> str | None:
    return None if miss is None else str(miss)


InWords = Annotated[
    Miss | None,
    PlainSerializer(_in_words),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Miss Reason"}),
]


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """Where a chunk's keys and values came from: a tier's name, or `computed`, and then why."""

    chunk_id: str
    source: Annotated[str, Field(examples=["lmdb"])]
    miss_reason: InWords
    tokens: int
    recomputed: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """In tokens. `reused` and `recomputed` are parts of the prompt; the rest of it was computed as always."""

    prompt: int
    completion: int = 0
    reused: int = 0
    recomputed: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """How the answer came about. `dropped`: chunks that the model's window had no room for."""

    policy: str
    ratio: float
    chunks: tuple[ChunkReport, ...]
    dropped: tuple[str, ...]
    timings_ms: Annotated[
        dict[str, float], Field(examples=[{"retrieve": 1.2, "fetch": 0.8, "first_token": 31.0, "total": 96.5}])
    ]


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


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `text` is what was still held back."""

    reason: Finish
    text: str
    usage: Usage
    report: Report


Event = Retrieved | Loaded | Fused | Delta | Finished
