# numba's decorators have no types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportCallIssue=false
"""What numba compiles to place packed codes in a context, some rows at a time, which stay in the nearest cache.

Needs numba, which not every installation has. Whole numbers are told to stay narrow, for numba widens them.
"""

from collections.abc import Callable

import numpy as np
from numba import boolean, float32, int64, njit, types, uint16, uint32, void
from numba.np.unsafe.ndarray import to_fixed_tuple  # pyright: ignore[reportUnknownVariableType]
from numpy.typing import NDArray

from blend.model.compiled import Word, bytes_at, cast, compiled, compiled_apart
from blend.model.lanes import (
    LANES,
    Lanes,
    all_written,
    codes_at,
    even_codes,
    even_numbers,
    filled,
    minus,
    multiply_add,
    numbers_at,
    odd_codes,
    odd_numbers,
    plus,
    put,
    put_found,
    put_in_turn,
    rounded,
    times,
    transpose_at,
    within,
)
from store.record import Codes, FrameLayout, Scales, largest

Floats = NDArray[np.float32]
Words = NDArray[np.uint16 | np.uint32]
Numbers = NDArray[np.int64]
Parts = tuple[Numbers, Numbers]  # address and length of bytes, tokens, slot of the first, which of these; layouts
Cut = tuple[int, int, np.float32]  # tokens that are placed, the slot of the first, the largest number of the dtype
Turning = tuple[bool, int, Floats, Floats]  # whether halves are paired, the first number that turns, cosines and sines
Form = tuple[int, bool, bool]  # bits of a code in a byte, whether codes lie as rows, whether they are of a trellis
Packed = tuple[Codes, int, np.float32, np.float32]  # rows (P, D), bits of a code, the middle between codes, the largest
Bits = tuple[np.uint32, np.uint32, np.float32]  # where a byte has a code: the shift, the mask; the middle between codes
Channels = tuple[Floats, Floats]  # steps and middles of a head's keys
Span = tuple[int, int, int, int]  # head, slot of the first token, that token, the token behind the last

_LOW, _HIGH, _SEVEN, _BIT = np.uint8(15), np.uint8(4), np.uint8(7), np.uint8(1)
_LARGEST, _SIGNLESS = largest("float32"), np.uint32(0x7FFFFFFF)
_TABLE = 16  # codes of four bits, and the levels of a trellis
_ROWS = 16  # that are made at a time
_LEAST_STEP, _MOST = 2.0**-40, 2.0**100


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
    flat, whole = rows.reshape(packed * dim), dim // LANES * LANES if packed >= LANES else 0
    for d in range(0, whole, LANES):
        for byte in range(0, packed, LANES):
            first = min(byte, packed - LANES)
            transpose_at(flat, first * dim + d, dim, codes, d * packed + first, packed)
    for byte in range(packed):
        row = rows[byte]
        for d in range(whole, dim):
            row[d] = codes[d * packed + byte]


@compiled
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
def _unpacked(rows: Codes, data: Codes, codes: Codes, form: Form) -> Codes:
    """Codes of one head, which lie channel by channel or, turned, as rows: those rows (P, D), or levels (T, D)."""
    width, is_turned, has_trellis = form
    if is_turned:
        rows = data.reshape(rows.shape)
    else:
        _transpose(rows, data)
    if not has_trellis:
        return rows
    _split(codes, rows, width)
    _to_levels(codes)
    return codes


@compiled_apart
def _tell_steps(steps: Floats, low: Codes, high: Codes, sizes: Scales) -> None:
    """Steps whose places lie in two planes."""
    last = np.uint32(len(sizes) - 1)
    for number in range(len(steps)):
        place = np.uint32(np.uint32(low[number]) | np.uint32(np.uint32(high[number]) << np.uint32(8)))
        steps[number] = sizes[min(place, last)]


