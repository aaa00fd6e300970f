"""One chunk's keys and values, plain: refuses wrong shapes and dtypes, rounds to bfloat16. Knows no codec, no medium.

Letters: `H` kv heads, `T` tokens, `D` head dim.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from store.errors import RecordError

Dtype = Literal["float32", "float16", "bfloat16"]
Array = NDArray[np.float32 | np.float16 | np.uint16]  # uint16 holds bfloat16's bits
Codes = NDArray[np.uint8]
Scales = NDArray[np.float32]
Shape = tuple[int, ...]

STORAGE: dict[Dtype, np.dtype[np.float32 | np.float16 | np.uint16]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Plain keys (H, T, D) and values (H, T, D) of one layer; heads and dims may differ between the two."""

    keys: Array
    values: Array

    @property
    def shapes(self) -> tuple[Shape, Shape]:
        """The shapes of keys and values."""
        return self.keys.shape, self.values.shape


@dataclass(frozen=True, slots=True)
class Tail:
    """The last tokens of a record, which are not the chunk's: they followed it when it was captured.

    A prompt in which the same ids follow the chunk reuses their keys and values, too; any other the chunk's alone.
    """

    tokens: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Plain arrays for every layer; None for a layer that shares another one's cache.

    `ids_digest` is of the chunk's token ids; empty where they are not known.
    """

    dtype: Dtype
    layers: tuple[LayerKV | None, ...]
    ids_digest: str = ""
    tail: Tail = Tail()

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            raise RecordError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {self.dtype!r}")
        if not any(self.layers):
            raise RecordError("a record needs at least one layer with keys and values")
        for index, layer in enumerate(self.layers):
            if layer is not None:
                self._check(index, layer)
        if not 0 <= self.tail.tokens < self.tokens:
            raise RecordError(f"a tail of {self.tail.tokens} tokens in a record of {self.tokens}")

    def _check(self, index: int, layer: LayerKV) -> None:
        for name, array in (("keys", layer.keys), ("values", layer.values)):
            if array.dtype != STORAGE[self.dtype]:
                raise RecordError(
                    f"layer {index} {name}: a {self.dtype} record holds {STORAGE[self.dtype]} arrays, got {array.dtype}"
                )
            if array.ndim != 3 or 0 in array.shape:
                raise RecordError(f"layer {index} {name}: want (H, T, D) with no zero in it, got {array.shape}")
            if array.shape[1] != self.tokens:
                raise RecordError(f"layer {index} {name}: {array.shape[1]} tokens where others have {self.tokens}")

    @property
    def tokens(self) -> int:
        """The number of tokens T, which is the same in every layer, the tail included."""
        return next(int(layer.keys.shape[1]) for layer in self.layers if layer is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of the plain arrays."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers if layer is not None)


def codes_per_byte(bits: int) -> int:
    """How many codes of `bits` share a byte: 4, 2 or 1. zstd recovers what 3, 5, 6 and 7 bits leave unused."""
    return 4 if bits <= 2 else 2 if bits <= 4 else 1


def widen(array: Array, dtype: Dtype) -> NDArray[np.float32]:
    """Converts plain storage to float32, exactly; a float32 array is returned as it is."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32, copy=False)


def largest(dtype: Dtype) -> float:
    """The dtype's largest finite number."""
    return _LARGEST[dtype]


def clip(wide: NDArray[np.float32], dtype: Dtype) -> None:
    """Clip numbers beyond the dtype, and infinities, to its largest, in place."""
    np.clip(wide, -_LARGEST[dtype], _LARGEST[dtype], out=wide)


def round_into(out: Array, wide: NDArray[np.float32], *, dtype: Dtype) -> None:
    """Rounds float32 within the dtype's range to plain storage, ties to even. Overwrites `wide`."""
    if dtype != "bfloat16":
        out[...] = wide
        return
    bits = wide.view(np.uint32)
    odd = bits >> np.uint32(16)
    odd &= np.uint32(1)
    odd += np.uint32(0x7FFF)
    bits += odd
    bits >>= np.uint32(16)
    out[...] = bits


def narrow(wide: NDArray[np.float32], dtype: Dtype) -> Array:
    """Converts float32 to plain storage, rounded to nearest even and never to infinity."""
    out = np.empty(wide.shape, STORAGE[dtype])
    inside = wide.copy()
    clip(inside, dtype)
    round_into(out, inside, dtype=dtype)
    return out


_LARGEST: dict[Dtype, float] = {
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float(np.array(0x7F7F0000, dtype=np.uint32).view(np.float32)),
}
