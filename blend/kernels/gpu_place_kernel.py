# Triton's language has no types:
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportUntypedFunctionDecorator=false
# ruff: noqa: ANN001, ANN202, PLR0917
"""Triton kernels: one dequantizes, rotates and writes stored keys and values to a context, one copies host memory.

All of its arguments lie in a table of int64: where spans and pieces begin, for each layer a side for keys and one for
values, a row for each part of a layer (`StoredRows`), for each span the place of its part's row and its number in
the part, and for each piece to copy its address, its words, and its target. So bits, layouts, rotations, strides and
shapes need no kernels of their own. No code waits for the one before: what a trellis' codes change in those behind
them are sums along the tokens.
"""

import torch
import triton
import triton.language as tl

from blend.kernels.span_side import KEPT, ROW_AT, SIDES, SLOT, SpanSide
from store.rows import LAYOUT_AT, FrameLayout

DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
_COLUMNS = {name: LAYOUT_AT + number for number, name in enumerate(FrameLayout._fields)}

_SIDE = tl.constexpr(len(SpanSide._fields))
_NUMBERS, _HEADS, _DIM, _BY_HEAD, _BY_SLOT, _TURNING_AT, _PAIRS, _APART, _HOP, _COS, _SIN, _SIGN = (
    tl.constexpr(number) for number in range(len(SpanSide._fields))
)
_DATA, _SLOT, _KEPT, _SIDES = (tl.constexpr(number) for number in (ROW_AT, SLOT, KEPT, SIDES))
_TOKENS, _STEP, _IS_TURNED = (tl.constexpr(_COLUMNS[name]) for name in ("tokens", "step", "is_turned"))
_BITS, _WIDTH, _CODES, _TRELLIS = (  # of keys; those of values follow at a fixed distance
    tl.constexpr(_COLUMNS[f"key_{name}"]) for name in ("bits", "width", "codes", "trellis")
)
_CODING, _PLACE, _KIND = (
    tl.constexpr(_COLUMNS[f"value_{name}"] - _COLUMNS[f"key_{name}"]) for name in ("bits", "codes", "trellis")
)
_MIDDLES, _VALUE_STEPS = tl.constexpr(_COLUMNS["middles"]), tl.constexpr(_COLUMNS["value_steps"])
_MOST = tl.constexpr(3.4028234663852886e38)
_FIELD = tl.constexpr(10)  # bits for the sum of each third token's codes, of which the lowest counts
_LOWEST = tl.constexpr(1 | 1 << 10 | 1 << 20)


@triton.jit
def _number(row, column):
    return tl.load(row + column).to(tl.int32)


@triton.jit
def _steps(low, apart, sizes, inside):
    """Quantization steps, whose indices in the table of sizes lie in two planes."""
    place = tl.load(low, mask=inside, other=0).to(tl.int32)
    place |= tl.load(low + apart, mask=inside, other=0).to(tl.int32) << 8
    return tl.load(sizes + place, mask=inside, other=0.0)


@triton.jit
def _channels(first, planes, sizes, unit, inside):
    """Steps and middles of keys, whose planes follow each other; zeros for channels that are not inside."""
    apart = planes // 2
    steps = _steps(first, apart, sizes, inside)
    told = tl.load(first + planes, mask=inside, other=0).to(tl.int32)
    told |= tl.load(first + planes + apart, mask=inside, other=0).to(tl.int32) << 8
    told |= tl.load(first + planes + 2 * apart, mask=inside, other=0).to(tl.int32) << 16
    told |= tl.load(first + planes + 3 * apart, mask=inside, other=0).to(tl.int32) << 24
    signed = (told >> 1 & 0x7FFFFFFF) ^ -(told & 1)
    exact = signed.to(tl.float64) * steps.to(tl.float64) * unit
    return steps, tl.minimum(tl.maximum(exact, -_MOST), _MOST).to(tl.float32)


