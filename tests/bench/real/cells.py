"""The cells of the two tables: what prompts are asked in which ways. The grid changes one thing at a time."""

from dataclasses import dataclass, field, replace

from service.lab.questions.drawn_cases import SCATTERED, SHUFFLED
from tests.bench.real.articles import PAGES, TEXTS
from tests.bench.real.material import Shape
from tests.bench.real.rows import FEW, MAIN, OF_FACTS, Row

FACTS = ("records", "parted records", "needle", "needles", "values", "chain")  # suites with one right answer
FORMS = ("blanks", "copies", "examples")  # suites with a text as their answer, beside the continuation


@dataclass(frozen=True, slots=True)
class Cell:
    """Prompts of one suite, and the rows that are measured of them. `draws`: of the yardstick."""

    name: str
    suite: str
    rows: tuple[Row, ...]
    shape: Shape = field(default_factory=Shape)
    draws: int = 3


BASE = Shape()
LINE = (
    Cell("continuation", "continuation", MAIN),
    *(Cell(name, name, OF_FACTS, Shape(tokens=800), draws=1) for name in FACTS),
)
_SHAPES = {
    "base": BASE,
    "2000 tokens": replace(BASE, tokens=2000),
    "4000 tokens": replace(BASE, tokens=4000),
    "chunks of 64": replace(BASE, chunk=64),
    "chunks of 128": replace(BASE, chunk=128),
    "chunks of 256": replace(BASE, chunk=256),
    "own apart": replace(BASE, order=SCATTERED),
    "own out of order": replace(BASE, order=SHUFFLED),
    "texts alone": replace(BASE, corpus=TEXTS),
    "pages alone": replace(BASE, corpus=PAGES),
}
GRID = (
    *(Cell(name, "continuation", FEW, shape) for name, shape in _SHAPES.items()),
    *(Cell(name, name, FEW) for name in FORMS),
)
PLANS = {"real": LINE, "grid": GRID}
