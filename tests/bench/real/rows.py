"""The rows of the tables: how chunks are captured, what of them is recomputed, and how they are packed."""

from dataclasses import dataclass, replace

from blend.fuse.fuse import BlendOrder
from store.codec.spec import LOSSLESS

ISOLATED, IN_CONTEXT = "isolated", "context"  # behind the prefix alone, or behind filler and the words before as well
CODECS = (LOSSLESS, "q4")
RATIOS = (0.05, 0.15)
OLD_ASK = "ask/layers=18+24/check=2/times=3"
POLICIES = ("heads", "deviation", "hybrid", OLD_ASK, "ask")


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
    """Nothing is recomputed."""
    return Row(capture, "reuse", 0.0, codec)


def rows_of(captures: tuple[str, ...], policies: tuple[str, ...], *, codecs: tuple[str, ...] = CODECS) -> list[Row]:
    """No recompute, and each policy at each ratio, for all of these."""
    kinds = [(capture, codec) for capture in captures for codec in codecs]
    found: list[Row] = []
    for capture, codec in kinds:
        found.append(reuse(capture, codec))
        found += [Row(capture, policy, ratio, codec) for policy in policies for ratio in RATIOS]
    return found


ALL = tuple(rows_of((ISOLATED, IN_CONTEXT), POLICIES))
CHOSEN = (
    reuse(ISOLATED),
    Row(ISOLATED, OLD_ASK, 0.15, LOSSLESS),
    *rows_of((IN_CONTEXT,), ("ask",)),
)  # where there are many cells: what was, and what is