@triton.jit
def _followed(codes, place, turned, has_trellis):
    """Levels of a trellis' codes, and what changes those behind: the sum of each third token's lowest bits so far.

    The last bit of a state is the sum of all lowest bits before it, except those of each third token before.
    """
    if has_trellis != 0:
        own = place[None, :] % 3 * _FIELD
        lowest = (codes & 1) << own
        before = tl.cumsum(lowest, axis=1) - lowest + turned[:, None]
        last = (before ^ before >> _FIELD ^ before >> 2 * _FIELD ^ before >> own) & 1
        codes = ((codes ^ last * 7) & 7) * 2 + last
        turned = turned + tl.sum(lowest, axis=1) & _LOWEST
    return codes, turned


@triton.jit
def _codes(at, shift, mask, inside):
    return tl.load(at, mask=inside, other=0).to(tl.int32) >> shift[None, :] & mask


@triton.jit
def _rounded(codes, half, steps, middles, DTYPE: tl.constexpr, LIMIT: tl.constexpr):
    """The numbers that codes stand for: rounded to the dtype, held in float32."""
    wide = (codes.to(tl.float32) - half) * steps + middles[:, None]
    return tl.minimum(tl.maximum(wide, -LIMIT), LIMIT).to(DTYPE).to(tl.float32)


