"""Rotary positions (RoPE): rotates keys to a position and back, and reads a model's angles. Knows no chunks, no models.

A rotated pair is `(a·c − b·s, b·c + a·s)` for the cosine and sine that the layer was given. A scaling that a model
multiplies into both (YaRN's) is part of them, so the true inverse divides by `c² + s²`, and rotating puts it back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal, cast

import torch
from torch import Tensor

Pairing = Literal["halves", "neighbours"]


@dataclass(frozen=True, slots=True)
class Rotation:
    """Which numbers of a head turn: `2 * pairs` of them from `start` on, paired half against half or side by side.

    `sign` is -1 where a model turns the other way round.
    """

    pairing: Pairing
    start: int
    pairs: int
    sign: int = 1


@dataclass(frozen=True, slots=True)
class Angles:
    """Cosines and sines (P, n) in float32 of consecutive positions, one column for each pair."""

    cos: Tensor
    sin: Tensor

    def at(self, positions: Tensor | slice) -> "Angles":
        """The cosines and sines of some positions; of all, these."""
        if isinstance(positions, slice) and positions == slice(None):
            return self
        return Angles(self.cos[positions], self.sin[positions])

    def inverse(self) -> "Angles":
        """What turns back by these; not the angles' negatives where a scaling is part of them."""
        square = self.cos.square() + self.sin.square()
        return Angles(self.cos / square, -self.sin / square)


def read_angles(given: object) -> Angles | None:
    """What a decoder layer was given as position embeddings: (cos, sin), each once or twice, or complex numbers.

    None for anything else, such as one angle for each of several axes.
    """
    if isinstance(given, Tensor) and given.is_complex() and given.ndim == 3:
        return Angles(given[0].real.float(), given[0].imag.float())
    if not isinstance(given, tuple):
        return None
    both = cast("tuple[object, ...]", given)
    parts = [part for part in both if isinstance(part, Tensor) and part.ndim == 3 and part.shape[0] == 1]
    if len(parts) != 2 or len(both) != 2 or parts[0].shape != parts[1].shape:
        return None
    cos, sin = (part[0].float() for part in parts)
    half = cos.shape[-1] // 2
    if half and torch.equal(cos[:, :half], cos[:, half:]) and torch.equal(sin[:, :half], sin[:, half:]):
        return Angles(cos[:, :half], sin[:, :half])
    if half and torch.equal(cos[:, 0::2], cos[:, 1::2]) and torch.equal(sin[:, 0::2], sin[:, 1::2]):
        return Angles(cos[:, 0::2], sin[:, 0::2])
    return Angles(cos, sin)


def candidates(dim: int, pairs: int) -> Iterator[Rotation | None]:
    """Every way in which `pairs` angles may turn a head of `dim` numbers; None is no rotation."""
    yield None
    if pairs == 0 or 2 * pairs > dim:
        return
    for start, sign in product(sorted({0, dim - 2 * pairs}), (1, -1)):
        yield Rotation("halves", start, pairs, sign)
        yield Rotation("neighbours", start, pairs, sign)


def rotate_into(out: Tensor, x: Tensor, *, rotation: Rotation | None, angles: Angles) -> None:
    """Turns position-free (..., T, D) to where `angles` (T, n) stand, in float32, rounded once to out's dtype.

    `out` may be part of a larger buffer; it is never the memory of `x`.
    """
    if rotation is None or 2 * rotation.pairs < x.shape[-1]:
        out.copy_(x)
    if rotation is None:
        return
    a, b = (part.float() for part in _pairs(x, rotation))
    first, second = _pairs(out, rotation)
    cos, sin = angles.cos, rotation.sign * angles.sin
    first.copy_((a * cos).sub_(b * sin))  # each product rounded, as `cpu_place_kernel` and others do it: the same bits
    second.copy_((b * cos).add_(a * sin))


def unrotate(x: Tensor, rotation: Rotation | None, *, angles: Angles) -> Tensor:
    """Undoes `rotate_into`."""
    out = torch.empty_like(x)
    rotate_into(out, x, rotation=rotation, angles=angles.inverse())
    return out


def _pairs(x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    turning = x.narrow(-1, rotation.start, 2 * rotation.pairs)
    if rotation.pairing == "halves":
        return turning[..., : rotation.pairs], turning[..., rotation.pairs :]
    return turning[..., 0::2], turning[..., 1::2]
