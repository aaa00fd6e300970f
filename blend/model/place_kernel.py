# numba's decorators have no types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportCallIssue=false
"""What numba compiles to place packed codes in a context, some rows at a time, which stay in the nearest cache.

Needs numba, which not every installation has. Whole numbers are told to stay narrow, for numba widens them.
"""

from collections.abc import Callable

import numpy as np
from numba import boolean, float32, int64, njit, types, uint16, uint32, void
from numpy.typing import NDArray

from blend.model.compiled import LANES, Word, bytes_at, cast, compiled, compiled_apart, look_up, multiply_add
from store.record import Codes, FrameLayout, Scales, largest

Floats = NDArray[np.float32]
Words = NDArray[np.uint16 | np.uint32]
Rows = Floats | Words
Numbers = NDArray[np.int64]
Cut = tuple[int, int, np.float32]  # tokens that are placed, the slot of the first, the largest number of the dtype
Turning = tuple[bool, int, Floats, Floats]  # whether halves are paired, the first number that turns, cosines and sines
Bounds = tuple[np.float32, np.float32]  # the middle between codes, the largest number

_LOW, _HIGH, _SEVEN, _BIT = np.uint8(15), np.uint8(4), np.uint8(7), np.uint8(1)
_LARGEST, _SIGNLESS = largest("float32"), np.uint32(0x7FFFFFFF)
_TABLE = 16  # codes of four bits, and the levels of a trellis
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


@compiled_apart
def _channel_steps(  # noqa: PLR0917
    steps: Floats, middles: Floats, planes: Codes, more: Codes, sizes: Scales, unit: float
) -> None:
    """A head's steps, whose places lie in two planes (2, D), and its middles, of four planes (4, D)."""
    last = np.uint32(len(sizes) - 1)
    low, high = planes[0], planes[1]
    for d in range(len(steps)):
        place = np.uint32(np.uint32(low[d]) | np.uint32(np.uint32(high[d]) << np.uint32(8)))
        steps[d] = sizes[min(place, last)]
    first, second, third, fourth = more[0], more[1], more[2], more[3]
    for d in range(len(steps)):
        lower = np.uint32(np.uint32(first[d]) | np.uint32(np.uint32(second[d]) << np.uint32(8)))
        upper = np.uint32(np.uint32(third[d]) | np.uint32(np.uint32(fourth[d]) << np.uint32(8)))
        told = np.uint32(lower | np.uint32(upper << np.uint32(16)))
        sign = np.uint32(np.uint32(0) - np.uint32(told & np.uint32(1)))
        middle = float(np.int32(np.uint32(told >> np.uint32(1)) ^ sign)) * float(steps[d]) * unit
        middles[d] = np.float32(min(max(middle, -_LARGEST), _LARGEST))


@compiled_apart
def _is_bounded(steps: Floats, middles: Floats, bounds: Bounds) -> bool:
    """Whether no key of these channels exceeds the largest number. Bits of numbers above zero lie in their order."""
    step = middle = np.uint32(0)
    for d in range(len(steps)):
        step = max(step, np.float32(steps[d]).view(np.uint32))
        middle = max(middle, np.uint32(np.float32(middles[d]).view(np.uint32) & _SIGNLESS))
    reach = float(bounds[0]) * float(np.uint32(step).view(np.float32)) + float(np.uint32(middle).view(np.float32))
    return reach < float(bounds[1])


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
def _value_tables(tables: Words, levels: Floats, scales: Floats, limit: np.float32) -> None:
    """What each code stands for in each token (T, 16)."""
    like = tables.dtype.type(0)
    for token in range(len(tables)):
        table, scale = tables[token], scales[token]
        for code in range(len(levels)):
            table[code] = cast(min(max(np.float32(levels[code] * scale), -limit), limit), like, like)


@compiled_apart
def _look_up_rows(out: Words, codes: Codes, tables: Words) -> None:
    whole = codes.shape[1] // LANES * LANES
    for token in range(len(codes)):
        row, code, table = out[token], codes[token], tables[token]
        for d in range(0, whole, LANES):
            look_up(row, code, d, table)
        for d in range(whole, len(code)):
            row[d] = table[code[d]]


