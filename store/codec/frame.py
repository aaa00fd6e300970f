"""What lies inside a frame, behind zstd: layer by layer the keys, then the values, of all tokens of the frame.

quantized   steps | middles, of keys alone | codes (H, D, P), span by span
lossless    the bytes of (H, D, T) as planes, first byte of every number first: exponents compress, mantissas do not

Steps (u16, a place in the grid each) and middles (u32, the sign in the lowest bit) are planes too: of keys (S, H, D)
for S spans, of values (H, T). A channel's middle is a small number in most models: planes of zeros take no room.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from store.blob import StoredShape
from store.codec.quantize import KEYS, VALUES, Quantized, centers, quantize, step_sizes
from store.codec.spec import KVBits
from store.record import STORAGE, Array, Dtype, LayerKV, PackedLayer, PackedTensor, PackedTile, codes_per_byte, widen

MAX_FRAME_BYTES = 32 << 20  # no frame of ours unpacks to more; a head that says so was not written here
GROUP_TOKENS = 64  # tokens that share a key's step: fewer cost more step bytes, more make the step coarser

_STEP_PLANES, _MIDDLE_PLANES = 2, 4
Unsigned = NDArray[np.uint16 | np.uint32]


@dataclass(frozen=True, slots=True)
class LayerForm:
    """How the tensors of a layer are laid out in a frame: bits of its codes (None: lossless), shape and dtype."""

    bits: KVBits | None
    shape: StoredShape
    dtype: Dtype

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
        per_byte = codes_per_byte(bits.keys), codes_per_byte(bits.values)
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


def _write_quantized(arrays: Sequence[Array], bits: int, *, dtype: Dtype, axis: int) -> Iterator[Iterator[bytes]]:
    """The pieces of each array. What is quantized together takes few calls: no channel or token knows of another."""
    heads, tokens, _ = arrays[0].shape
    spans = [
        quantize(widen(np.concatenate([each[:, span.start : span.stop] for each in arrays]), dtype), bits, axis=axis)
        for span in spans_of(tokens)
    ]
    for first in range(0, heads * len(arrays), heads):
        yield _pieces([span.of_heads(first, first + heads) for span in spans], axis=axis)


def _pieces(spans: Sequence[Quantized], *, axis: int) -> Iterator[bytes]:
    yield from _planes(np.concatenate([span.places for span in spans], axis=axis - KEYS))
    middles = [span.middles for span in spans if span.middles is not None]
    if middles:
        signed = np.concatenate(middles)
        yield from _planes((signed << 1 ^ signed >> 31).view(np.uint32))
    for span in spans:
        yield span.codes.tobytes()


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


def read_packed(raw: memoryview, form: LayerForm, *, start: int, tokens: int) -> PackedLayer:
    """The codes of a quantized layer as views of the frame; `start` is the frame's first token."""
    assert form.bits is not None
    shape, spans, reader = form.shape, spans_of(tokens), _Reader(raw)
    keys = len(spans), shape.key_heads, 1, shape.key_dim
    steps = step_sizes(reader.numbers(np.dtype("<u2"), keys))
    signed = reader.numbers(np.dtype("<u4"), keys)
    middles = centers((signed >> 1 ^ -(signed & 1)).view(np.int32), steps, bits=form.bits.keys)
    key_codes = [reader.codes(shape.key_heads, shape.key_dim, tokens=len(span), bits=form.bits.keys) for span in spans]
    value_steps = step_sizes(reader.numbers(np.dtype("<u2"), (shape.value_heads, tokens, 1)))
    tiles: list[PackedTile] = []
    for number, span in enumerate(spans):
        codes = reader.codes(shape.value_heads, shape.value_dim, tokens=len(span), bits=form.bits.values)
        tiles.append(
            PackedTile(
                start + span.start,
                PackedTensor(key_codes[number], steps[number], form.bits.keys, len(span), middles[number]),
                PackedTensor(codes, value_steps[:, span.start : span.stop], form.bits.values, len(span)),
            )
        )
    return PackedLayer(tuple(tiles))


class _Reader:
    """Takes arrays off the front of a layer's bytes."""

    def __init__(self, raw: memoryview) -> None:
        self._all = np.frombuffer(raw, np.uint8)
        self._at = 0

    def numbers(self, dtype: "np.dtype[np.uint16] | np.dtype[np.uint32]", shape: tuple[int, ...]) -> Unsigned:
        """Unsigned numbers out of their planes."""
        count = math.prod(shape)
        planes = self._bytes(count * dtype.itemsize).reshape(dtype.itemsize, count)
        return np.ascontiguousarray(planes.T).view(dtype).reshape(shape)

    def codes(self, heads: int, dim: int, *, tokens: int, bits: int) -> NDArray[np.uint8]:
        """The codes (H, D, P) of one span, as a view."""
        packed = -(-tokens // codes_per_byte(bits))
        return self._bytes(heads * dim * packed).reshape(heads, dim, packed)

    def _bytes(self, count: int) -> NDArray[np.uint8]:
        start = self._at
        self._at += count
        return self._all[start : self._at]
