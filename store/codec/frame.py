"""What lies inside a frame, behind zstd: layer by layer the keys, then the values, of all tokens of the frame.

quantized   steps | middles, of keys alone | codes (H, D, P), span by span
lossless    the bytes of (H, D, T) as planes, first byte of every number first: exponents compress, mantissas do not

Steps (u16, a place in the grid each) and middles (u32, the sign in the lowest bit) are planes too: of keys (S, H, D)
for S spans, of values (H, T). A channel's middle is a small number in most models: planes of zeros take no room.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from store.blob import StoredShape
from store.codec.quantize import KEYS, STEP_SIZES, VALUES, Quantized, centers, quantize, step_sizes
from store.codec.spec import KVBits, code_bits, is_between
from store.codec.trellis import trellis_levels
from store.record import (
    ADDRESS,
    LAYOUT_AT,
    NBYTES,
    STORAGE,
    Array,
    Codes,
    Dtype,
    FramedPart,
    FrameLayout,
    LayerKV,
    PackedLayer,
    PackedTensor,
    PackedTile,
    codes_per_byte,
    widen,
)

MAX_FRAME_BYTES = 32 << 20  # no frame of ours unpacks to more; a head that says so was not written here
GROUP_TOKENS = 64  # tokens that share a key's step: fewer cost more step bytes, more make the step coarser

_STEP_PLANES, _MIDDLE_PLANES = 2, 4
Unsigned = NDArray[np.uint16 | np.uint32]


@dataclass(frozen=True, slots=True)
class LayerForm:
    """How the tensors of a layer are laid out in a frame: bits of its codes (None: lossless), shape and dtype.

    `has_trellis`: codes between whole bits are those of a trellis; releases before wrote levels.
    """

    bits: KVBits | None
    shape: StoredShape
    dtype: Dtype
    has_trellis: bool = True

    @property
    def shortest(self) -> int:
        """Fewest tokens that are worth a tile of their own."""
        return 16 if self.bits is None else GROUP_TOKENS

    def nbytes(self, tokens: int) -> int:
        """Bytes of so many tokens, before zstd: told without a walk, for a head may claim any number."""
        shape, bits = self.shape, self.bits
        keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
        if bits is None:
            return (keys + values) * tokens * STORAGE[self.dtype].itemsize
        spans, step = span_count(tokens)
        per_byte = codes_per_byte(code_bits(bits.keys)), codes_per_byte(code_bits(bits.values))
        last = tokens - (spans - 1) * step
        codes = sum(
            size * ((spans - 1) * -(-step // each) + -(-last // each))
            for size, each in zip((keys, values), per_byte, strict=True)
        )
        steps = _STEP_PLANES * shape.value_heads * tokens
        return codes + steps + spans * keys * (_STEP_PLANES + _MIDDLE_PLANES)


def span_count(tokens: int) -> tuple[int, int]:
    """How many spans these tokens make, and how many tokens all but the last one have."""
    step = even_step(tokens, tokens // GROUP_TOKENS)
    return -(-tokens // step), step


def spans_of(tokens: int) -> list[range]:
    """Runs of tokens whose keys share steps, 64 to 127 each: a short chunk and a long one cost the same."""
    return cut_evenly(tokens, tokens // GROUP_TOKENS)


def even_step(tokens: int, pieces: int) -> int:
    """The length of all runs but the last where tokens are cut into about so many."""
    return -(-tokens // max(1, pieces)) + 3 & ~3


def cut_evenly(tokens: int, pieces: int) -> list[range]:
    """Runs of about equal length whose starts are multiples of four, so that every `codes_per_byte` divides them."""
    step = even_step(tokens, pieces)
    return [range(start, min(start + step, tokens)) for start in range(0, tokens, step)]


def write_layers(layers: Sequence[LayerKV], form: LayerForm) -> Iterator[bytes]:
    """The pieces of neighbours of one form, layer by layer, of the tokens that one frame holds."""
    if form.bits is None:
        for layer in layers:
            yield from _write_lossless(layer.keys)
            yield from _write_lossless(layer.values)
        return
    keys = _write_quantized([layer.keys for layer in layers], form.bits.keys, dtype=form.dtype, axis=KEYS)
    values = _write_quantized([layer.values for layer in layers], form.bits.values, dtype=form.dtype, axis=VALUES)
    for pieces in zip(keys, values, strict=True):
        yield from chain(*pieces)


def _write_quantized(arrays: Sequence[Array], bits: float, *, dtype: Dtype, axis: int) -> Iterator[Iterator[bytes]]:
    """The pieces of each array. What is quantized together takes few calls: no channel or token knows of another."""
    heads, tokens, _ = arrays[0].shape
    spans = [
        quantize(widen(np.concatenate([each[:, span.start : span.stop] for each in arrays]), dtype), bits, axis=axis)
        for span in spans_of(tokens)
    ]
    for first in range(0, heads * len(arrays), heads):
        yield _pieces([span.of_heads(first, first + heads) for span in spans], axis=axis)


def _pieces(spans: Sequence[Quantized], *, axis: int) -> Iterator[bytes]:
    """Steps, middles and codes, each kind as one piece."""
    yield b"".join(_planes(np.concatenate([span.places for span in spans], axis=axis - KEYS)))
    middles = [span.middles for span in spans if span.middles is not None]
    if middles:
        signed = np.concatenate(middles)
        yield b"".join(_planes((signed << 1 ^ signed >> 31).view(np.uint32)))
    yield b"".join(span.codes.tobytes() for span in spans)


def _planes(numbers: Array | Unsigned) -> Iterator[bytes]:
    """The first byte of every number, then the second, and so on."""
    for plane in np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, numbers.itemsize).T:
        yield plane.tobytes()


def _write_lossless(array: Array) -> Iterator[bytes]:
    yield from _planes(np.ascontiguousarray(array.transpose(0, 2, 1)))


def read_plain(raw: memoryview, form: LayerForm, *, tokens: int) -> LayerKV:
    """The layer that `write_layer` took apart without loss."""
    shape, itemsize = form.shape, STORAGE[form.dtype].itemsize
    middle = shape.key_heads * shape.key_dim * tokens * itemsize
    return LayerKV(
        _read_lossless(raw[:middle], (shape.key_heads, tokens, shape.key_dim), dtype=form.dtype),
        _read_lossless(raw[middle:], (shape.value_heads, tokens, shape.value_dim), dtype=form.dtype),
    )


def _read_lossless(data: memoryview, shape: tuple[int, int, int], *, dtype: Dtype) -> Array:
    heads, tokens, dim = shape
    planes = np.frombuffer(data, np.uint8).reshape(STORAGE[dtype].itemsize, -1)
    turned = np.ascontiguousarray(planes.T).view(STORAGE[dtype]).reshape(heads, dim, tokens)
    return np.ascontiguousarray(turned.transpose(0, 2, 1))


def address_of(data: Codes) -> int:
    """Where in memory these bytes begin."""
    return data.__array_interface__["data"][0]


def framed_part(
    data: Codes, layout: FrameLayout, *, start: int, address: int | None = None, is_pinned: bool = False
) -> FramedPart:
    """The bytes of a quantized layer in one frame, whose first token is `start`. `address`: of them, if it is known."""
    row = _row(layout).copy()
    row[:LAYOUT_AT] = address_of(data) if address is None else address, data.nbytes, start, is_pinned
    return FramedPart(start, data, row, layout, STEP_SIZES)


def rows_of(layers: Sequence[tuple[FrameLayout, slice]]) -> NDArray[np.int64]:
    """Rows (L, 1, R) of a frame's layers, each with its place in the frame for its address."""
    rows = np.stack([_row(layout) for layout, _ in layers])
    rows[:, ADDRESS] = [where.start for _, where in layers]
    rows[:, NBYTES] = [where.stop - where.start for _, where in layers]
    return rows[:, None]