@compiled_apart
def _tell_middles(middles: Floats, steps: Floats, planes: Codes, unit: float) -> None:
    """A head's middles, of four planes (4, D)."""
    first, second, third, fourth = planes[0], planes[1], planes[2], planes[3]
    for d in range(len(steps)):
        lower = np.uint32(np.uint32(first[d]) | np.uint32(np.uint32(second[d]) << np.uint32(8)))
        upper = np.uint32(np.uint32(third[d]) | np.uint32(np.uint32(fourth[d]) << np.uint32(8)))
        told = np.uint32(lower | np.uint32(upper << np.uint32(16)))
        sign = np.uint32(np.uint32(0) - np.uint32(told & np.uint32(1)))
        middle = float(np.int32(np.uint32(told >> np.uint32(1)) ^ sign)) * float(steps[d]) * unit
        middles[d] = np.float32(min(max(middle, -_LARGEST), _LARGEST))


@compiled_apart
def _is_usual(steps: Floats, middles: Floats, half: np.float32) -> bool:
    """Whether no number of these steps and middles is so large or, but zero, so small that float32 lacks room for what
    `rounded`, turning or a CPU's own rounding makes of it. Bits of numbers above zero lie in their order.
    """
    step = middle = np.uint32(0)
    least = _SIGNLESS
    for number in range(len(steps)):
        bits = np.float32(steps[number]).view(np.uint32)
        step, least = max(step, bits), min(least, bits)
    for d in range(len(middles)):
        middle = max(middle, np.uint32(np.float32(middles[d]).view(np.uint32) & _SIGNLESS))
    reach = float(half) * float(np.uint32(step).view(np.float32)) + float(np.uint32(middle).view(np.float32))
    return reach < _MOST and float(np.uint32(least).view(np.float32)) >= _LEAST_STEP


def _channels_of(numbers: Callable[..., Lanes]) -> Callable[..., tuple[Lanes, Lanes]]:
    @compiled_apart
    def found(channels: Channels, start: int) -> tuple[Lanes, Lanes]:
        return numbers(channels[0], start), numbers(channels[1], start)

    return found


def _keys_of(codes: Callable[..., Lanes]) -> Callable[..., Lanes]:
    @compiled_apart
    def keys(row: Codes, start: int, bits: Bits, channels: tuple[Lanes, Lanes], like: Words) -> Lanes:
        code = minus(codes(row, start, bits[0], bits[1]), filled(bits[2]))
        return rounded(multiply_add(code, channels[0], channels[1]), like)

    return keys


_channels_at, _keys_at = _channels_of(numbers_at), _keys_of(codes_at)
_even_channels, _even_keys = _channels_of(even_numbers), _keys_of(even_codes)
_odd_channels, _odd_keys = _channels_of(odd_numbers), _keys_of(odd_codes)


@compiled_apart
def _stream_halves(out: Words, packed: Packed, channels: Channels, turning: Turning, span: Span) -> None:
    """Writes keys whose halves turn with each other, some channels of all tokens first: theirs is read once then."""
    (rows, width, half, _), (head, slot, _, count), (_, _, cosines, sines) = packed, span, turning
    pairs, mask = cosines.shape[1], np.uint32(2**width - 1)
    for a in range(0, pairs, 2 * LANES):
        b, c, d = a + LANES, pairs + a, pairs + a + LANES
        of_a, of_b = _channels_at(channels, a), _channels_at(channels, b)
        of_c, of_d = _channels_at(channels, c), _channels_at(channels, d)
        for token in range(count):
            row, codes = out[head, slot + token], rows[token * width >> 3]
            bits, cos, sin = (np.uint32(token * width & 7), mask, half), cosines[slot + token], sines[slot + token]
            in_a, in_c = _keys_at(codes, a, bits, of_a, row), _keys_at(codes, c, bits, of_c, row)
            in_b, in_d = _keys_at(codes, b, bits, of_b, row), _keys_at(codes, d, bits, of_d, row)
            put(row, a, minus(times(in_a, numbers_at(cos, a)), times(in_c, numbers_at(sin, a))))
            put(row, b, minus(times(in_b, numbers_at(cos, b)), times(in_d, numbers_at(sin, b))))
            put(row, c, plus(times(in_c, numbers_at(cos, a)), times(in_a, numbers_at(sin, a))))
            put(row, d, plus(times(in_d, numbers_at(cos, b)), times(in_b, numbers_at(sin, b))))


