"""Quantization at every bit width: how wide steps are, between whole bits too. Arrays in, codes out; knows no blobs.

A code c stands for `middle + (c - (2**bits - 1) / 2) * step`: the cells fill what lies between the least and the
largest number, so no error exceeds half a step. Between whole bits codes are those of a trellis (`trellis.py`), which
stand for levels in that sense, up to one and a half steps away. Keys have a middle for every channel, as channels
lie far from zero in many models. Values share a step across channels, whose middle is zero: another one costs more than
it gives.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.codec.spec import code_bits, is_between
from store.codec.trellis import LEVELS, trellis_codes
from store.record import Codes, Scales, codes_per_byte

KEYS, VALUES = 1, 2  # the axis of (H, T, D) along which a step is shared

Floats = NDArray[np.float32]
Places = NDArray[np.uint16]
Middles = NDArray[np.int32]

_PER_OCTAVE = 16
_LOWEST = -126 * _PER_OCTAVE  # 2**-126, the smallest normal number
_FINEST = 2.0**-27  # of the largest number beside it: narrower cells would only hold float32's own rounding
_LOUD = 2.0**125  # beyond it float32 overflows on the way


def _grid() -> Scales:
    """All step sizes there are: zero, then 2**(e/16), rounded up to what bfloat16 holds exactly."""
    sizes = np.exp2(np.arange(_LOWEST, 128 * _PER_OCTAVE, dtype=np.float64) / _PER_OCTAVE).astype(np.float32)
    rounded_up = (sizes.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)
    return np.concatenate([np.zeros(1, np.float32), rounded_up.view(np.float32)])


def _places() -> Places:
    """The place in the grid of the first size that is not smaller, for each bfloat16 from zero up, by its bits.

    A logarithm would be rounded, and not alike on every machine.
    """
    numbers = np.arange(0x7F80, dtype=np.uint32) << np.uint32(16)
    return np.searchsorted(STEP_SIZES, numbers.view(np.float32)).astype(np.uint16)


STEP_SIZES = _grid()
_INVERSES = np.concatenate([np.zeros(1, np.float32), np.float32(1) / STEP_SIZES[1:]])
_PLACES = _places()


@dataclass(frozen=True, slots=True)
class Quantized:
    """A tensor (H, T, D) in codes (H, D, P), and what they stand for: places in the grid of steps, middles of keys.

    A middle is counted in sixteenths of what all the codes of its channel reach, so its size does not hang on bits.
    """

    codes: Codes
    places: Places
    middles: Middles | None

    def of_heads(self, first: int, end: int) -> "Quantized":
        """The codes of some of the heads, and what these stand for."""
        heads = slice(first, end)
        return Quantized(self.codes[heads], self.places[heads], None if self.middles is None else self.middles[heads])


def step_sizes(places: NDArray[np.uint16 | np.uint32 | np.int64]) -> Scales:
    """The step sizes at these places, every one exact in bfloat16."""
    return STEP_SIZES.take(places, mode="clip")


def quantize(x: Floats, bits: float, *, axis: int) -> Quantized:
    """Codes and steps of x (H, T, D). `axis` shares a step: KEYS a channel's tokens, VALUES a token's channels.

    Where `bits` lie between whole numbers, codes are those of a trellis, whose steps are half as wide, and the steps of
    a head are evened: what is loud is kept finer, and what is quiet coarser. An error counts as much in one place as in
    another, and zstd takes back what the more or fewer codes cost.
    """
    held, in_trellis = code_bits(bits), is_between(bits)
    if in_trellis:
        bits += 1
    finer = min(2.0, LEVELS * 2.0**-bits)  # than by its own width
    if axis == VALUES:
        turned = np.ascontiguousarray(np.abs(x).transpose(0, 2, 1))  # numpy is slow along the last axis
        loudest = turned.max(axis=1)[:, :, None]
        widths = _evened(loudest, axis=1, finer=finer) if in_trellis else loudest
        places = _places_of(widths * np.float32(2.0 ** (1 - bits)), loudest)
        middles, edges = None, step_sizes(places) * np.float64(-(2 ** (held - 1)))
    else:
        low, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
        loudest = np.maximum(np.abs(low), np.abs(high))
        halves = high / 2 - low / 2
        widths = _evened(halves, axis=2, finer=finer) if in_trellis else halves
        widths = np.maximum(widths, loudest * np.float32(_FINEST))
        places = _places_of(widths * np.float32(32 / 15 * 2.0**-bits), loudest)
        sixteenths = np.maximum(step_sizes(places), STEP_SIZES[1]) * np.float64(2.0 ** (held - 4))
        middles = np.rint((low / 2 + high / 2) / sixteenths).astype(np.int32)
        edges = (middles - 8) * sixteenths
    scaled = x - edges.astype(np.float64 if loudest.max() > _LOUD else np.float32)
    scaled *= _INVERSES.take(places)
    np.clip(scaled, 0, 2**held - (not in_trellis), out=scaled)  # the cut to whole numbers is one to zero
    codes = trellis_codes(scaled, _weights(places)) if in_trellis else scaled.astype(np.uint8)
    return Quantized(pack(codes, codes_per_byte(held)), places, middles)


def _weights(places: Places) -> Floats:
    """What an error of one step counts, squared, against those in the tokens that share a path."""
    sizes = step_sizes(places)
    return np.maximum(sizes / np.maximum(sizes.max(axis=1, keepdims=True), STEP_SIZES[1]), np.float32(0.01)) ** 2


def _evened(widths: Floats, *, axis: int, finer: float) -> Floats:
    """The geometric mean of each width and its head's median, which lies along `axis`; at most twice the width, and at
    least so many times finer.
    """
    exact, last = widths.astype(np.float64), widths.shape[axis] - 1
    ordered = np.sort(exact, axis=axis)  # numpy's own median takes four times as long for so few
    typical = (ordered.take([last // 2], axis) + ordered.take([-(-last // 2)], axis)) / 2
    return np.clip(np.sqrt(exact * typical), exact / finer, exact * 2).astype(np.float32)


def _places_of(wanted: Floats, loudest: Floats) -> Places:
    """The places of the smallest steps that are as large as wanted; zero is for what is zero alone."""
    places = _PLACES.take((wanted.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16))
    return np.maximum(places, loudest > 0)


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
