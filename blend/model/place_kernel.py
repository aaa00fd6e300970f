# numba's decorators have no types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
"""What numba compiles to place packed codes in a context, row by row: no row leaves the cache before it is done.

Needs numba, which not every installation has. Whole numbers are told to stay in 32 bits, for numba widens them.
"""

from collections.abc import Callable

import numpy as np
from numba import boolean, float32, int64, njit, types, uint8, uint16, uint32, void
from numpy.typing import NDArray

from store.record import Codes, Scales, largest

Floats = NDArray[np.float32]
Words = NDArray[np.uint16 | np.uint32]  # the bits of bfloat16 or float32
Form = tuple[int, int, int, int]  # bits of a code, bits that it takes in a byte, tokens, the slot of the first
Turning = tuple[bool, int, int]  # whether halves are paired, the first number that turns, the first token's angle

_HALF, _ODD, _ONE, _UPPER = np.uint32(16), np.uint32(0x7FFF), np.uint32(1), np.uint32(0xFFFF0000)
_LARGEST, _LARGEST_SHORT = np.float32(largest("float32")), np.float32(largest("bfloat16"))


@njit(nogil=True)
def _rounded(x: np.uint32) -> np.uint32:
    """The bits of a float32, whose upper half is the nearest bfloat16 then, the even one of two."""
    return np.uint32(x + np.uint32(_ODD + np.uint32(np.uint32(x >> _HALF) & _ONE)))


@njit(nogil=True)
def _unpack(wide: Floats, codes: Codes, turned: Codes, form: Form) -> None:
    """Codes (D, P) of one head as numbers (T, D) around zero. `turned` (P, D) is room."""
    bits, width, tokens, _ = form
    dim, packed = codes.shape
    per_byte, mask = 8 // width, np.uint32(2**width - 1)
    middle = np.float32((2**bits - 1) / 2)
    for byte in range(packed):
        for d in range(dim):
            turned[byte, d] = codes[d, byte]
    for token in range(tokens):
        byte, shift = token // per_byte, np.uint32(token % per_byte * width)
        for d in range(dim):
            code = np.uint32(np.uint32(turned[byte, d]) >> shift) & mask
            wide[token, d] = np.float32(np.int32(code)) - middle


@njit(nogil=True)
def _scale(wide: Floats, scales: Floats, centers: Floats) -> None:
    """Scales (1, D) or (T, 1), and centers of that shape, or none: (0, 0)."""
    by_token, is_centered = len(scales) > 1, len(centers) > 0
    for row_of in range(len(wide)):
        row = wide[row_of]
        if by_token:
            scale = scales[row_of, 0]
            for d in range(len(row)):
                row[d] *= scale
            if is_centered:
                center = centers[row_of, 0]
                for d in range(len(row)):
                    row[d] += center
        else:
            scale_row = scales[0]
            for d in range(len(row)):
                row[d] *= scale_row[d]
            if is_centered:
                center_row = centers[0]
                for d in range(len(row)):
                    row[d] += center_row[d]


@njit(nogil=True)
def _clamp(wide: Floats, scales: Floats, centers: Floats, reach: tuple[int, np.float32]) -> None:
    """Bring numbers that the dtype does not hold back to its largest. To look at each takes longer than at steps."""
    bits, limit = reach
    widest = scales.max() * np.float32(2 ** (bits - 1))
    if len(centers):
        widest += max(centers.max(), -centers.min())
    if widest > limit:
        for token in range(len(wide)):
            row = wide[token]
            for d in range(len(row)):
                row[d] = min(max(row[d], -limit), limit)


@njit(nogil=True)
def _round(bits: Words) -> None:
    for token in range(bits.shape[0]):
        for d in range(bits.shape[1]):
            bits[token, d] = np.uint32(_rounded(bits[token, d]) & _UPPER)


