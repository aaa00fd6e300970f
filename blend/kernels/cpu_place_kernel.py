# numba's decorators have no types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportCallIssue=false
"""The numba kernel that dequantizes stored keys and values, rotates them and writes them to a context, on a CPU.

Needs numba, which not every installation has. Integers are cast back to narrow types, as numba widens them.
"""

from collections.abc import Callable

import numpy as np
from numba import boolean, float32, int64, njit, types, uint16, uint32, void
from numba.np.unsafe.ndarray import to_fixed_tuple  # pyright: ignore[reportUnknownVariableType]
from numpy.typing import NDArray

from blend.kernels.compiled import Word, bytes_at, cast, compiled_apart, words_at
from blend.kernels.unpack_head import ROWS, Floats, UnpackScratch, read_middles, read_steps, unpack_head, unpack_scratch
from store.record import Codes, Scales
from store.rows import LAYOUT, LAYOUT_AT, START, STEP, FrameLayout

Words = NDArray[np.uint16 | np.uint32]
Numbers = NDArray[np.int64]
Parts = tuple[Numbers, Numbers]  # rows (L, N, R) of `StoredRows`; slots of each, the one behind it
Shape = tuple[int, int, int]
Buffers = tuple[Numbers, Shape, Shape, Word]  # where keys and values of each layer are, (L, 2); their shapes; a word
Cut = tuple[int, int, np.float32]  # tokens that are placed, the slot of the first, the largest number of the dtype
Turning = tuple[bool, int, Floats, Floats]  # whether halves are paired, the first number that turns, cosines and sines
Packed = tuple[Codes, int, np.float32, np.float32]  # rows (P, D), bits of a code, the middle between codes, the largest
Channels = tuple[Floats, Floats]  # steps and middles of a head's keys
Span = tuple[int, int, int, int]  # head, slot of the first token, that token, the token behind the last


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
    """Writes rows from the slot on, rotated to their positions."""
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


@compiled_apart
def _place_keys(  # noqa: PLR0917
    data: Codes, sizes: Scales, layout: FrameLayout, cut: Cut, turning: Turning, out: Words, scratch: UnpackScratch
) -> None:
    heads, _, dim = out.shape
    like = out.dtype.type(0)
    planes = data[: layout.middles].reshape(2, layout.middles // 2)
    more = data[layout.middles : layout.key_codes].reshape(4, layout.middles // 2)
    unit, half = 2.0 ** (layout.key_bits - 4), np.float32((2**layout.key_bits - 1) / 2)
    wide, steps, middles = scratch.wide[: ROWS * dim].reshape(ROWS, dim), scratch.steps[:dim], scratch.middles[:dim]
    at, number = layout.key_codes, 0
    form = layout.key_width, layout.is_turned != 0, layout.key_trellis != 0
    width = 8 if form[2] else form[0]  # levels have a byte each
    for start in range(0, cut[0], layout.step):
        nbytes = (min(layout.step, layout.tokens - start) * layout.key_width + 7) // 8 * dim
        kept = min(layout.step, cut[0] - start)
        for head in range(heads):
            channels = slice(number, number + dim)
            read_steps(steps, planes[0, channels], planes[1, channels], sizes)
            read_middles(middles, steps, more[:, channels], unit)
            rows = data[at : at + nbytes].reshape(nbytes // dim, dim)
            if form[2] or not form[1]:
                lines = kept if form[2] else nbytes // dim
                rows = scratch.rows[: lines * dim].reshape(lines, dim)
                unpack_head(rows, data[at : at + nbytes], form, scratch)
            number, at, packed = number + dim, at + nbytes, (rows, width, half, cut[2])
            for first in range(0, kept, ROWS):
                span = head, cut[1] + start + first, first, min(first + ROWS, kept)
                _fill_keys(wide, packed, (steps, middles), span, like)
                _write(out, wide, turning, span)


@compiled_apart
def _place_values(  # noqa: PLR0917
    data: Codes, sizes: Scales, layout: FrameLayout, cut: Cut, turning: Turning, out: Words, scratch: UnpackScratch
) -> None:
    heads, _, dim = out.shape
    like = out.dtype.type(0)
    planes = data[layout.value_steps : layout.value_codes].reshape(2, heads * layout.tokens)
    half = np.float32((2**layout.value_bits - 1) / 2)
    wide = scratch.wide[: ROWS * dim].reshape(ROWS, dim)
    at = layout.value_codes
    form = layout.value_width, layout.is_turned != 0, layout.value_trellis != 0
    width = 8 if form[2] else form[0]  # levels have a byte each
    for start in range(0, cut[0], layout.step):
        nbytes = (min(layout.step, layout.tokens - start) * layout.value_width + 7) // 8 * dim
        kept = min(layout.step, cut[0] - start)
        steps = scratch.steps[:kept]
        for head in range(heads):
            tokens = slice(head * layout.tokens + start, head * layout.tokens + start + kept)
            read_steps(steps, planes[0, tokens], planes[1, tokens], sizes)
            rows = data[at : at + nbytes].reshape(nbytes // dim, dim)
            if form[2] or not form[1]:
                lines = kept if form[2] else nbytes // dim
                rows = scratch.rows[: lines * dim].reshape(lines, dim)
                unpack_head(rows, data[at : at + nbytes], form, scratch)
            at, packed = at + nbytes, (rows, width, half, cut[2])
            for first in range(0, kept, ROWS):
                span = head, cut[1] + start + first, first, min(first + ROWS, kept)
                _fill_values(wide, packed, steps, span, like)
                _write(out, wide, turning, span)


def _place(  # numba knows no keywords
    parts: Parts, sizes: Scales, limit: np.float32, turning: tuple[Turning, Turning], out: Buffers
) -> None:
    """Writes keys and values of some layers' parts to their slots in (H, C, D)."""
    (rows, slots), (places, key_shape, value_shape, like) = parts, out
    longest = 0
    for row in rows.reshape(-1, rows.shape[2]):
        longest = max(longest, row[STEP])
    scratch = unpack_scratch(longest, max(key_shape[2], value_shape[2]))
    for layer in range(len(rows)):
        keys, values = words_at(places[layer, 0], key_shape, like), words_at(places[layer, 1], value_shape, like)
        record = -1
        for row in rows[layer]:
            start, layout = row[START], FrameLayout(*to_fixed_tuple(row[LAYOUT_AT:], LAYOUT))
            record += start == 0
            slot = slots[record, 0] + start
            cut = min(layout.tokens, slots[record, 1] - slot), slot, limit
            if cut[0] > 0:
                data = bytes_at(row[0], row[1])
                _place_keys(data, sizes, layout, cut, turning[0], keys, scratch)
                _place_values(data, sizes, layout, cut, turning[1], values, scratch)


def cpu_place_kernel(*, is_short: bool) -> Callable[..., None]:
    """`_place` for contexts in bfloat16 or float32. Its input may be read-only memory, as a blob's bytes are."""

    def read(kind: types.Type, ndim: int) -> types.Type:
        return types.Array(kind, ndim, "C", readonly=True)

    turning = types.Tuple((boolean, int64, read(float32, 2), read(float32, 2)))
    shape = types.UniTuple(int64, 3)
    out = types.Tuple((read(int64, 2), shape, shape, uint16 if is_short else uint32))
    parts = types.Tuple((read(int64, 3), read(int64, 2)))
    signature = void(parts, read(float32, 1), float32, types.UniTuple(turning, 2), out)
    try:
        return njit(signature, nogil=True, cache=True)(_place)
    except RuntimeError:  # no folder for the cache: each process compiles it
        return njit(signature, nogil=True)(_place)
