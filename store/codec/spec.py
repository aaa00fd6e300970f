"""The spec string that names a codec: `lossless`, `q4` for keys and values, `k4v2` for each, `q6@4-k4v2` by layer.

A part that ends in `@N` holds up to layer N, which is not counted in; the last part holds for all layers behind.
Bits may lie between whole numbers where sizes are small: `q2.3` has levels 2**-3.3 of what they reach over apart, of
which each state of a trellis has every other one.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from store.errors import SpecError

LOSSLESS = "lossless"
BITS = (*(f"{tenths / 10:g}" for tenths in range(15, 30)), *"345678")
NAMES = (LOSSLESS, *(f"q{bits}" for bits in BITS))  # of codecs that are one for keys, values and layers
_BITS = f"({'|'.join(map(re.escape, BITS))})"
_PART = re.compile(f"{LOSSLESS}|q{_BITS}|k{_BITS}v{_BITS}")
_LAYER = re.compile(r"[1-9][0-9]{0,4}")
_BETWEEN_CODE_BITS = 4  # of the levels that a trellis has


@dataclass(frozen=True, slots=True)
class KVBits:
    """The bits of keys and of values: steps of codes are `2**-bits` of what they reach over."""

    keys: float
    values: float

    @property
    def text(self) -> str:
        """The canonical spelling."""
        return f"q{self.keys:g}" if self.keys == self.values else f"k{self.keys:g}v{self.values:g}"


@dataclass(frozen=True, slots=True)
class Spec:
    """What holds from which layer on, in ascending order from layer 0 (None: lossless)."""

    parts: tuple[tuple[int, KVBits | None], ...]

    @classmethod
    @lru_cache(64)  # each blob that is opened names one of few
    def parse(cls, text: str) -> Self:
        """Read a spec string; refuse what names no codec."""
        *fronts, last = text.split("-")
        parts: list[tuple[int, KVBits | None]] = []
        first = 0
        for front in fronts:
            part, _, stop = front.partition("@")
            if not _LAYER.fullmatch(stop) or int(stop) <= first:
                raise SpecError(
                    f"{front!r} in {text!r} names no layer behind {first}: end it in @ and one, as in q6@4-q4"
                )
            parts.append((first, _bits(part, text)))
            first = int(stop)
        found = cls((*parts, (first, _bits(last, text))))
        if any(one[1] == other[1] for one, other in zip(found.parts, found.parts[1:], strict=False)):
            raise SpecError(f"{text!r} has neighbours that are alike: write them as one, as in q6@4-k4v2")
        return found

    def bits(self, layer: int) -> KVBits | None:
        """The bits of one layer; None where it is lossless."""
        return next(bits for first, bits in reversed(self.parts) if first <= layer)

    @property
    def has_trellis(self) -> bool:
        """Whether some codes are those of a trellis."""
        return any(bits and (is_between(bits.keys) or is_between(bits.values)) for _, bits in self.parts)

    @property
    def text(self) -> str:
        """The canonical spelling."""
        stops = [f"@{first}-" for first, _ in self.parts[1:]] + [""]
        names = (bits.text if bits else LOSSLESS for _, bits in self.parts)
        return "".join(f"{name}{stop}" for name, stop in zip(names, stops, strict=True))


def is_between(bits: float) -> bool:
    """Whether they lie between whole numbers."""
    return bits != int(bits)


def code_bits(bits: float) -> int:
    """Bits that a code takes before zstd."""
    return _BETWEEN_CODE_BITS if is_between(bits) else int(bits)


def _bits(part: str, text: str) -> KVBits | None:
    match = _PART.fullmatch(part)
    if match is None:
        raise SpecError(
            f"no codec is named {text!r}: use lossless, q2 to q8, q1.5 to q2.9, k4v2, or parts by layer as in q6@4-k4v2"
        )
    if part == LOSSLESS:
        return None
    return KVBits(float(match[1] or match[2]), float(match[1] or match[3]))
