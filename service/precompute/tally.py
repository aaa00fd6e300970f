"""How far a run over a corpus came. Counts, and knows nothing of what is counted."""

from dataclasses import dataclass, field

from retriever.readers.reading import Problem


@dataclass(slots=True)
class Tally:
    """How far it came. `stored` chunks were computed now, `present` ones were there; bytes are those of new blobs."""

    files: int = 0
    unchanged: int = 0
    documents: int = 0
    removed: int = 0
    chunks: int = 0
    present: int = 0
    stored: int = 0
    over_budget: int = 0
    unsupported: int = 0
    tokens: int = 0
    nbytes: int = 0
    raw_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    problems: list[Problem] = field(default_factory=list[Problem])