@lru_cache(1024)
def _row(layout: FrameLayout) -> NDArray[np.int64]:
    return np.array([*[0] * LAYOUT_AT, *layout], np.int64)


def frame_layout(form: LayerForm, tokens: int) -> FrameLayout:
    """Where in a quantized layer's bytes what lies."""
    assert form.bits is not None
    shape, spans = form.shape, spans_of(tokens)
    key_numbers = len(spans) * shape.key_heads * shape.key_dim
    key_bits, value_bits = code_bits(form.bits.keys), code_bits(form.bits.values)
    per_byte = codes_per_byte(key_bits)
    key_codes = sum(-(-len(span) // per_byte) for span in spans) * shape.key_heads * shape.key_dim
    middles = _STEP_PLANES * key_numbers
    keys_at = middles + _MIDDLE_PLANES * key_numbers
    steps_at = keys_at + key_codes
    return FrameLayout(
        tokens=tokens,
        step=len(spans[0]),
        key_bits=key_bits,
        key_width=8 // per_byte,
        value_bits=value_bits,
        value_width=8 // codes_per_byte(value_bits),
        is_turned=0,
        middles=middles,
        key_codes=keys_at,
        value_steps=steps_at,
        value_codes=steps_at + _STEP_PLANES * shape.value_heads * tokens,
        key_trellis=int(form.has_trellis and is_between(form.bits.keys)),
        value_trellis=int(form.has_trellis and is_between(form.bits.values)),
    )


def framed_layer(parts: Sequence[FramedPart], shape: StoredShape) -> PackedLayer:
    """One layer out of its parts along the tokens."""
    tokens = sum(part.layout.tokens for part in parts)
    shapes = (shape.key_heads, tokens, shape.key_dim), (shape.value_heads, tokens, shape.value_dim)
    return PackedLayer(shapes, _framed_tiles, tuple(parts))


def _framed_tiles(layer: PackedLayer) -> tuple[PackedTile, ...]:
    return tuple(tile for part in layer.framed for tile in _tiles(part, _shape_of(layer)))


def _shape_of(layer: PackedLayer) -> StoredShape:
    (key_heads, _, key_dim), (value_heads, _, value_dim) = layer.shapes
    return StoredShape(key_heads, key_dim, value_heads, value_dim)


def turned_layer(
    layer: PackedLayer, room: Callable[[Codes], Codes] = np.empty_like, *, is_pinned: bool = False
) -> PackedLayer:
    """The same in memory that `room` makes for an array, its codes turned as whoever makes numbers of them needs it."""
    if not layer.framed:
        return layer
    shape = _shape_of(layer)
    parts = list[FramedPart]()
    for part in layer.framed:
        data = room(part.data)
        _turn(part, shape, out=data)
        parts.append(framed_part(data, _turned_layout(part.layout), start=part.start, is_pinned=is_pinned))
    return framed_layer(parts, shape)


def _turn(part: FramedPart, shape: StoredShape, *, out: Codes) -> None:
    begin = 0
    for heads, dim, packed, at in _code_blocks(part.layout, shape):
        out[begin:at] = part.data[begin:at]
        begin = at + heads * dim * packed
        codes = _codes(part.data, (heads, dim, packed, at), is_turned=part.layout.is_turned > 0)
        out[at:begin].reshape(heads, packed, dim)[...] = codes.transpose(0, 2, 1)
    out.flags.writeable = False


@lru_cache(1024)
def _turned_layout(layout: FrameLayout) -> FrameLayout:
    return layout._replace(is_turned=1)


def _code_blocks(layout: FrameLayout, shape: StoredShape) -> Iterator[tuple[int, int, int, int]]:
    """Heads, channels, bytes of a channel and place of each span's codes: of the keys, then of the values."""
    for heads, dim, width, at in (
        (shape.key_heads, shape.key_dim, layout.key_width, layout.key_codes),
        (shape.value_heads, shape.value_dim, layout.value_width, layout.value_codes),
    ):
        place = at
        for start in range(0, layout.tokens, layout.step):
            packed = -(-min(layout.step, layout.tokens - start) * width // 8)
            yield heads, dim, packed, place
            place += heads * dim * packed


def _tiles(part: FramedPart, shape: StoredShape) -> Iterator[PackedTile]:
    data, layout = part.data, part.layout
    starts = range(0, layout.tokens, layout.step)
    keys = len(starts), shape.key_heads, 1, shape.key_dim
    steps = step_sizes(_numbers(data, np.dtype("<u2"), shape=keys))
    signed = _numbers(data[layout.middles :], np.dtype("<u4"), shape=keys)
    middles = centers((signed >> 1 ^ -(signed & 1)).view(np.int32), steps, bits=layout.key_bits)
    values = step_sizes(
        _numbers(data[layout.value_steps :], np.dtype("<u2"), shape=(shape.value_heads, layout.tokens, 1))
    )
    codes = [_codes(data, block, is_turned=layout.is_turned > 0) for block in _code_blocks(layout, shape)]
    if layout.key_trellis:
        codes[: len(starts)] = _levels(codes[: len(starts)])
    if layout.value_trellis:
        codes[len(starts) :] = _levels(codes[len(starts) :])
    for number, start in enumerate(starts):
        stop = min(start + layout.step, layout.tokens)
        yield PackedTile(
            part.start + start,
            PackedTensor(codes[number], steps[number], layout.key_bits, stop - start, middles[number]),
            PackedTensor(codes[len(starts) + number], values[:, start:stop], layout.value_bits, stop - start),
        )


def _codes(data: Codes, block: tuple[int, int, int, int], *, is_turned: bool) -> Codes:
    """The codes (H, D, P) of one span, as a view."""
    heads, dim, packed, at = block
    found = data[at : at + heads * dim * packed]
    return found.reshape(heads, packed, dim).transpose(0, 2, 1) if is_turned else found.reshape(heads, dim, packed)


def _levels(spans: Sequence[Codes]) -> list[Codes]:
    """Levels in place of a trellis' codes, two of which share a byte. Spans go side by side: each begins a path."""
    heads, dim, longest = spans[0].shape
    packed = np.zeros((longest, len(spans), heads, dim), np.uint8)
    for number, span in enumerate(spans):
        packed[: span.shape[2], number] = span.transpose(2, 0, 1)
    found = trellis_levels(np.stack([packed, packed >> np.uint8(4)], axis=1).reshape(2 * longest, -1))
    packed = (found[::2] | found[1::2] << np.uint8(4)).reshape(packed.shape)
    return [packed[: span.shape[2], number].transpose(1, 2, 0) for number, span in enumerate(spans)]


def _numbers(data: Codes, dtype: "np.dtype[np.uint16] | np.dtype[np.uint32]", *, shape: tuple[int, ...]) -> Unsigned:
    """Unsigned numbers out of the planes at the front."""
    count = math.prod(shape)
    planes = data[: count * dtype.itemsize].reshape(dtype.itemsize, count)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(shape)