@triton.jit
def _pairs(side, CHANNELS: tl.constexpr):
    """Two channels for each lane, and whether they exist; channels that are rotated in pairs come first."""
    lane = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    at, pairs = _number(side, _TURNING_AT), _number(side, _PAIRS)
    rest = _number(side, _DIM) - 2 * pairs
    left = lane - pairs
    right = left + (rest + 1) // 2
    turns = lane < pairs
    first = tl.where(turns, at + lane * _number(side, _HOP), left + tl.where(left >= at, 2 * pairs, 0))
    second = tl.where(turns, first + _number(side, _APART), right + tl.where(right >= at, 2 * pairs, 0))
    has_first = turns | (left < (rest + 1) // 2)
    return lane, turns, first, second, has_first, turns | (has_first & (right < rest))


@triton.jit
def _codes_of(part, number, side, head, is_value):
    """Where the codes of one span and head begin, and the strides in bytes between channels and along a channel.

    The last two are the bits of a code, and the bits that it takes in a byte.
    """
    bits, width = _number(part, _BITS + _CODING * is_value), _number(part, _WIDTH + _CODING * is_value)
    step, dim = _number(part, _STEP), _number(side, _DIM)
    packed = (tl.minimum(step, _number(part, _TOKENS) - number * step) * width + 7) // 8
    before = number * _number(side, _HEADS) * dim * ((step * width + 7) // 8) + head * dim * packed
    is_turned = _number(part, _IS_TURNED) != 0
    at = _number(part, _CODES + _PLACE * is_value) + before
    return at, tl.where(is_turned, 1, packed), tl.where(is_turned, dim, 1), bits, width


@triton.jit
def _turned(x, y, side, at, inside):
    """Pairs of numbers, rotated by the angles at these places where they are inside.

    Compiled so that each product is rounded, as in `rotation`, which gives the same bits.
    """
    cos = tl.load(tl.load(side + _COS).to(tl.pointer_type(tl.float32)) + at, mask=inside, other=1.0)
    sin = tl.load(tl.load(side + _SIN).to(tl.pointer_type(tl.float32)) + at, mask=inside, other=0.0)
    sin *= tl.load(side + _SIGN).to(tl.float32)
    return tl.where(inside, x * cos - y * sin, x), tl.where(inside, y * cos + x * sin, y)


@triton.jit
def gpu_place_kernel(
    table, sizes,
    DTYPE: tl.constexpr, LIMIT: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr, HAS_TRELLIS: tl.constexpr,
) -> None:  # fmt: skip
    """Writes one program's share: one span, one head of keys or values, and some of its channels."""
    span = table + tl.load(table) + 2 * tl.program_id(0)
    part, number = table + tl.load(span), _number(span, 1)
    sides = table + tl.load(part + _SIDES)
    key_heads = _number(sides, _HEADS)
    is_value = (tl.program_id(1) >= key_heads).to(tl.int32)
    side, head, is_key = sides + is_value * _SIDE, tl.program_id(1) - is_value * key_heads, is_value == 0
    lanes_of_keys = tl.full((CHANNELS,), 0, tl.int32) == is_value  # an array, as interpreters have masks of arrays
    tokens_of_values = tl.full((TOKENS,), 1, tl.int32) == is_value
    heads, pairs, all_tokens = _number(side, _HEADS), _number(side, _PAIRS), _number(part, _TOKENS)
    first, planes = number * _number(part, _STEP), _number(part, _MIDDLES)
    kept = tl.minimum(_number(part, _STEP), _number(part, _KEPT) - first)
    lane, turns, a, b, has_a, has_b = _pairs(side, CHANNELS)
    at, by_channel, by_byte, bits, width = _codes_of(part, number, side, head, is_value)

    data = table.to(tl.pointer_type(tl.uint8), bitcast=True) + tl.load(part + _DATA)
    half, unit = ((1 << bits) - 1).to(tl.float32) * 0.5, (1 << bits).to(tl.float64) * 0.0625
    of_head = data + (number * heads + head) * _number(side, _DIM)
    key_a, middle_a = _channels(of_head + a, planes, sizes, unit, has_a & lanes_of_keys)
    key_b, middle_b = _channels(of_head + b, planes, sizes, unit, has_b & lanes_of_keys)
    nothing = (is_value << 31).to(tl.float32, bitcast=True)  # -0.0 for values, which leaves every number as it is
    middle_a, middle_b = tl.where(is_key, middle_a, nothing), tl.where(is_key, middle_b, nothing)
    value_at = data + _number(part, _VALUE_STEPS) + head * all_tokens + first
    slot, by_slot, path_a, path_b = tl.load(part + _SLOT) + first, tl.load(side + _BY_SLOT), lane * 0, lane * 0
    out = tl.load(side + _NUMBERS).to(tl.pointer_type(DTYPE)) + head * tl.load(side + _BY_HEAD) + slot * by_slot
    begin = 0
    while begin < kept:  # the interpreter of Triton 3.6 has no range whose end was loaded from the table
        token = begin + tl.arange(0, TOKENS)
        there, byte, shift = token < kept, at + (token * width >> 3)[None, :] * by_byte, token * width & 7
        in_a, in_b = has_a[:, None] & there[None, :], has_b[:, None] & there[None, :]
        x = _codes(data + ((a * by_channel)[:, None] + byte), shift, (1 << width) - 1, in_a)
        y = _codes(data + ((b * by_channel)[:, None] + byte), shift, (1 << width) - 1, in_b)
        if HAS_TRELLIS:
            x, path_a = _followed(x, token, path_a, _number(part, _TRELLIS + _KIND * is_value))
            y, path_b = _followed(y, token, path_b, _number(part, _TRELLIS + _KIND * is_value))
        value = _steps(value_at + token, heads * all_tokens, sizes, there & tokens_of_values)[None, :]
        x = _rounded(x, half, tl.where(is_key, key_a[:, None], value), middle_a, DTYPE, LIMIT)
        y = _rounded(y, half, tl.where(is_key, key_b[:, None], value), middle_b, DTYPE, LIMIT)
        if pairs > 0:
            angle = slot * pairs + (lane[:, None] + token[None, :] * pairs)
            x, y = _turned(x, y, side, angle, turns[:, None] & there[None, :])
        to = token[None, :] * by_slot.to(tl.int32)
        tl.store(out + (a[:, None] + to), x.to(DTYPE), mask=in_a)
        tl.store(out + (b[:, None] + to), y.to(DTYPE), mask=in_b)
        begin += TOKENS


@triton.jit
def bring(table, out, WORDS: tl.constexpr) -> None:
    """Copies a piece of the host's memory to the device, with as many programs as the second axis has."""
    piece = table + tl.load(table + 1) + 3 * tl.program_id(0)
    source, words = tl.load(piece).to(tl.pointer_type(tl.int64)), tl.load(piece + 1)
    to = out + tl.load(piece + 2)
    begin = tl.program_id(1).to(tl.int64) * WORDS
    while begin < words:
        place = begin + tl.arange(0, WORDS)
        tl.store(to + place, tl.load(source + place, mask=place < words, other=0), mask=place < words)
        begin += tl.num_programs(1) * WORDS
