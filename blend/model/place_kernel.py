# numba's decorators have no types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
"""What numba compiles to place packed codes in a context, row by row: no row leaves the cache before it is done.

Needs numba, which not every installation has. Whole numbers are told to stay in 32 bits, for numba widens them.
"""

from collections.abc import Callable

import numpy as np
from numba import boolean, float32, int64, njit, types, uint8, uint16, uint32, void
from numpy.typing import NDArray

from store.record import Codes, FrameLayout, Scales, largest

Floats = NDArray[np.float32]
Words = NDArray[np.uint16 | np.uint32]  # the bits of bfloat16 or float32
Form = tuple[int, int, bool]  # bits of a code, bits that it takes in a byte, whether codes are turned already
Cut = tuple[int, int]  # the first tokens that are placed, the slot of the first
Spin = tuple[bool, int, int]  # whether halves are paired, the first number that turns, the row of the first angle
Turning = tuple[bool, int, Floats, Floats]  # whether halves are paired, the first number that turns, cosines and sines

_HALF, _ODD, _ONE, _UPPER = np.uint32(16), np.uint32(0x7FFF), np.uint32(1), np.uint32(0xFFFF0000)
_LARGEST, _LARGEST_SHORT = np.float32(largest("float32")), np.float32(largest("bfloat16"))


@njit(nogil=True)
def _rounded(x: np.uint32) -> np.uint32:
    """The bits of a float32, whose upper half is the nearest bfloat16 then, the even one of two."""
    return np.uint32(x + np.uint32(_ODD + np.uint32(np.uint32(x >> _HALF) & _ONE)))


