"""The spec string that names a codec: `lossless`, or `q2` to `q8`, with `@table` where a fitted table is used."""

import re
from dataclasses import dataclass
from typing import Self

from store.errors import SpecError

_SPEC = re.compile(r"(lossless|q([2-8]))(?:@([0-9a-f]{32}))?")

# A step is the next larger of the sizes 2**(e/16), rounded up to bfloat16.
OVERSHOOT = 2 ** (1 / 16) * (1 + 2**-7)
QUIETEST = 2.0**-119  # steps end at 2**-126: what is quieter is treated as this loud


@dataclass(frozen=True, slots=True)
class Spec:
    """Bits for keys and values (None: lossless) and the id of the fitted table, if any."""

    bits: int | None
    table: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a spec string; refuse what names no codec."""
        match = _SPEC.fullmatch(text)
        if match is None:
            raise SpecError(f"no codec is named {text!r}: use lossless, or q2 to q8, optionally with @ and a table id")
        if match[1] == "lossless" and match[3]:
            raise SpecError(f"{text!r}: the lossless codec takes no table")
        return cls(int(match[2]) if match[2] else None, match[3])

    @property
    def text(self) -> str:
        """The canonical spelling."""
        name = "lossless" if self.bits is None else f"q{self.bits}"
        return f"{name}@{self.table}" if self.table else name

    def error_bound(self, absmax: float) -> float:
        """The largest error in float32, given the largest magnitude that shares a scale (behind the center).

        That is 64 to 127 tokens of a channel for keys, the channels of one token and head for values. On top comes one
        rounding to the record's dtype. What is 2**15 times quieter than the loudest beside it has that as its absmax.
        """
        if self.bits is None or not absmax:
            return 0.0
        return max(absmax, QUIETEST) * OVERSHOOT / 2**self.bits
