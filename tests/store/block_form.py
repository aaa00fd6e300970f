"""A form of frames that the product has not: 4 bits, with one scale for 32 numbers that lie side by side.

It shows what a new form takes: an object beside `Levels`, and a reader. No tier, placement or kernel knows it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from store.blob import StoredShape
from store.codec import decode, encode
from store.codec.frame import FrameForm
from store.record import Array, Codes, Dtype, LayerKV, Scales, Shape, narrow, widen
from store.rows import LAYOUT_AT, READERS, FrameLayout, data_of

BLOCKS = 64  # the form's number
BLOCK, BLOCK_BYTES = 32, 4 + 16


@dataclass(frozen=True, slots=True)
class Blocks(FrameForm):
    """See `FrameForm`."""

    shape: StoredShape
    dtype: Dtype

    @property
    def shortest(self) -> int:
        return 16

    def nbytes(self, tokens: int) -> int:
        shape = self.shape
        return sum(
            -(-heads * tokens * dim // BLOCK) * BLOCK_BYTES
            for heads, dim in ((shape.key_heads, shape.key_dim), (shape.value_heads, shape.value_dim))
        )

    def layout(self, tokens: int) -> FrameLayout:
        return FrameLayout(BLOCKS, tokens, tokens, key_bits=4)

    def write(self, layers: Sequence[LayerKV]) -> Iterator[bytes]:
        for layer in layers:
            for array in (layer.keys, layer.values):
                numbers = widen(array, self.dtype).reshape(-1)
                blocks = np.pad(numbers, (0, -numbers.size % BLOCK)).reshape(-1, BLOCK)
                scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(7)
                codes = np.rint(blocks / np.where(scales > 0, scales, 1)).astype(np.int8).view(np.uint8) & 15
                packed = np.concatenate([scales.view(np.uint8), codes[:, ::2] | codes[:, 1::2] << 4], axis=1)
                yield packed.tobytes()


def read_blocks(row: NDArray[np.int64], shape: Shape, *, sizes: Scales, dtype: Dtype) -> LayerKV:
    """See `numbers_of`."""
    tokens, blocks = FrameLayout(*row[LAYOUT_AT:].tolist()).tokens, data_of(row).reshape(-1, BLOCK_BYTES)
    keys, values = (shape[0], tokens, shape[1]), (shape[2], tokens, shape[3])
    stop = -(-int(np.prod(keys)) // BLOCK)
    return LayerKV(_numbers(blocks[:stop], keys, dtype), _numbers(blocks[stop:], values, dtype))


def _numbers(blocks: Codes, shape: tuple[int, int, int], dtype: Dtype) -> Array:
    codes = np.stack([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=2).reshape(-1, BLOCK)
    signed = (codes ^ 8).astype(np.float32) - 8
    numbers = signed * np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    return narrow(numbers.reshape(-1)[: np.prod(shape)].reshape(shape), dtype)


@contextmanager
def blocks_written(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While it is open, what is written in `q4` is written in blocks."""

    def written(bits: object, shape: StoredShape, *, dtype: Dtype) -> Blocks:
        return Blocks(shape, dtype)

    with monkeypatch.context() as patch:
        patch.setitem(READERS, BLOCKS, read_blocks)
        patch.setattr(encode, "written_form", written)
        patch.setattr(decode, "written_form", written)
        decode._laid.cache_clear()
        yield
    decode._laid.cache_clear()
