"""The layouts inside a frame (lossless, quantized, trellis): sizes, what they write, which tokens share a key's step.

quantized   steps | middles, of keys alone | codes (H, D, P), span by span
lossless    the bytes of (H, D, T) as planes, first byte of every number first: exponents compress, mantissas do not

Steps (u16, a place in the grid each) and middles (u32, the sign in the lowest bit) are planes too: of keys (S, H, D)
for S spans, of values (H, T). A channel's middle is a small number in most models: planes of zeros take no room.
`store.rows` makes numbers of all that again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from store.blob import StoredShape
from store.codec.quantize import KEYS, VALUES, Quantized, quantize
from store.codec.spec import KVBits, code_bits, is_between
from store.record import STORAGE, Array, Codes, Dtype, LayerKV, codes_per_byte, widen
from store.rows import IN_CODES, FrameLayout, plain_layout

MAX_FRAME_BYTES = 32 << 20  # no frame of ours unpacks to more; a head that says so was not written here
GROUP_TOKENS = 64  # tokens that share a key's step: fewer cost more step bytes, more make the step coarser

_STEP_PLANES, _MIDDLE_PLANES = 2, 4
Unsigned = NDArray[np.uint16 | np.uint32]


class FrameForm(Protocol):
    """How the keys and values of a layer are written in a frame. Equal forms write layers together."""

    @property
    def shortest(self) -> int:
        """Fewest tokens that are worth a tile of their own."""
        ...

    def nbytes(self, tokens: int) -> int:
        """Bytes of so many tokens, before zstd: told without a walk, for a head may claim any number."""
        ...

    def layout(self, tokens: int) -> FrameLayout:
        """Where in the bytes that `current` returns what lies, and in which form."""
        ...

    def current(self, data: Codes, tokens: int) -> Codes:
        """The bytes as they are written today."""
        del tokens
        return data

    def current_nbytes(self, tokens: int) -> int:
        """How many these are."""
        return self.nbytes(tokens)

    def write(self, layers: Sequence[LayerKV]) -> Iterator[bytes]:
        """Yields the pieces of neighbouring layers, layer by layer, of the tokens that one frame holds."""
        ...


@dataclass(frozen=True, slots=True)
class Lossless(FrameForm):
    """Plain numbers of this shape and dtype."""

    shape: StoredShape
    dtype: Dtype

    @property
    def shortest(self) -> int:
        return 16

    def nbytes(self, tokens: int) -> int:
        return _layout_bytes(self.layout(tokens), self.shape)

    def layout(self, tokens: int) -> FrameLayout:
        itemsize = STORAGE[self.dtype].itemsize
        return plain_layout(tokens, itemsize, key_bytes=_numbers(self.shape)[0] * tokens * itemsize)

    def write(self, layers: Sequence[LayerKV]) -> Iterator[bytes]:
        for layer in layers:
            for array in (layer.keys, layer.values):
                yield from planes(array.transpose(0, 2, 1))


@dataclass(frozen=True, slots=True)
class Levels(FrameForm):
    """Codes that stand for levels each by itself, of these bits, for numbers of this shape and dtype."""

    bits: KVBits
    shape: StoredShape
    dtype: Dtype

    @property
    def shortest(self) -> int:
        return GROUP_TOKENS

    def nbytes(self, tokens: int) -> int:
        return _layout_bytes(self.layout(tokens), self.shape)

    def layout(self, tokens: int) -> FrameLayout:
        spans, step = span_count(tokens)
        key_bits, value_bits = code_bits(self.bits.keys), code_bits(self.bits.values)
        widths = 8 // codes_per_byte(key_bits), 8 // codes_per_byte(value_bits)
        keys = _numbers(self.shape)[0]
        middles = _STEP_PLANES * spans * keys
        codes_at = middles + _MIDDLE_PLANES * spans * keys
        bare = FrameLayout(IN_CODES, tokens, min(step, tokens), key_bits, widths[0], value_bits, widths[1])
        steps_at = codes_at + _code_bytes(bare, widths[0]) * keys
        values_at = steps_at + _STEP_PLANES * self.shape.value_heads * tokens
        return bare._replace(middles=middles, key_codes=codes_at, value_steps=steps_at, value_codes=values_at)

    def write(self, layers: Sequence[LayerKV]) -> Iterator[bytes]:
        keys = _write_quantized([layer.keys for layer in layers], self.bits.keys, dtype=self.dtype, axis=KEYS)
        values = _write_quantized([layer.values for layer in layers], self.bits.values, dtype=self.dtype, axis=VALUES)
        for pieces in zip(keys, values, strict=True):
            yield from chain(*pieces)


class Trellis(Levels):
    """Codes of which those between whole bits are of a trellis. Releases before wrote levels there."""

    __slots__ = ()

    def layout(self, tokens: int) -> FrameLayout:
        trellises = int(is_between(self.bits.keys)), int(is_between(self.bits.values))
        return Levels.layout(self, tokens)._replace(key_trellis=trellises[0], value_trellis=trellises[1])


def written_form(bits: KVBits | None, shape: StoredShape, *, dtype: Dtype) -> FrameForm:
    """The form in which a layer is written today."""
    return Lossless(shape, dtype) if bits is None else Trellis(bits, shape, dtype)


def _layout_bytes(layout: FrameLayout, shape: StoredShape) -> int:
    """Bytes of a layer that lies so."""
    return layout.value_codes + _code_bytes(layout, layout.value_width) * _numbers(shape)[1]


def _numbers(shape: StoredShape) -> tuple[int, int]:
    """How many numbers of keys, and of values, a token has."""
    return shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim


def _code_bytes(layout: FrameLayout, width: int) -> int:
    """Bytes of one channel's codes, all spans together: each begins a byte."""
    full, rest = divmod(layout.tokens, layout.step)
    return full * -(-layout.step * width // 8) + -(-rest * width // 8)


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
    yield b"".join(planes(np.concatenate([span.places for span in spans], axis=axis - KEYS)))
    middles = [span.middles for span in spans if span.middles is not None]
    if middles:
        signed = np.concatenate(middles)
        yield b"".join(planes((signed << 1 ^ signed >> 31).view(np.uint32)))
    yield b"".join(span.codes.tobytes() for span in spans)


def planes(numbers: Array | Unsigned) -> Iterator[bytes]:
    """Yields the first byte of every number, then the second, and so on."""
    for plane in np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, numbers.itemsize).T:
        yield plane.tobytes()