@njit(nogil=True)
def _turn_halves(spun: Floats, wide: Floats, cos: Floats, sin: Floats, turning: Turning) -> None:
    pairs, (_, first, angle) = cos.shape[1], turning
    for token in range(len(wide)):
        row, out, c, s = wide[token], spun[token], cos[angle + token], sin[angle + token]
        a, b = row[first : first + pairs], row[first + pairs : first + 2 * pairs]
        low, high = out[first : first + pairs], out[first + pairs : first + 2 * pairs]
        for d in range(pairs):
            low[d] = a[d] * c[d] - b[d] * s[d]
        for d in range(pairs):  # a loop of its own: with two stores in one, nothing is computed side by side
            high[d] = b[d] * c[d] + a[d] * s[d]


@njit(nogil=True)
def _turn_neighbours(spun: Floats, wide: Floats, cos: Floats, sin: Floats, turning: Turning) -> None:
    _, first, angle = turning
    for token in range(len(wide)):
        row, out, c, s = wide[token], spun[token], cos[angle + token], sin[angle + token]
        for d in range(len(c)):
            a, b = row[first + 2 * d], row[first + 2 * d + 1]
            out[first + 2 * d] = a * c[d] - b * s[d]
            out[first + 2 * d + 1] = b * c[d] + a * s[d]


@njit(nogil=True)
def _turn(spun: Floats, wide: Floats, cos: Floats, sin: Floats, turning: Turning) -> None:
    if 2 * cos.shape[1] < wide.shape[1]:
        spun[:] = wide
    if turning[0]:
        _turn_halves(spun, wide, cos, sin, turning)
    else:
        _turn_neighbours(spun, wide, cos, sin, turning)


@njit(nogil=True)
def _write(out: Words, bits: Words, slot: int) -> None:
    """The rows from the slot on; upper halves where those are what the buffer holds."""
    is_short = out.itemsize == 2
    for token in range(bits.shape[0]):
        for d in range(bits.shape[1]):
            if is_short:
                out[slot + token, d] = np.uint16(_rounded(bits[token, d]) >> _HALF)
            else:
                out[slot + token, d] = bits[token, d]


def _place(  # noqa: PLR0917  # numba knows no keywords
    codes: Codes, scales: Scales, centers: Scales, cos: Floats, sin: Floats, form: Form, turning: Turning, out: Words
) -> None:
    """Writes one tensor's first tokens, all heads of it, to their slots (H, C, D). No centers: (H, 0, 0)."""
    tokens, slot = form[2], form[3]
    heads, dim, packed = codes.shape
    turned = np.empty((packed, dim), np.uint8)
    limit = _LARGEST_SHORT if out.itemsize == 2 else _LARGEST
    wide, spun = np.empty((tokens, dim), np.float32), np.empty((tokens, dim), np.float32)
    for head in range(heads):
        _unpack(wide, codes[head], turned, form)
        _scale(wide, scales[head], centers[head])
        _clamp(wide, scales[head], centers[head], (form[0], limit))
        if out.itemsize == 2:
            _round(wide.view(np.uint32))
        if cos.shape[1] == 0:
            _write(out[head], wide.view(np.uint32), slot)
        else:
            _turn(spun, wide, cos, sin, turning)
            _write(out[head], spun.view(np.uint32), slot)


def place_kernel(*, is_short: bool) -> Callable[..., None]:
    """`_place` for contexts in bfloat16 or float32. What it reads may be read only, as a blob's arrays are."""

    def read(kind: types.Type, ndim: int, *, layout: str = "C") -> types.Type:
        return types.Array(kind, ndim, layout, readonly=True)

    arrays = read(uint8, 3, layout="A"), read(float32, 3), read(float32, 3), read(float32, 2), read(float32, 2)
    form, turning = types.UniTuple(int64, 4), types.Tuple((boolean, int64, int64))
    signature = void(*arrays, form, turning, types.Array(uint16 if is_short else uint32, 3, "C"))
    try:
        return njit(signature, nogil=True, cache=True)(_place)
    except RuntimeError:  # there is no folder to keep it in: each process compiles it
        return njit(signature, nogil=True)(_place)
