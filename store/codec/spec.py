"""The spec string that names a codec: `lossless`, `q4` for keys and values, `k4v2` for each, `q6@4-k4v2` by layer.

A part that ends in `@N` holds up to layer N, which is not counted in; the last part holds for all layers behind.
"""

import re
from dataclasses import dataclass
from typing import Self

from store.errors import SpecError

_PART = re.compile(r"lossless|q([2-8])|k([2-8])v([2-8])")
_LAYER = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class KVBits:
    """The bits of a code, of keys and of values."""

    keys: int
    values: int

    @property
    def text(self) -> str:
        """The canonical spelling."""
        return f"q{self.keys}" if self.keys == self.values else f"k{self.keys}v{self.values}"


@dataclass(frozen=True, slots=True)
class Spec:
    """What holds from which layer on, in ascending order from layer 0 (None: lossless)."""

    parts: tuple[tuple[int, KVBits | None], ...]

    @classmethod
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
    def text(self) -> str:
        """The canonical spelling."""
        stops = [f"@{first}-" for first, _ in self.parts[1:]] + [""]
        names = (bits.text if bits else "lossless" for _, bits in self.parts)
        return "".join(f"{name}{stop}" for name, stop in zip(names, stops, strict=True))


def _bits(part: str, text: str) -> KVBits | None:
    match = _PART.fullmatch(part)
    if match is None:
        raise SpecError(f"no codec is named {text!r}: use lossless, q2 to q8, k4v2, or parts by layer as in q6@4-k4v2")
    if part == "lossless":
        return None
    return KVBits(int(match[1] or match[2]), int(match[1] or match[3]))
