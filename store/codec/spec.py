"""The spec string that names a codec: `lossless`, or `q2` to `q8`."""

import re
from dataclasses import dataclass
from typing import Self

from store.errors import SpecError

_SPEC = re.compile(r"lossless|q([2-8])")

# A step is the next larger of the sizes 2**(e/16), rounded up to bfloat16.
OVERSHOOT = 2 ** (1 / 16) * (1 + 2**-7)
QUIETEST = 2.0**-119  # steps end at 2**-126: what is quieter is treated as this loud


@dataclass(frozen=True, slots=True)
class Spec:
    """Bits for keys and values (None: lossless)."""

    bits: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a spec string; refuse what names no codec."""
        match = _SPEC.fullmatch(text)
        if match is None:
            raise SpecError(f"no codec is named {text!r}: use lossless, or q2 to q8")
        return cls(int(match[1]) if match[1] else None)

    @property
    def text(self) -> str:
        """The canonical spelling."""
        return "lossless" if self.bits is None else f"q{self.bits}"

    def error_bound(self, absmax: float) -> float:
        """The largest error in float32, given the largest magnitude that shares a scale.

        That is 64 to 127 tokens of a channel for keys, the channels of one token and head for values. On top comes one
        rounding to the record's dtype. What is 2**15 times quieter than the loudest beside it has that as its absmax.
        """
        if self.bits is None or not absmax:
            return 0.0
        return max(absmax, QUIETEST) * OVERSHOOT / 2**self.bits
