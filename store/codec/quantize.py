"""Uniform quantization with one-byte logarithmic step sizes. Arrays in, codes out: no blobs, no layers.

A code c stands for `(c - (2**bits - 1) / 2) * step`: the cells fill [-absmax, absmax], so no error exceeds half a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.record import STORAGE, Array, Codes, Dtype, PackedTensor, Scales, clip, codes_per_byte, largest, round_into

Floats = NDArray[np.float32]

_PER_OCTAVE = 16
_LOWEST = -126 * _PER_OCTAVE  # 2**-126, the smallest normal number
_TOP = 255  # the byte of a tensor's largest step; byte 0 is "all zeros"


def _grid() -> Scales:
    """All step sizes there are: 2**(e/16), rounded up to what bfloat16 holds exactly."""
    sizes = np.exp2(np.arange(_LOWEST, 128 * _PER_OCTAVE, dtype=np.float64) / _PER_OCTAVE).astype(np.float32)
    rounded_up = (sizes.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)
    return rounded_up.view(np.float32)


def _places() -> NDArray[np.int64]:
    """The place in the grid of the first size that is not smaller, for each bfloat16 from zero up, by its bits.

    A logarithm would be rounded, and not alike on every machine.
    """
    numbers = np.arange(0x7F80, dtype=np.uint32) << np.uint32(16)
    return np.searchsorted(_GRID, numbers.view(np.float32)) + _LOWEST


_GRID = _grid()
_INVERSES = np.float32(1) / _GRID
_PLACES = _places()


@dataclass(frozen=True, slots=True)
class Steps:
    """Step sizes as stored: a byte each, in sixteenths of an octave below the exponent `top` of the largest."""

    codes: Codes
    top: int

    def values(self) -> Scales:
        """The step sizes, every one exact in bfloat16."""
        return self._taken(_GRID)

    def inverses(self) -> Scales:
        """One over each of the step sizes, zero for zero."""
        return self._taken(_INVERSES)

    def _taken(self, table: Scales) -> Scales:
        places = self.codes.astype(np.int64) + (self.top - _LOWEST - _TOP)
        return np.where(self.codes > 0, table.take(places, mode="clip"), np.float32(0))


def choose_steps(absmax: Floats, bits: int) -> Steps:
    """The smallest step of the grid that holds each `absmax`; a channel of zeros gets none and decodes to zeros.

    A byte spans 16 octaves: a channel quieter than the loudest by more gets the smallest step there is.
    """
    wanted = absmax * np.float32(2.0 ** (1 - bits))
    places = _PLACES.take((wanted.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16))
    top = max(int(places.max()), _LOWEST + _TOP)
    codes = np.maximum(places - (top - _TOP), 1).astype(np.uint8)
    codes *= absmax > 0
    return Steps(codes, top)


def quantize(x: Floats, bits: int, *, axis: int) -> tuple[Codes, Steps]:
    """Codes (H, D, P) and steps of x (H, T, D). `axis` shares a step: 1 a channel's tokens, 2 a token's channels."""
    absmax = np.abs(x).max(axis=axis, keepdims=True)
    steps = choose_steps(absmax, bits)
    scaled = x * steps.inverses()
    scaled += np.float32(2 ** (bits - 1))
    np.minimum(scaled, np.float32(2**bits - 1), out=scaled)  # the cut to whole numbers is one to zero
    return pack(scaled.astype(np.uint8), codes_per_byte(bits)), steps


def pack(codes: Codes, per_byte: int) -> Codes:
    """(H, T, D) codes to channel-major bytes (H, D, P). Packing first leaves fewer bytes to transpose."""
    heads, tokens, dim = codes.shape
    missing = -tokens % per_byte
    if missing:
        codes = np.concatenate([codes, np.zeros((heads, missing, dim), np.uint8)], axis=1)
    packed = codes[:, ::per_byte]
    for place in range(1, per_byte):
        packed = packed | (codes[:, place::per_byte] << np.uint8(8 // per_byte * place))
    return np.ascontiguousarray(packed.transpose(0, 2, 1))


def unpack(codes: Codes, per_byte: int, *, tokens: int) -> Codes:
    """Channel-major bytes (H, D, P) to codes (H, T, D)."""
    packed = np.ascontiguousarray(codes.transpose(0, 2, 1))
    if per_byte == 1:
        return packed
    width = 8 // per_byte
    spread = np.empty((packed.shape[0], packed.shape[1], per_byte, packed.shape[2]), np.uint8)
    for place in range(per_byte):
        spread[:, :, place] = (packed >> np.uint8(width * place)) & np.uint8(2**width - 1)
    return spread.reshape(packed.shape[0], -1, packed.shape[2])[:, :tokens]


def dequantize(tiles: Sequence[PackedTensor], dtype: Dtype) -> Array:
    """The tiles of one tensor, in order, as one plain (H, T, D): what every device's unpacking must match."""
    heads, dim = tiles[0].codes.shape[:2]
    out = np.empty((heads, sum(tile.tokens for tile in tiles), dim), STORAGE[dtype])
    start = 0
    for tile in tiles:
        values = _values(tile)
        if _reach(tile) > largest(dtype):
            clip(values, dtype)
        round_into(out[:, start : start + tile.tokens], values, dtype=dtype)
        start += tile.tokens
    return out


def _values(tensor: PackedTensor) -> Floats:
    """The tensor's values (H, T, D) in float32."""
    values = unpack(tensor.codes, codes_per_byte(tensor.bits), tokens=tensor.tokens).astype(np.float32)
    values -= np.float32((2**tensor.bits - 1) / 2)
    with np.errstate(over="ignore"):  # the cell of the largest number may reach beyond it; `clip` brings it back
        values *= tensor.scales
    return values


def _reach(tensor: PackedTensor) -> float:
    """A bound that no value exceeds. To look at the values themselves would take half the time of a decode."""
    return float(tensor.scales.max()) * 2 ** (tensor.bits - 1)
