"""Where in memory stored keys and values lie, plain or quantized, by rows of numbers, and how numpy reads them.

What a layer has of one frame, a part, is one row, whose form says what reads it (`READERS`). Letters: `L` layers, `N`
parts, `S` spans of tokens that share the keys' steps, `H` kv heads, `T` tokens, `D` head dim, `P` packed bytes of a
channel's codes. A number in codes is `(code - (2**bits - 1) / 2) * step + middle`, computed in float32 and rounded once
to the dtype. The product is exact, as every step is exact in bfloat16, so that a fused multiplication makes the same
bits. Knows no medium and no codec.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.record import STORAGE, Array, Codes, Dtype, LayerKV, Scales, Shape, clip, largest, round_into

Rows = NDArray[np.int64]  # (L, N, ROW)
Unsigned = NDArray[np.uint16 | np.uint32]

ADDRESS, NBYTES, START, IS_PINNED, LAYOUT_AT = range(5)  # in a row, whose layout is behind


PLAIN, IN_CODES = range(2)  # forms of a part


class FrameLayout(NamedTuple):
    """Where in a part's bytes what lies that `store.codec.frame` tells of; the keys' steps come first.

    `step` tokens share the keys' steps, and what is left at the end. `is_turned`: codes lie as (H, P, D). Codes of a
    trellis tell levels by those before them, from each span's first token on. Plain numbers are of `width` bits each:
    in planes of bytes, or, where they are turned, as (H, T, D). Another form may use these fields as it likes.
    """

    form: int
    tokens: int
    step: int
    key_bits: int = 0
    key_width: int = 0  # bits that a code takes in a byte
    value_bits: int = 0
    value_width: int = 0
    is_turned: int = 0  # as all of these are
    middles: int = 0
    key_codes: int = 0
    value_steps: int = 0
    value_codes: int = 0
    key_trellis: int = 0  # whether the codes are of one
    value_trellis: int = 0


LAYOUT = len(FrameLayout._fields)
ROW = LAYOUT_AT + LAYOUT  # numbers of a part's
FORM, TOKENS, STEP = (LAYOUT_AT + FrameLayout._fields.index(name) for name in ("form", "tokens", "step"))


class StoredRows(NamedTuple):
    """Parts of some layers of several records, in memory that lives as long as this.

    `rows` (L, N, R) are those of the records one behind the other, and tell of each part the address and length of its
    data, its first token, whether a GPU reads the data where it lies, and the layout. A layer that has fewer parts, or
    none as it has no cache, has rows of zeros but for the `START`, which is that of no record. `sizes`: of steps, by
    place.
    """

    memory: object
    rows: Rows
    sizes: Scales


def no_rows(layers: int, parts: int) -> Rows:
    """Rows of parts without a token."""
    rows = np.zeros((layers, parts, ROW), np.int64)
    rows[:, :, START] = 1
    return rows


def records_of(rows: Rows) -> Rows:
    """The number of the record that each part (L, N) is of."""
    return (rows[:, :, START] == 0).cumsum(1) - 1


def plain_rows(layers: Sequence[LayerKV | None]) -> StoredRows:
    """Rows of plain arrays."""
    memory, rows = list[Codes](), no_rows(len(layers), 1)
    for layer, row in zip(layers, rows[:, 0], strict=True):
        if layer is not None:
            both = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (layer.keys, layer.values)]
            memory.append(np.concatenate(both))
            layout = plain_layout(layer.keys.shape[1], layer.keys.itemsize, key_bytes=both[0].nbytes)
            row[:] = address_of(memory[-1]), memory[-1].nbytes, 0, 0, *layout._replace(is_turned=1)
    return StoredRows(memory, rows, np.zeros(0, np.float32))


def joined(records: Sequence[StoredRows]) -> StoredRows:
    """Rows of the same layers of several records."""
    rows = np.concatenate([each.rows for each in records], axis=1)
    return StoredRows([each.memory for each in records], rows, records[0].sizes)


def plain_layout(tokens: int, itemsize: int, *, key_bytes: int) -> FrameLayout:
    """The layout of plain numbers, in planes."""
    width = 8 * itemsize
    return FrameLayout(
        PLAIN, tokens, tokens, key_width=width, value_width=width, value_steps=key_bytes, value_codes=key_bytes
    )


def address_of(data: Codes) -> int:
    """Where in memory these bytes begin."""
    return data.__array_interface__["data"][0]


class _Place:
    """Memory at an address, as numpy takes it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (nbytes,), "typestr": "|u1", "version": 3}


