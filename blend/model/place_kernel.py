# numba's decorators have no types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
"""What numba compiles to place packed codes in a context, some rows at a time, which stay in the nearest cache.

Needs numba, which not every installation has. Whole numbers are told to stay narrow, for numba widens them.
"""

from collections.abc import Callable

import numpy as np
from numba import boolean, float32, int64, njit, types, uint16, uint32, void
from numpy.typing import NDArray

from blend.model.compiled import Word, bytes_at, cast, compiled, compiled_apart
from store.record import Codes, FrameLayout, Scales, largest

Floats = NDArray[np.float32]
Words = NDArray[np.uint16 | np.uint32]
Rows = Floats | Words
Numbers = NDArray[np.int64]
Cut = tuple[int, int, np.float32]  # tokens that are placed, the slot of the first, the largest number of the dtype
Turning = tuple[bool, int, Floats, Floats]  # whether halves are paired, the first number that turns, cosines and sines
Bounds = tuple[np.float32, np.float32]  # the middle between codes, the largest number

_LOW, _HIGH, _SEVEN, _BIT = np.uint8(15), np.uint8(4), np.uint8(7), np.uint8(1)
_LARGEST = largest("float32")
_ROWS = 16  # that are made at a time


@compiled_apart
def _split(codes: Codes, rows: Codes, width: int) -> None:
    """Codes (T, D), each in a byte of its own, of packed rows (P, D)."""
    per_byte, mask = 8 // width, np.uint8(2**width - 1)
    for token in range(len(codes)):
        code, row, place = codes[token], rows[token // per_byte], token % per_byte
        if width == 4 and place == 0:  # shifts that the compiler knows go on 32 codes at once
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
    for byte in range(packed):
        row = rows[byte]
        for d in range(dim):
            row[d] = codes[d * packed + byte]


@compiled
def _unpack(codes: Codes, data: Codes, room: Codes, width: int, is_turned: bool) -> None:  # noqa: FBT001
    """Codes (T, D) of one head, which lie channel by channel or, turned, as rows (P, D) like `room`."""
    if is_turned:
        _split(codes, data.reshape(room.shape), width)
    else:
        _transpose(room, data)
        _split(codes, room, width)


@compiled_apart
def _to_levels(codes: Codes) -> None:
    """Levels in place of a trellis' codes (T, D), as `trellis_levels` has them."""
    first, last = np.zeros(codes.shape[1], np.uint8), np.zeros(codes.shape[1], np.uint8)
    for token in range(len(codes)):
        code = codes[token]
        for d in range(len(code)):
            half = np.uint8(np.uint8(code[d] ^ np.uint8(last[d] * _SEVEN)) & _SEVEN)
            code[d] = np.uint8(np.uint8(half + half) + last[d])
            bit = np.uint8(first[d] ^ np.uint8(half & _BIT))
            first[d] = last[d]
            last[d] = bit


@compiled
def _size(planes: Codes, sizes: Scales, number: int) -> np.float32:
    """One of the steps whose places lie in these two planes."""
    place = np.int64(planes[number]) | np.int64(planes[len(planes) // 2 + number]) << 8
    return sizes[min(place, len(sizes) - 1)]


@compiled
def _middle(planes: Codes, number: int) -> float:
    """One of the middles that lie in these four planes."""
    count = len(planes) // 4
    signed = np.int64(0)
    for plane in range(4):
        signed |= np.int64(planes[plane * count + number]) << 8 * plane
    return float(-(signed >> 1) - 1 if signed & 1 else signed >> 1)


@compiled_apart
def _key_rows(  # noqa: PLR0917
    rows: Rows, codes: Codes, scales: Floats, middles: Floats, bounds: Bounds, like: Word
) -> None:
    to, (half, limit) = rows.dtype.type(0), bounds
    for token in range(len(codes)):
        row, code = rows[token], codes[token]
        for d in range(len(code)):
            x = np.float32(np.float32(np.float32(np.int32(code[d])) - half) * scales[d] + middles[d])
            row[d] = cast(min(max(x, -limit), limit), to, like)


@compiled_apart
def _value_rows(rows: Rows, codes: Codes, scales: Floats, bounds: Bounds, like: Word) -> None:
    to, (half, limit) = rows.dtype.type(0), bounds
    for token in range(len(codes)):
        row, code, scale = rows[token], codes[token], scales[token]
        for d in range(len(code)):
            x = np.float32(np.float32(np.float32(np.int32(code[d])) - half) * scale)
            row[d] = cast(min(max(x, -limit), limit), to, like)


@compiled_apart
def _turn_halves(  # noqa: PLR0917
    low: Words, high: Words, a: Floats, b: Floats, cos: Floats, sin: Floats
) -> None:
    like = low.dtype.type(0)
    for d in range(len(cos)):
        low[d] = cast(np.float32(a[d] * cos[d] - b[d] * sin[d]), like, like)
        high[d] = cast(np.float32(b[d] * cos[d] + a[d] * sin[d]), like, like)


@compiled_apart
def _turn_neighbours(out: Words, x: Floats, cos: Floats, sin: Floats) -> None:
    like = out.dtype.type(0)
    for d in range(len(cos)):
        a, b = x[2 * d], x[2 * d + 1]
        out[2 * d] = cast(np.float32(a * cos[d] - b * sin[d]), like, like)
        out[2 * d + 1] = cast(np.float32(b * cos[d] + a * sin[d]), like, like)


@compiled_apart
def _turn_rows_by_halves(out: Words, wide: Floats, turning: Turning, slot: int) -> None:
    _, first, cos, sin = turning
    pairs = cos.shape[1]
    stop = first + 2 * pairs
    for token in range(len(wide)):
        row, x = out[token, first:stop], wide[token, first:stop]
        _turn_halves(row[:pairs], row[pairs:], x[:pairs], x[pairs:], cos[slot + token], sin[slot + token])


@compiled_apart
def _turn_rows_by_neighbours(out: Words, wide: Floats, turning: Turning, slot: int) -> None:
    _, first, cos, sin = turning
    stop = first + 2 * cos.shape[1]
    for token in range(len(wide)):
        _turn_neighbours(out[token, first:stop], wide[token, first:stop], cos[slot + token], sin[slot + token])


@compiled_apart
def _write_rows(out: Words, wide: Floats) -> None:
    like = out.dtype.type(0)
    for token in range(len(wide)):
        row, x = out[token], wide[token]
        for d in range(len(x)):
            row[d] = cast(x[d], like, like)


@compiled
def _turn_rows(out: Words, wide: Floats, turning: Turning, slot: int) -> None:
    """Write rows (T, D), turned as those from the slot on are."""
    if 2 * turning[2].shape[1] < wide.shape[1]:
        _write_rows(out, wide)
    if turning[0]:
        _turn_rows_by_halves(out, wide, turning, slot)
    else:
        _turn_rows_by_neighbours(out, wide, turning, slot)


@compiled
def _place_keys(  # noqa: PLR0917
    data: Codes, sizes: Scales, layout: FrameLayout, cut: Cut, turning: Turning, out: Words
) -> None:
    heads, _, dim = out.shape
    like = out.dtype.type(0)
    planes, more = data[: layout.middles], data[layout.middles : layout.key_codes]
    bounds = np.float32((2**layout.key_bits - 1) / 2), cut[2]
    codes, wide = np.empty((layout.step, dim), np.uint8), np.empty((_ROWS, dim), np.float32)
    scales, middles = np.empty(dim, np.float32), np.empty(dim, np.float32)
    at, number = layout.key_codes, 0
    for start in range(0, min(layout.tokens, cut[0]), layout.step):
        packed = (min(layout.step, layout.tokens - start) * layout.key_width + 7) // 8
        kept, room = min(layout.step, cut[0] - start), np.empty((packed, dim), np.uint8)
        for head in range(heads):
            for d in range(dim):
                scales[d] = _size(planes, sizes, number)
                middle = _middle(more, number) * float(scales[d]) * 2.0 ** (layout.key_bits - 4)
                middles[d] = min(max(middle, -_LARGEST), _LARGEST)
                number += 1
            _unpack(codes[:kept], data[at : at + packed * dim], room, layout.key_width, layout.is_turned != 0)
            if layout.key_trellis != 0:
                _to_levels(codes[:kept])
            at += packed * dim
            for first in range(0, kept, _ROWS):
                stop, slot = min(first + _ROWS, kept), cut[1] + start + first
                rows = out[head, slot : slot + stop - first]
                if turning[2].shape[1] == 0:
                    _key_rows(rows, codes[first:stop], scales, middles, bounds, like)
                else:
                    _key_rows(wide[: stop - first], codes[first:stop], scales, middles, bounds, like)
                    _turn_rows(rows, wide[: stop - first], turning, slot)


@compiled
def _place_values(  # noqa: PLR0917
    data: Codes, sizes: Scales, layout: FrameLayout, cut: Cut, turning: Turning, out: Words
) -> None:
    heads, _, dim = out.shape
    like = out.dtype.type(0)
    planes = data[layout.value_steps : layout.value_codes]
    bounds = np.float32((2**layout.value_bits - 1) / 2), cut[2]
    codes, wide = np.empty((layout.step, dim), np.uint8), np.empty((_ROWS, dim), np.float32)
    scales = np.empty(layout.step, np.float32)
    at = layout.value_codes
    for start in range(0, min(layout.tokens, cut[0]), layout.step):
        packed = (min(layout.step, layout.tokens - start) * layout.value_width + 7) // 8
        kept, room = min(layout.step, cut[0] - start), np.empty((packed, dim), np.uint8)
        for head in range(heads):
            for token in range(kept):
                scales[token] = _size(planes, sizes, head * layout.tokens + start + token)
            _unpack(codes[:kept], data[at : at + packed * dim], room, layout.value_width, layout.is_turned != 0)
            if layout.value_trellis != 0:
                _to_levels(codes[:kept])
            at += packed * dim
            for first in range(0, kept, _ROWS):
                stop, slot = min(first + _ROWS, kept), cut[1] + start + first
                rows = out[head, slot : slot + stop - first]
                if turning[2].shape[1] == 0:
                    _value_rows(rows, codes[first:stop], scales[first:stop], bounds, like)
                else:
                    _value_rows(wide[: stop - first], codes[first:stop], scales[first:stop], bounds, like)
                    _turn_rows(rows, wide[: stop - first], turning, slot)


def _place(  # numba knows no keywords
    parts: Numbers, sizes: Scales, limit: np.float32, turning: tuple[Turning, Turning], out: tuple[Words, Words]
) -> None:
    """Writes keys and values of a layer's parts to their slots (H, C, D).

    Each of the `parts` is a row: address and length of its bytes, tokens, slot of the first, and its layout.
    """
    for part in parts:
        data = bytes_at(part[0], part[1])
        cut = part[2], part[3], limit
        layout = FrameLayout(
            part[4], part[5], part[6], part[7], part[8], part[9], part[10], part[11], part[12], part[13], part[14],
            part[15], part[16],
        )  # fmt: skip
        _place_keys(data, sizes, layout, cut, turning[0], out[0])
        _place_values(data, sizes, layout, cut, turning[1], out[1])


def place_kernel(*, is_short: bool) -> Callable[..., None]:
    """`_place` for contexts in bfloat16 or float32. What it reads may be read only, as a blob's bytes are."""

    def read(kind: types.Type, ndim: int) -> types.Type:
        return types.Array(kind, ndim, "C", readonly=True)

    turning = types.Tuple((boolean, int64, read(float32, 2), read(float32, 2)))
    out = types.Array(uint16 if is_short else uint32, 3, "C")
    signature = void(read(int64, 2), read(float32, 1), float32, types.UniTuple(turning, 2), types.UniTuple(out, 2))
    try:
        return njit(signature, nogil=True, cache=True)(_place)
    except RuntimeError:  # there is no folder to keep it in: each process compiles it
        return njit(signature, nogil=True)(_place)