@compiled_apart
def _stream_keys(out: Words, packed: Packed, channels: Channels, turning: Turning, span: Span) -> None:
    """Writes keys that are usual, 16 at a time."""
    (rows, width, half, _), (head, slot, _, count) = packed, span
    is_halved, first, cosines, sines = turning
    pairs, dim = cosines.shape[1], out.shape[2]
    stop, mask = first + 2 * pairs, np.uint32(2**width - 1)
    if is_halved and 2 * pairs == dim and pairs % (2 * LANES) == 0:
        _stream_halves(out, packed, channels, turning, span)
        return
    for token in range(count):
        row, codes = out[head, slot + token], rows[token * width >> 3]
        bits = np.uint32(token * width & 7), mask, half
        for d in range(0, first, LANES):
            put(row, d, _keys_at(codes, d, bits, _channels_at(channels, d), row))
        for pair in range(0, pairs, LANES):
            cos, sin = numbers_at(cosines[slot + token], pair), numbers_at(sines[slot + token], pair)
            if is_halved:
                at, other = first + pair, first + pairs + pair
                a = _keys_at(codes, at, bits, _channels_at(channels, at), row)
                b = _keys_at(codes, other, bits, _channels_at(channels, other), row)
                put(row, at, minus(times(a, cos), times(b, sin)))
                put(row, other, plus(times(b, cos), times(a, sin)))
            else:
                at = first + 2 * pair
                a = _even_keys(codes, at, bits, _even_channels(channels, at), row)
                b = _odd_keys(codes, at, bits, _odd_channels(channels, at), row)
                put_in_turn(row, at, minus(times(a, cos), times(b, sin)), plus(times(b, cos), times(a, sin)))
        for d in range(stop, dim, LANES):
            put(row, d, _keys_at(codes, d, bits, _channels_at(channels, d), row))


@compiled_apart
def _stream_values(out: Words, packed: Packed, scales: Floats, levels: Floats, span: Span) -> None:
    """Writes values that do not turn, 16 at a time. A code of up to four bits is one of 16 numbers of its token."""
    (rows, width, half, limit), (head, slot, _, count) = packed, span
    mask = np.uint32(2**width - 1)
    for token in range(count):
        row, codes, shift = out[head, slot + token], rows[token * width >> 3], np.uint32(token * width & 7)
        scale = filled(scales[token])
        table = within(times(numbers_at(levels, 0), scale), limit)
        for d in range(0, len(row), LANES):
            if len(levels) > _TABLE:
                put(row, d, within(times(minus(codes_at(codes, d, shift, mask), filled(half)), scale), limit))
            else:
                put_found(row, d, codes, shift, mask, table)


@compiled_apart
def _fill_keys(wide: Floats, packed: Packed, channels: Channels, span: Span, like: Word) -> None:
    """Keys in the dtype, as float32."""
    (rows, width, half, limit), (steps, middles), (_, _, first, stop) = packed, channels, span
    mask = np.uint32(2**width - 1)
    for token in range(first, stop):
        row, shift, x = rows[token * width >> 3], np.uint32(token * width & 7), wide[token - first]
        for d in range(len(row)):
            code = np.int32(np.uint32(np.uint32(row[d]) >> shift) & mask)
            y = np.float32(np.float32(np.float32(code) - half) * steps[d] + middles[d])
            x[d] = cast(min(max(y, -limit), limit), half, like)


