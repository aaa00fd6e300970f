"""What an answer cost and where its chunks came from, as clients are told and metrics count. Knows no interface."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """Where a chunk's keys and values came from: a tier's name, or `computed`, and then why."""

    chunk_id: str
    source: str
    tokens: int
    nbytes: int = 0
    recomputed: int = 0
    miss_reason: str | None = None


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
    chunks: tuple[ChunkReport, ...] = ()
    dropped: tuple[str, ...] = ()
    timings_ms: dict[str, float] = field(default_factory=dict[str, float])
