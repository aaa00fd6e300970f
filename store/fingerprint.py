"""What must match before a stored record may be used: digests of texts and numbers. Knows no tensors and no medium."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Self

from blake3 import blake3

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Two records with equal fingerprints may replace each other; any difference is a miss."""

    weights: str
    architecture: str
    tokenizer: str
    rope: str
    dtype: str
    prefix: str
    capture: str

    @property
    def digest(self) -> str:
        """A digest of all fields in 32 letters."""
        return digest_of([[name, value] for name, value in self.to_dict().items()])

    def behind(self, prefix: Sequence[int]) -> Self:
        """The fingerprint of records that are captured behind these ids."""
        return replace(self, prefix=digest_ids(prefix))

    def differs(self, other: Self) -> str | None:
        """The first field that is not the same in both."""
        if self == other:
            return None
        theirs = other.to_dict()
        return next(name for name, value in self.to_dict().items() if theirs[name] != value)

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, str]) -> Self:
        names = [field.name for field in fields(cls)]
        if set(given) != set(names) or {*map(type, given.values())} != {str}:
            raise ValueError(f"a fingerprint is a text for each of {', '.join(names)}, got {dict(given)!r}")
        return cls(**given)


def packed_ids(ids: Sequence[int]) -> bytes:
    """Token ids in eight bytes each. Raises `struct.error` for numbers that need more."""
    return struct.pack(f"<{len(ids)}q", *ids)


def digest_ids(ids: Sequence[int]) -> str:
    """A digest of token ids: of a chunk, or of what it is captured behind."""
    return blake3(packed_ids(ids)).hexdigest(DIGEST_BYTES)


def digest_of(value: object) -> str:
    """A digest of a value's one canonical spelling in JSON."""
    spelled = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return blake3(spelled.encode()).hexdigest(DIGEST_BYTES)


def context_digest(filler: str, before: tuple[str, str] | None) -> str:
    """The digest of what a chunk was captured behind, besides its prefix: of its filler, and of the passage before by
    its chunk's id and its title.

    Records of earlier releases name none: all of them were captured alone.
    """
    return digest_of([filler, before])


ALONE = context_digest("", None)


def is_alone(context: str) -> bool:
    """Whether a record whose context has this digest, or none, was captured right behind its prefix."""
    return context in ("", ALONE)