@compiled_apart
def _fill_values(wide: Floats, packed: Packed, scales: Floats, span: Span, like: Word) -> None:
    (rows, width, half, limit), (_, _, first, stop) = packed, span
    mask = np.uint32(2**width - 1)
    for token in range(first, stop):
        row, shift, x = rows[token * width >> 3], np.uint32(token * width & 7), wide[token - first]
        for d in range(len(row)):
            code = np.int32(np.uint32(np.uint32(row[d]) >> shift) & mask)
            y = np.float32(np.float32(np.float32(code) - half) * scales[token])
            x[d] = cast(min(max(y, -limit), limit), half, like)


@compiled_apart
def _write(out: Words, wide: Floats, turning: Turning, span: Span) -> None:
    """Writes rows, turned as those from the slot on are."""
    (head, slot, begin, end), (is_halved, first, cosines, sines) = span, turning
    like, pairs = out.dtype.type(0), cosines.shape[1]
    middle, stop = first + pairs, first + 2 * pairs
    for token in range(end - begin):
        x, row = wide[token], out[head, slot + token]
        of, to = x[stop:], row[stop:]
        for d in range(first):
            row[d] = cast(x[d], like, like)
        for d in range(len(of)):
            to[d] = cast(of[d], like, like)
        if not pairs:
            continue
        cos, sin, both, turned = cosines[slot + token], sines[slot + token], x[first:stop], row[first:stop]
        if is_halved:
            low, high, a, b = row[first:middle], row[middle:stop], x[first:middle], x[middle:stop]
            for d in range(pairs):
                low[d] = cast(np.float32(a[d] * cos[d] - b[d] * sin[d]), like, like)
            for d in range(pairs):
                high[d] = cast(np.float32(b[d] * cos[d] + a[d] * sin[d]), like, like)
            continue
        for d in range(pairs):
            even, odd = both[2 * d], both[2 * d + 1]
            turned[2 * d] = cast(np.float32(even * cos[d] - odd * sin[d]), like, like)
            turned[2 * d + 1] = cast(np.float32(odd * cos[d] + even * sin[d]), like, like)


@compiled
def _fits(out: Words, turning: Turning) -> bool:
    """Whether rows and what turns of them are whole lanes, and so aligned."""
    numbers = out.shape[2] | turning[1] | turning[2].shape[1]
    return numbers % LANES == 0 and out.ctypes.data % (LANES * out.itemsize) == 0


