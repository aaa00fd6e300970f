"""How far a run over a corpus came. Counts, and knows nothing of what is counted."""

from dataclasses import dataclass, field, fields

from retriever.readers.reading import ReadingProblem


@dataclass(slots=True)
class RunProgress:
    """`stored` chunks were computed now, `present` ones were there, `dropped` ones made room; bytes are of new blobs,
    `worked_bytes` of the files whose chunks are done, in part for a file of many.

    `chunks` are told apart by their text: of these some are present, stored, over budget or text only (unsupported).
    """

    files: int = 0
    unchanged: int = 0
    documents: int = 0
    removed: int = 0
    chunks: int = 0
    present: int = 0
    stored: int = 0
    over_budget: int = 0
    unsupported: int = 0
    dropped: int = 0
    tokens: int = 0
    nbytes: int = 0
    raw_bytes: int = 0
    worked_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    problems: list[ReadingProblem] = field(default_factory=list[ReadingProblem])

    def add(self, other: "RunProgress") -> None:
        """Adds all that the other counted."""
        for each in fields(self):
            value = getattr(other, each.name)
            if isinstance(value, int):
                setattr(self, each.name, getattr(self, each.name) + value)
        self.problems += other.problems
        for stage, spent in other.seconds.items():
            self.spend(stage, spent)

    def spend(self, stage: str, seconds: float) -> None:
        """Adds seconds to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
