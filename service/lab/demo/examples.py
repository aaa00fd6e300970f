"""The sample corpus, and what is asked about it: questions with their answers, and the sentences that hold them."""

from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its answer. `holds`: sentences that answer it together, each of another document."""

    question: str
    answer: str
    holds: tuple[str, ...]


EXAMPLES = (
    Example("Which animal does Halio keep?", "badger", ("Halio keeps a badger.",)),
    Example("Where does Halio live?", "Belford", ("Code K7 stands for Halio.", "K7 lives in Belford.")),
    Example("Who leads Selark?", "Rosen", ("Code B4 stands for Selark.", "Rosen leads B4.")),
)
