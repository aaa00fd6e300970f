# numba's decorators have no types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportCallIssue=false
"""Numba functions that unpack the quantized codes of one head: bits, trellis decoding, step sizes and middles.

Only `unpack_scratch` makes arrays: functions that may make one also count references, which took a fifth of the time.
The others get an `UnpackScratch` to work in. As with `compiled.py`: after changing this file alone, touch those that
import it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blend.kernels.compiled import compiled, compiled_apart
from store.record import Codes, Scales, largest

Floats = NDArray[np.float32]
Form = tuple[int, bool, bool]  # bits of a code in a byte, whether codes lie as rows, whether they are of a trellis

ROWS = 16  # decoded at a time
_LOW, _HIGH, _SEVEN, _BIT = np.uint8(15), np.uint8(4), np.uint8(7), np.uint8(1)
_LARGEST = largest("float32")


class UnpackScratch(NamedTuple):
    """Flat scratch buffers for one head."""

    rows: Codes
    columns: Codes
    states: Codes
    wide: Floats
    steps: Floats  # of a head's channels, or tokens
    middles: Floats  # of its channels


@compiled
def unpack_scratch(tokens: int, dim: int) -> UnpackScratch:
    """Scratch buffers for this many tokens that share steps."""
    return UnpackScratch(
        np.empty(tokens * dim, np.uint8),
        np.empty(tokens * dim, np.uint8),
        np.empty(2 * dim, np.uint8),
        np.empty(ROWS * dim, np.float32),
        np.empty(max(tokens, dim), np.float32),
        np.empty(dim, np.float32),
    )


@compiled_apart
def _split(codes: Codes, rows: Codes, width: int) -> None:
    """Codes (T, D), each in a byte of its own, of packed rows (P, D)."""
    per_byte, mask = 8 // width, np.uint8(2**width - 1)
    for token in range(len(codes)):
        code, row, place = codes[token], rows[token // per_byte], token % per_byte
        if width == 4 and place == 0:  # constant shifts are compiled to 32 codes at once
            for d in range(len(code)):
                code[d] = np.uint8(row[d] & _LOW)
        elif width == 4:
            for d in range(len(code)):
                code[d] = np.uint8(row[d] >> _HIGH)
        else:
            for d in range(len(code)):
                code[d] = np.uint8(np.uint8(row[d] >> np.uint8(place * width)) & mask)


@compiled_apart
def _transpose(rows: Codes, codes: Codes) -> None:
    """Packed rows (P, D) of channels' codes."""
    packed, dim = rows.shape
    for first in range(0, packed, ROWS):
        for d in range(dim):
            for byte in range(first, min(first + ROWS, packed)):
                rows[byte, d] = codes[d * packed + byte]


@compiled_apart
def _to_levels(codes: Codes, first: Codes, last: Codes) -> None:
    """Replaces a trellis' codes (T, D) by levels, as `trellis_levels` defines them."""
    first[:] = 0
    last[:] = 0
    for token in range(len(codes)):
        code = codes[token]
        for d in range(len(code)):
            half = np.uint8(np.uint8(code[d] ^ np.uint8(last[d] * _SEVEN)) & _SEVEN)
            code[d] = np.uint8(np.uint8(half + half) + last[d])
            bit = np.uint8(first[d] ^ np.uint8(half & _BIT))
            first[d] = last[d]
            last[d] = bit


@compiled_apart
def unpack_head(rows: Codes, data: Codes, form: Form, scratch: UnpackScratch) -> None:
    """Brings one head's codes into rows: packed rows (P, D), or a trellis' levels (T, D)."""
    width, is_turned, has_trellis = form
    if not has_trellis:
        _transpose(rows, data)
        return
    dim = rows.shape[1]
    packed = len(data) // dim
    if is_turned:
        _split(rows, data.reshape(packed, dim), width)
    else:
        turned = scratch.columns[: packed * dim].reshape(packed, dim)
        _transpose(turned, data)
        _split(rows, turned, width)
    _to_levels(rows, scratch.states[:dim], scratch.states[dim : 2 * dim])


@compiled_apart
def read_steps(steps: Floats, low: Codes, high: Codes, sizes: Scales) -> None:
    """Reads quantization steps, whose indices in `sizes` lie in two planes."""
    last = np.uint32(len(sizes) - 1)
    for number in range(len(steps)):
        place = np.uint32(np.uint32(low[number]) | np.uint32(np.uint32(high[number]) << np.uint32(8)))
        steps[number] = sizes[min(place, last)]


@compiled_apart
def read_middles(middles: Floats, steps: Floats, planes: Codes, unit: float) -> None:
    """Reads a head's middles from four planes (4, D)."""
    first, second, third, fourth = planes[0], planes[1], planes[2], planes[3]
    for d in range(len(steps)):
        lower = np.uint32(np.uint32(first[d]) | np.uint32(np.uint32(second[d]) << np.uint32(8)))
        upper = np.uint32(np.uint32(third[d]) | np.uint32(np.uint32(fourth[d]) << np.uint32(8)))
        told = np.uint32(lower | np.uint32(upper << np.uint32(16)))
        sign = np.uint32(np.uint32(0) - np.uint32(told & np.uint32(1)))
        middle = float(np.int32(np.uint32(told >> np.uint32(1)) ^ sign)) * float(steps[d]) * unit
        middles[d] = np.float32(min(max(middle, -_LARGEST), _LARGEST))