@compiled
def _place_keys(  # noqa: PLR0917
    data: Codes, sizes: Scales, layout: FrameLayout, cut: Cut, turning: Turning, out: Words
) -> None:
    heads, _, dim = out.shape
    like = out.dtype.type(0)
    planes = data[: layout.middles].reshape(2, layout.middles // 2)
    more = data[layout.middles : layout.key_codes].reshape(4, layout.middles // 2)
    unit, half = 2.0 ** (layout.key_bits - 4), np.float32((2**layout.key_bits - 1) / 2)
    codes, wide = np.empty((layout.step, dim), np.uint8), np.empty((_ROWS, dim), np.float32)
    steps, middles = np.empty(dim, np.float32), np.empty(dim, np.float32)
    at, number, fits = layout.key_codes, 0, _fits(out, turning)
    form = layout.key_width, layout.is_turned != 0, layout.key_trellis != 0
    width = 8 if form[2] else form[0]  # levels have a byte each
    for start in range(0, min(layout.tokens, cut[0]), layout.step):
        count = (min(layout.step, layout.tokens - start) * layout.key_width + 7) // 8
        kept, room = min(layout.step, cut[0] - start), np.empty((count, dim), np.uint8)
        for head in range(heads):
            channels = slice(number, number + dim)
            _tell_steps(steps, planes[0, channels], planes[1, channels], sizes)
            _tell_middles(middles, steps, more[:, channels], unit)
            rows = _unpacked(room, data[at : at + count * dim], codes[:kept], form)
            number, at, packed = number + dim, at + count * dim, (rows, width, half, cut[2])
            if fits and _is_usual(steps, middles, half):
                _stream_keys(out, packed, (steps, middles), turning, (head, cut[1] + start, 0, kept))
                continue
            for first in range(0, kept, _ROWS):
                span = head, cut[1] + start + first, first, min(first + _ROWS, kept)
                _fill_keys(wide, packed, (steps, middles), span, like)
                _write(out, wide, turning, span)


@compiled
def _place_values(  # noqa: PLR0917
    data: Codes, sizes: Scales, layout: FrameLayout, cut: Cut, turning: Turning, out: Words
) -> None:
    heads, _, dim = out.shape
    like = out.dtype.type(0)
    planes = data[layout.value_steps : layout.value_codes].reshape(2, heads * layout.tokens)
    half = np.float32((2**layout.value_bits - 1) / 2)
    codes, wide = np.empty((layout.step, dim), np.uint8), np.empty((_ROWS, dim), np.float32)
    levels = np.arange(max(_TABLE, 2**layout.value_width)).astype(np.float32) - half
    scales = np.empty(layout.step, np.float32)
    at, fits = layout.value_codes, turning[2].shape[1] == 0 and _fits(out, turning)
    form = layout.value_width, layout.is_turned != 0, layout.value_trellis != 0
    width = 8 if form[2] else form[0]  # levels have a byte each
    for start in range(0, min(layout.tokens, cut[0]), layout.step):
        count = (min(layout.step, layout.tokens - start) * layout.value_width + 7) // 8
        kept, room = min(layout.step, cut[0] - start), np.empty((count, dim), np.uint8)
        for head in range(heads):
            tokens = slice(head * layout.tokens + start, head * layout.tokens + start + kept)
            _tell_steps(scales[:kept], planes[0, tokens], planes[1, tokens], sizes)
            rows = _unpacked(room, data[at : at + count * dim], codes[:kept], form)
            at, packed = at + count * dim, (rows, width, half, cut[2])
            if fits and _is_usual(scales[:kept], scales[:0], half):
                _stream_values(out, packed, scales, levels, (head, cut[1] + start, 0, kept))
                continue
            for first in range(0, kept, _ROWS):
                span = head, cut[1] + start + first, first, min(first + _ROWS, kept)
                _fill_values(wide, packed, scales, span, like)
                _write(out, wide, turning, span)


def _place(  # numba knows no keywords
    parts: Parts, sizes: Scales, limit: np.float32, turning: tuple[Turning, Turning], out: tuple[Words, Words]
) -> None:
    """Writes keys and values of a layer's parts to their slots (H, C, D)."""
    for part in parts[0]:
        data, laid = bytes_at(part[0], part[1]), parts[1][part[4]]
        cut = part[2], part[3], limit
        layout = FrameLayout(*to_fixed_tuple(laid, 13))
        _place_keys(data, sizes, layout, cut, turning[0], out[0])
        _place_values(data, sizes, layout, cut, turning[1], out[1])
    all_written()


def place_kernel(*, is_short: bool) -> Callable[..., None]:
    """`_place` for contexts in bfloat16 or float32. What it reads may be read only, as a blob's bytes are."""

    def read(kind: types.Type, ndim: int) -> types.Type:
        return types.Array(kind, ndim, "C", readonly=True)

    turning = types.Tuple((boolean, int64, read(float32, 2), read(float32, 2)))
    out = types.Array(uint16 if is_short else uint32, 3, "C")
    parts = types.UniTuple(read(int64, 2), 2)
    signature = void(parts, read(float32, 1), float32, types.UniTuple(turning, 2), types.UniTuple(out, 2))
    try:
        return njit(signature, nogil=True, cache=True)(_place)
    except RuntimeError:  # there is no folder to keep it in: each process compiles it
        return njit(signature, nogil=True)(_place)