def data_of(row: NDArray[np.int64]) -> Codes:
    """A part's bytes where they lie, which must stay there while they are read."""
    return np.asarray(_Place(int(row[ADDRESS]), int(row[NBYTES])))


def code_blocks(layout: FrameLayout, shape: Shape) -> Iterator[tuple[int, int, tuple[int, int, int, int]]]:
    """Yields what lies alike of codes: of which token it is the first, where it begins, and its S, H, D and P; of the
    keys, then of the values.
    """
    key_heads, key_dim, value_heads, value_dim = shape
    for heads, dim, width, at in (
        (key_heads, key_dim, layout.key_width, layout.key_codes),
        (value_heads, value_dim, layout.value_width, layout.value_codes),
    ):
        full, place = layout.tokens // layout.step, at
        for first, count, length in ((0, full, layout.step), (full, 1, layout.tokens - full * layout.step)):
            if count and length:
                packed = -(-length * width // 8)
                yield first * layout.step, place, (count, heads, dim, packed)
                place += count * heads * dim * packed


def numbers_of(row: NDArray[np.int64], shape: Shape, *, sizes: Scales, dtype: Dtype) -> LayerKV:
    """Keys (H, T, D) and values of a part, which has these heads and dims: what every placement makes of it, bit for
    bit. Plain numbers that are turned are views of its memory.
    """
    return READERS[int(row[FORM])](row, shape, sizes=sizes, dtype=dtype)


def _plain(row: NDArray[np.int64], shape: Shape, *, sizes: Scales, dtype: Dtype) -> LayerKV:
    data, layout = data_of(row), FrameLayout(*row[LAYOUT_AT:].tolist())
    keys, values = (shape[0], layout.tokens, shape[1]), (shape[2], layout.tokens, shape[3])
    itemsize, turned = STORAGE[dtype].itemsize, layout.is_turned > 0
    assert layout.key_width == 8 * itemsize, f"numbers of {layout.key_width} bits for a model of {dtype}"
    return LayerKV(
        plain_numbers(data[: layout.value_codes], keys, dtype=dtype, is_turned=turned),
        plain_numbers(data[layout.value_codes :], values, dtype=dtype, is_turned=turned),
    )


def _of_codes(row: NDArray[np.int64], shape: Shape, *, sizes: Scales, dtype: Dtype) -> LayerKV:
    data, layout = data_of(row), FrameLayout(*row[LAYOUT_AT:].tolist())
    keys, values = (shape[0], layout.tokens, shape[1]), (shape[2], layout.tokens, shape[3])
    out = LayerKV(np.empty(keys, STORAGE[dtype]), np.empty(values, STORAGE[dtype]))
    every = -(-layout.tokens // layout.step), shape[0], 1, shape[1]
    steps = sizes.take(_unsigned(data, np.dtype("<u2"), shape=every), mode="clip")
    signed = _unsigned(data[layout.middles :], np.dtype("<u4"), shape=every)
    middles = centers((signed >> 1 ^ -(signed & 1)).view(np.int32), steps, bits=layout.key_bits)
    value_places = _unsigned(data[layout.value_steps :], np.dtype("<u2"), shape=(shape[2], layout.tokens, 1))
    value_steps = sizes.take(value_places, mode="clip")
    for first, at, block in code_blocks(layout, shape):
        is_key = at < layout.value_steps
        width, trellis = (
            (layout.key_width, layout.key_trellis) if is_key else (layout.value_width, layout.value_trellis)
        )
        stop = min(first + block[0] * layout.step, layout.tokens)
        numbers = _levels(data[at:], block, width=width, is_turned=layout.is_turned > 0)
        numbers = numbers[:, :, : min(layout.step, layout.tokens - first)]
        if trellis:
            numbers = _in_trellis(numbers)
        if is_key:
            spans = slice(first // layout.step, first // layout.step + block[0])
            scale = layout.key_bits, steps[spans], middles[spans]
            _write(out.keys[:, first:stop], numbers, scale=scale, dtype=dtype)
        else:
            own = value_steps[:, first:stop].reshape(block[1], block[0], -1, 1).swapaxes(0, 1)
            _write(out.values[:, first:stop], numbers, scale=(layout.value_bits, own, None), dtype=dtype)
    return out


READERS: dict[int, Callable[..., LayerKV]] = {PLAIN: _plain, IN_CODES: _of_codes}  # by form, each a `numbers_of`


def plain_numbers(data: Codes, shape: tuple[int, int, int], *, dtype: Dtype, is_turned: bool) -> Array:
    """Numbers (H, T, D) that lie in planes of bytes, as (H, D, T), or turned as they are."""
    heads, tokens, dim = shape
    if is_turned:
        return data.view(STORAGE[dtype]).reshape(shape)
    planes = data.reshape(STORAGE[dtype].itemsize, -1)
    numbers = np.ascontiguousarray(planes.T).view(STORAGE[dtype]).reshape(heads, dim, tokens)
    return np.ascontiguousarray(numbers.transpose(0, 2, 1))


def centers(middles: NDArray[np.int32], steps: Scales, *, bits: int) -> Scales:
    """The middles as numbers: they are counted in sixteenths of what all codes reach."""
    exact = middles * steps.astype(np.float64) * 2.0 ** (bits - 4)
    limit = largest("float32")
    return np.clip(exact, -limit, limit).astype(np.float32)


def trellis_levels(codes: Codes) -> Codes:
    """The levels that codes (T, N) of a trellis stand for, which `store.codec.trellis` tells of.

    A state's last bit is the sum, modulo two, of its two last ones before and of the lowest bit of the code between. So
    it is that of all lowest bits before it but for each third one, and no token has to wait for the one before.
    """
    lowest, last = codes & np.uint8(1), np.empty_like(codes)
    own, one, other = np.zeros((3, *codes.shape[1:]), np.uint8)  # sums of each third token's bits
    for bit, found in zip(lowest, last, strict=True):
        np.bitwise_xor(one, other, out=found)
        own ^= bit
        own, one, other = one, other, own
    half = codes & np.uint8(7) ^ np.negative(last) & np.uint8(7)
    return half + half + last


def packed_codes(data: Codes, block: tuple[int, int, int, int], *, is_turned: bool) -> Codes:
    """The packed codes (S, H, P, D) at the front, as a view."""
    spans, heads, dim, packed = block
    found = data[: math.prod(block)]
    if is_turned:
        return found.reshape(spans, heads, packed, dim)
    return found.reshape(spans, heads, dim, packed).swapaxes(2, 3)


def _levels(data: Codes, block: tuple[int, int, int, int], *, width: int, is_turned: bool) -> Codes:
    """Codes (S, H, T, D), each in a byte, and those that pad the last one."""
    packed = np.ascontiguousarray(packed_codes(data, block, is_turned=is_turned))
    if width == 8:
        return packed
    spans, heads, rows, dim = packed.shape
    spread = np.empty((spans, heads, rows, 8 // width, dim), np.uint8)
    for place in range(8 // width):
        spread[:, :, :, place] = packed >> np.uint8(width * place) & np.uint8(2**width - 1)
    return spread.reshape(spans, heads, -1, dim)


def _in_trellis(codes: Codes) -> Codes:
    """Levels in place of codes (S, H, T, D): each span of a channel is a path of its own."""
    spans, heads, tokens, dim = codes.shape
    found = trellis_levels(codes.transpose(2, 0, 1, 3).reshape(tokens, -1))
    return found.reshape(tokens, spans, heads, dim).transpose(1, 2, 0, 3)


def _write(out: Array, codes: Codes, *, scale: tuple[int, Scales, Scales | None], dtype: Dtype) -> None:
    """Writes numbers of codes (S, H, T, D) to (H, S * T, D)."""
    bits, steps, middles = scale
    wide = codes.astype(np.float32)
    wide -= np.float32((2**bits - 1) / 2)
    with np.errstate(over="ignore"):  # the cell of the largest number may reach beyond it; `clip` brings it back
        wide *= steps
        if middles is not None:
            wide += middles
    widest = float(steps.max()) * 2 ** (bits - 1) + (0.0 if middles is None else float(np.abs(middles).max()))
    if widest > largest(dtype):  # to look at the numbers themselves would take half the time
        clip(wide, dtype)
    spans, heads, tokens, dim = codes.shape
    round_into(out.reshape(heads, spans, tokens, dim).swapaxes(0, 1), wide, dtype=dtype)


def _unsigned(data: Codes, dtype: "np.dtype[np.uint16] | np.dtype[np.uint32]", *, shape: tuple[int, ...]) -> Unsigned:
    """Unsigned numbers out of the planes at the front."""
    count = math.prod(shape)
    planes = data[: count * dtype.itemsize].reshape(dtype.itemsize, count)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(shape)
