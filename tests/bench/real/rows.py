"""The rows of the tables: how chunks are captured, what of them is recomputed, and how they are packed.

And their cells: what prompts are asked in which ways. The grid changes one thing at a time.
"""

from dataclasses import dataclass, field, replace

from blend.fuse.fuse import BlendOrder
from blend.fuse.policy import AskRule
from service.lab.questions.drawn_cases import SCATTERED, SHUFFLED
from store.codec.spec import LOSSLESS
from tests.bench.real.articles import PAGES, TEXTS
from tests.bench.real.material import Shape

ISOLATED, IN_CONTEXT = "isolated", "context"  # behind the prefix alone, or behind filler and the words before as well
CODECS = (LOSSLESS, "q4")
RATIOS = (0.05, 0.15)
OLD_ASK = "ask/layers=18+24/check=2/times=3"
NEW_ASK = str(AskRule())  # what `ask` means today, written out: rows of earlier results keep their meaning
BASELINES = ("heads", "deviation", "hybrid")


@dataclass(frozen=True, slots=True)
class Row:
    """A way to answer a prompt. Written as `context:ask:0.05:q4`."""

    capture: str
    policy: str
    ratio: float
    codec: str

    @classmethod
    def parse(cls, text: str) -> "Row":
        """Reads what `str` wrote. Raises ValueError, or the policy's own error, for what is none."""
        capture, policy, ratio, codec = text.split(":")
        if capture not in (ISOLATED, IN_CONTEXT):
            raise ValueError(f"chunks are captured {ISOLATED} or in {IN_CONTEXT}, got {capture!r}")
        row = cls(capture, policy, float(ratio), codec)
        row.order.check()
        return row

    def __str__(self) -> str:
        return f"{self.capture}:{self.policy}:{self.ratio:g}:{self.codec}"

    @property
    def order(self) -> BlendOrder:
        """What the fuse is told."""
        return BlendOrder(self.policy, self.ratio)

    @property
    def lossless(self) -> "Row":
        """The row of lossless records that this one is compared with."""
        return replace(self, codec=LOSSLESS)


def reuse(capture: str, codec: str = LOSSLESS) -> Row:
    """The row without recompute."""
    return Row(capture, "reuse", 0.0, codec)


def rows_of(capture: str, codec: str, *policies: str) -> list[Row]:
    """No recompute, and each policy at each ratio."""
    chosen = [Row(capture, policy, ratio, codec) for policy in policies for ratio in RATIOS]
    return [reuse(capture, codec), *chosen]


_EACH = (*BASELINES, OLD_ASK, NEW_ASK)
EVERY = tuple(row for capture in (ISOLATED, IN_CONTEXT) for codec in CODECS for row in rows_of(capture, codec, *_EACH))
MAIN = (
    *rows_of(ISOLATED, LOSSLESS, *_EACH),
    reuse(ISOLATED, "q4"),
    Row(ISOLATED, OLD_ASK, 0.15, "q4"),
    *rows_of(IN_CONTEXT, LOSSLESS, *_EACH),
    *rows_of(IN_CONTEXT, "q4", OLD_ASK, NEW_ASK),
)  # baselines are packed in `EVERY` alone
FEW = (
    reuse(ISOLATED),
    Row(ISOLATED, OLD_ASK, 0.15, LOSSLESS),
    *rows_of(IN_CONTEXT, LOSSLESS, NEW_ASK),
    *rows_of(IN_CONTEXT, "q4", NEW_ASK),
)  # where there are many cells: what was, and what is
OF_FACTS = (reuse(ISOLATED), *rows_of(IN_CONTEXT, LOSSLESS, NEW_ASK), reuse(IN_CONTEXT, "q4"))
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