@compiled_apart
def _turn_key_rows(  # noqa: PLR0917
    out: Words, codes: Codes, scales: Floats, middles: Floats, bounds: Bounds, turning: Turning, slot: int
) -> None:
    """Writes rows whose halves turn whole, without a stop between. No key exceeds the bounds."""
    half, like = bounds[0], out.dtype.type(0)
    _, _, cosines, sines = turning
    pairs = cosines.shape[1]
    scale_a, scale_b, middle_a, middle_b = scales[:pairs], scales[pairs:], middles[:pairs], middles[pairs:]
    for token in range(len(codes)):
        low, high = out[token, :pairs], out[token, pairs:]
        code_a, code_b = codes[token, :pairs], codes[token, pairs:]
        cos, sin = cosines[slot + token], sines[slot + token]
        for d in range(pairs):
            a = multiply_add(np.float32(np.float32(np.int32(code_a[d])) - half), scale_a[d], middle_a[d])
            b = multiply_add(np.float32(np.float32(np.int32(code_b[d])) - half), scale_b[d], middle_b[d])
            a, b = cast(a, half, like), cast(b, half, like)
            low[d] = cast(np.float32(a * cos[d] - b * sin[d]), like, like)
            high[d] = cast(np.float32(b * cos[d] + a * sin[d]), like, like)


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
    planes = data[: layout.middles].reshape(2, layout.middles // 2)
    more = data[layout.middles : layout.key_codes].reshape(4, layout.middles // 2)
    unit, bounds = 2.0 ** (layout.key_bits - 4), (np.float32((2**layout.key_bits - 1) / 2), cut[2])
    codes, wide = np.empty((layout.step, dim), np.uint8), np.empty((_ROWS, dim), np.float32)
    scales, middles = np.empty(dim, np.float32), np.empty(dim, np.float32)
    at, number = layout.key_codes, 0
    for start in range(0, min(layout.tokens, cut[0]), layout.step):
        packed = (min(layout.step, layout.tokens - start) * layout.key_width + 7) // 8
        kept, room = min(layout.step, cut[0] - start), np.empty((packed, dim), np.uint8)
        for head in range(heads):
            channels = slice(number, number + dim)
            _channel_steps(scales, middles, planes[:, channels], more[:, channels], sizes, unit)
            number += dim
            _unpack(codes[:kept], data[at : at + packed * dim], room, layout.key_width, layout.is_turned != 0)
            if layout.key_trellis != 0:
                _to_levels(codes[:kept])
            at += packed * dim
            is_quick = turning[0] and 2 * turning[2].shape[1] == dim and _is_bounded(scales, middles, bounds)
            for first in range(0, kept, _ROWS):
                stop, slot = min(first + _ROWS, kept), cut[1] + start + first
                rows = out[head, slot : slot + stop - first]
                if is_quick:
                    _turn_key_rows(rows, codes[first:stop], scales, middles, bounds, turning, slot)
                elif turning[2].shape[1] == 0:
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
    scales, tables = np.empty(layout.step, np.float32), np.empty((layout.step, _TABLE), out.dtype)
    levels = np.arange(_TABLE).astype(np.float32) - bounds[0]
    is_quick = turning[2].shape[1] == 0 and layout.value_width <= 4
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
            slot = cut[1] + start
            if is_quick:
                _value_tables(tables[:kept], levels, scales, bounds[1])
                _look_up_rows(out[head, slot : slot + kept], codes[:kept], tables)
                continue
            for first in range(0, kept, _ROWS):
                stop = min(first + _ROWS, kept)
                rows = out[head, slot + first : slot + stop]
                if turning[2].shape[1] == 0:
                    _value_rows(rows, codes[first:stop], scales[first:stop], bounds, like)
                else:
                    _value_rows(wide[: stop - first], codes[first:stop], scales[first:stop], bounds, like)
                    _turn_rows(rows, wide[: stop - first], turning, slot + first)


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
