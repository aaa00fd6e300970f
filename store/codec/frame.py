"""What lies inside a frame, behind zstd: the tensors of a tile, layer by layer, keys then values. One tensor at a time.

quantized   exponent of the largest step i16 | step bytes (H*D for keys, H*T for values) | codes (H, D, P)
lossless    the bytes of (H, D, T) as planes, first byte of every number first: exponents compress, mantissas do not
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from store.blob import StoredShape
from store.codec.quantize import Steps, quantize
from store.record import STORAGE, Array, Codes, Dtype, PackedTensor, codes_per_byte, widen

MAX_FRAME_BYTES = 32 << 20  # no frame of ours unpacks to more; a head that says so was not written here
GROUP_TOKENS = 64  # tokens that share a key's step: fewer cost more step bytes, more make the step coarser

_TOP = struct.Struct("<h")
KEYS, VALUES = 1, 2  # the axis of (H, T, D) along which a step is shared


@dataclass(frozen=True, slots=True)
class Packing:
    """How the tensors of a blob are laid out: bits per code (None: lossless) in a record of this dtype."""

    bits: int | None
    dtype: Dtype

    @property
    def shortest(self) -> int:
        """Fewest tokens that are worth a tile of their own."""
        return 16 if self.bits is None else GROUP_TOKENS

    def pieces(self, tokens: int) -> int:
        """How many spans these tokens make."""
        return 1 if self.bits is None else tokens // GROUP_TOKENS

    def spans(self, tokens: int) -> list[range]:
        """Runs of tokens whose keys share steps, 64 to 127 each: a short chunk and a long one cost the same."""
        return cut_evenly(tokens, self.pieces(tokens))

    def tensor_bytes(self, heads: int, tokens: int, *, dim: int, axis: int) -> int:
        """Bytes of one tensor of one span."""
        if self.bits is None:
            return heads * tokens * dim * STORAGE[self.dtype].itemsize
        packed = -(-tokens // codes_per_byte(self.bits))
        return _TOP.size + heads * (dim if axis == KEYS else tokens) + heads * dim * packed

    def span_bytes(self, shape: StoredShape, tokens: int) -> tuple[int, int]:
        """Bytes of one layer's keys and of its values in one span."""
        keys = self.tensor_bytes(shape.key_heads, tokens, dim=shape.key_dim, axis=KEYS)
        return keys, self.tensor_bytes(shape.value_heads, tokens, dim=shape.value_dim, axis=VALUES)

    def frame_bytes(self, shapes: Sequence[StoredShape | None], tokens: int) -> int:
        """Bytes of these layers' keys and values, before zstd."""
        return sum(self.layer_bytes(shape, tokens) for shape in shapes if shape)

    def layer_bytes(self, shape: StoredShape, tokens: int) -> int:
        """Bytes of one layer's keys and values."""
        step = _even_step(tokens, self.pieces(tokens))
        whole, rest = divmod(tokens, step)
        return whole * sum(self.span_bytes(shape, step)) + (sum(self.span_bytes(shape, rest)) if rest else 0)


def _even_step(tokens: int, pieces: int) -> int:
    return -(-tokens // max(1, pieces)) + 3 & ~3


def cut_evenly(tokens: int, pieces: int) -> list[range]:
    """Runs of about equal length whose starts are multiples of four, so that every `codes_per_byte` divides them."""
    step = _even_step(tokens, pieces)
    return [range(start, min(start + step, tokens)) for start in range(0, tokens, step)]


def write_lossless(array: Array) -> Iterator[bytes]:
    """The pieces of a plain tensor (H, T, D)."""
    turned = np.ascontiguousarray(array.transpose(0, 2, 1))
    planes = turned.view(np.uint8).reshape(-1, array.itemsize)
    for plane in planes.T:
        yield plane.tobytes()


def read_lossless(data: memoryview, shape: tuple[int, int, int], *, dtype: Dtype) -> Array:
    """The plain tensor (H, T, D) that `write_lossless` took apart."""
    heads, tokens, dim = shape
    planes = np.frombuffer(data, np.uint8).reshape(STORAGE[dtype].itemsize, -1)
    turned = np.ascontiguousarray(planes.T).view(STORAGE[dtype]).reshape(heads, dim, tokens)
    return np.ascontiguousarray(turned.transpose(0, 2, 1))


def write_packed(array: Array, packing: Packing, *, axis: int) -> Iterator[bytes]:
    """The pieces of a quantized tensor."""
    assert packing.bits is not None
    codes, steps = quantize(widen(array, packing.dtype), packing.bits, axis=axis)
    yield _TOP.pack(steps.top)
    yield steps.codes.tobytes()
    yield codes.tobytes()


def read_packed(data: memoryview, shape: tuple[int, int, int], *, packing: Packing, axis: int) -> PackedTensor:
    """The codes and scales of a quantized tensor, as views of the frame; shape is (H, T, D)."""
    assert packing.bits is not None
    heads, tokens, dim = shape
    (top,) = _TOP.unpack(data[: _TOP.size])
    step_shape = (heads, 1, dim) if axis == KEYS else (heads, tokens, 1)
    steps: Codes = np.frombuffer(data, np.uint8, count=step_shape[0] * step_shape[1] * step_shape[2], offset=_TOP.size)
    codes = np.frombuffer(data, np.uint8, offset=_TOP.size + steps.size).reshape(heads, dim, -1)
    scales = Steps(steps.reshape(step_shape), top).values()
    return PackedTensor(codes, scales, packing.bits, tokens)