@njit(nogil=True)
def _unpack(wide: Floats, codes: Codes, turned: Codes, form: Form) -> None:
    """Codes of one head, channel by channel, as numbers (T, D) around zero. `turned` (P, D) is room."""
    bits, width, is_turned = form
    tokens, dim = wide.shape
    packed = len(codes) // dim
    per_byte, mask = 8 // width, np.uint32(2**width - 1)
    middle = np.float32((2**bits - 1) / 2)
    if is_turned:
        rows = codes.reshape(packed, dim)
    else:
        for byte in range(packed):
            for d in range(dim):
                turned[byte, d] = codes[d * packed + byte]
        rows = turned
    for token in range(tokens):
        row, shift = rows[token // per_byte], np.uint32(token % per_byte * width)
        for d in range(dim):
            wide[token, d] = np.float32(np.int32((np.uint32(row[d]) >> shift) & mask)) - middle


@njit(nogil=True)
def _size(planes: Codes, sizes: Scales, number: int) -> np.float32:
    """One of the steps whose places lie in these two planes."""
    place = np.int64(planes[number]) | np.int64(planes[len(planes) // 2 + number]) << 8
    return sizes[min(place, len(sizes) - 1)]


@njit(nogil=True)
def _middle(planes: Codes, number: int) -> float:
    """One of the middles that lie in these four planes."""
    count = len(planes) // 4
    signed = np.int64(0)
    for plane in range(4):
        signed |= np.int64(planes[plane * count + number]) << 8 * plane
    return float(-(signed >> 1) - 1 if signed & 1 else signed >> 1)


@njit(nogil=True)
def _clamp(wide: Floats, widest: float | np.float32, limit: np.float32) -> None:
    """Bring numbers that the dtype does not hold back to its largest, where any may reach so far."""
    if widest > limit:
        for token in range(len(wide)):
            row = wide[token]
            for d in range(len(row)):
                row[d] = min(max(row[d], -limit), limit)


@njit(nogil=True)
def _scale_keys(wide: Floats, scales: Floats, middles: Floats) -> None:
    for token in range(len(wide)):
        row = wide[token]
        for d in range(len(row)):
            row[d] *= scales[d]
        for d in range(len(row)):
            row[d] += middles[d]


@njit(nogil=True)
def _round(bits: Words) -> None:
    for token in range(bits.shape[0]):
        for d in range(bits.shape[1]):
            bits[token, d] = np.uint32(_rounded(bits[token, d]) & _UPPER)


@njit(nogil=True)
def _turn_halves(spun: Floats, wide: Floats, cos: Floats, sin: Floats, spin: Spin) -> None:
    pairs, (_, first, angle) = cos.shape[1], spin
    for token in range(len(wide)):
        row, out, c, s = wide[token], spun[token], cos[angle + token], sin[angle + token]
        a, b = row[first : first + pairs], row[first + pairs : first + 2 * pairs]
        low, high = out[first : first + pairs], out[first + pairs : first + 2 * pairs]
        for d in range(pairs):
            low[d] = a[d] * c[d] - b[d] * s[d]
        for d in range(pairs):  # a loop of its own: with two stores in one, nothing is computed side by side
            high[d] = b[d] * c[d] + a[d] * s[d]


@njit(nogil=True)
def _turn_neighbours(spun: Floats, wide: Floats, cos: Floats, sin: Floats, spin: Spin) -> None:
    _, first, angle = spin
    for token in range(len(wide)):
        row, out, c, s = wide[token], spun[token], cos[angle + token], sin[angle + token]
        for d in range(len(c)):
            a, b = row[first + 2 * d], row[first + 2 * d + 1]
            out[first + 2 * d] = a * c[d] - b * s[d]
            out[first + 2 * d + 1] = b * c[d] + a * s[d]


@njit(nogil=True)
def _turn(spun: Floats, wide: Floats, cos: Floats, sin: Floats, spin: Spin) -> None:
    if 2 * cos.shape[1] < wide.shape[1]:
        spun[:] = wide
    if spin[0]:
        _turn_halves(spun, wide, cos, sin, spin)
    else:
        _turn_neighbours(spun, wide, cos, sin, spin)


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


@njit(nogil=True)
def _put(out: Words, wide: Floats, spun: Floats, turning: Turning, slots: Cut) -> None:
    """Round, turn and write the rows of one head; `slots`: that of the first row, and the row of its angle."""
    slot, angle = slots
    is_halves, first, cos, sin = turning
    if out.itemsize == 2:
        _round(wide.view(np.uint32))
    if cos.shape[1] == 0:
        _write(out, wide.view(np.uint32), slot)
    else:
        _turn(spun, wide, cos, sin, (is_halves, first, angle))
        _write(out, spun.view(np.uint32), slot)


@njit(nogil=True)
def _place_keys(  # noqa: PLR0917
    data: Codes, sizes: Scales, layout: FrameLayout, cut: Cut, turning: Turning, out: Words
) -> None:
    heads, _, dim = out.shape
    step, bits, width, is_turned = layout[1], layout[2], layout[3], layout[6] != 0
    planes, more = data[: layout[7]], data[layout[7] : layout[8]]
    limit = _LARGEST_SHORT if out.itemsize == 2 else _LARGEST
    room = np.empty(((step * width + 7) // 8, dim), np.uint8)
    wide, spun = np.empty((step, dim), np.float32), np.empty((step, dim), np.float32)
    scales, middles = np.empty(dim, np.float32), np.empty(dim, np.float32)
    at, number = layout[8], 0
    for start in range(0, min(layout[0], cut[0]), step):
        nbytes = (min(step, layout[0] - start) * width + 7) // 8 * dim
        kept = min(step, layout[0] - start, cut[0] - start)
        for head in range(heads):
            widest, farthest = 0.0, 0.0
            for d in range(dim):
                scales[d] = _size(planes, sizes, number)
                middle = _middle(more, number) * float(scales[d]) * 2.0 ** (bits - 4)
                middles[d] = min(max(middle, -float(_LARGEST)), float(_LARGEST))
                widest, farthest = max(widest, float(scales[d])), max(farthest, abs(middle))
                number += 1
            _unpack(wide[:kept], data[at : at + nbytes], room, (bits, width, is_turned))
            _scale_keys(wide[:kept], scales, middles)
            _clamp(wide[:kept], widest * 2.0 ** (bits - 1) + farthest, limit)
            _put(out[head], wide[:kept], spun[:kept], turning, (cut[1] + start, start))
            at += nbytes


@njit(nogil=True)
def _place_values(  # noqa: PLR0917
    data: Codes, sizes: Scales, layout: FrameLayout, cut: Cut, turning: Turning, out: Words
) -> None:
    heads, _, dim = out.shape
    step, bits, width, is_turned = layout[1], layout[4], layout[5], layout[6] != 0
    planes = data[layout[9] : layout[10]]
    limit = _LARGEST_SHORT if out.itemsize == 2 else _LARGEST
    room = np.empty(((step * width + 7) // 8, dim), np.uint8)
    wide, spun = np.empty((step, dim), np.float32), np.empty((step, dim), np.float32)
    at = layout[10]
    for start in range(0, min(layout[0], cut[0]), step):
        nbytes = (min(step, layout[0] - start) * width + 7) // 8 * dim
        kept = min(step, layout[0] - start, cut[0] - start)
        for head in range(heads):
            _unpack(wide[:kept], data[at : at + nbytes], room, (bits, width, is_turned))
            widest = np.float32(0)
            for token in range(kept):
                row, scale = wide[token], _size(planes, sizes, head * layout[0] + start + token)
                widest = max(widest, scale)
                for d in range(dim):
                    row[d] *= scale
            _clamp(wide[:kept], widest * 2.0 ** (bits - 1), limit)
            _put(out[head], wide[:kept], spun[:kept], turning, (cut[1] + start, start))
            at += nbytes


def _place(  # noqa: PLR0917  # numba knows no keywords
    data: Codes,
    sizes: Scales,
    layout: FrameLayout,
    cut: Cut,
    turning: tuple[Turning, Turning],
    out: tuple[Words, Words],
) -> None:
    """Writes keys and values of one part of a layer to their slots (H, C, D)."""
    _place_keys(data, sizes, layout, cut, turning[0], out[0])
    _place_values(data, sizes, layout, cut, turning[1], out[1])


def place_kernel(*, is_short: bool) -> Callable[..., None]:
    """`_place` for contexts in bfloat16 or float32. What it reads may be read only, as a blob's bytes are."""

    def read(kind: types.Type, ndim: int) -> types.Type:
        return types.Array(kind, ndim, "C", readonly=True)

    turning = types.Tuple((boolean, int64, read(float32, 2), read(float32, 2)))
    out = types.Array(uint16 if is_short else uint32, 3, "C")
    layout, cut = types.UniTuple(int64, len(FrameLayout._fields)), types.UniTuple(int64, 2)
    both = types.UniTuple(turning, 2), types.UniTuple(out, 2)
    signature = void(read(uint8, 1), read(float32, 1), layout, cut, *both)
    try:
        return njit(signature, nogil=True, cache=True)(_place)
    except RuntimeError:  # there is no folder to keep it in: each process compiles it
        return njit(signature, nogil=True)(_place)
