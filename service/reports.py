"""What an answer cost and where its chunks came from, as clients are told and metrics count. Knows no interface.

A report is written as JSON as it stands.
"""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, PlainSerializer, WithJsonSchema

from store.errors import Miss


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
    """What an answer took, in tokens. `reused` and `recomputed` are of the prompt; its rest was computed as always."""

    prompt: int
    completion: int = 0
    reused: int = 0
    recomputed: int = 0


@dataclass(frozen=True, slots=True)
class RelevanceReport:
    """How much the best passage has to do with the question, and what it takes: below it nothing was found."""

    found: bool
    best: Annotated[float, Field(examples=[0.71])]
    floor: Annotated[float, Field(examples=[0.42])]


@dataclass(frozen=True, slots=True)
class Report:
    """How the answer came about. `dropped`: chunks that the model's window had no room for.

    `expected_ms` of each way, where one was chosen for its time: the stages `unpack` and `fuse` of `timings_ms` tell
    what it took. `reason`: why no chunk was blended, where a policy would have.
    `notes`: sentences that whoever reads the answer should know. No `relevance` where nothing was searched.
    """

    policy: str
    ratio: float
    chunks: tuple[ChunkReport, ...]
    dropped: tuple[str, ...]
    timings_ms: Annotated[
        dict[str, float], Field(examples=[{"retrieve": 1.2, "fetch": 0.8, "first_token": 31.0, "total": 96.5}])
    ]
    expected_ms: Annotated[dict[str, float], Field(examples=[{"full": 84.2, "prefix": 80.1, "blend": 31.5}])] = field(
        default_factory=dict[str, float]
    )
    reason: InWords = None
    notes: tuple[str, ...] = ()
    relevance: RelevanceReport | None = None
