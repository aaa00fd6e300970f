"""The spec string that names a codec: `lossless`, or `q2` to `q8`."""

import re
from dataclasses import dataclass
from typing import Self

from store.errors import SpecError

_SPEC = re.compile(r"lossless|q([2-8])")


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
