"""One chunk's keys and values for one model, plain or packed. Knows shapes and dtypes, no codec and no medium.

Letters: `L` layers, `H` kv heads, `T` tokens, `D` head dim, `P` packed bytes of a channel's `T` codes.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from store.errors import RecordError

Dtype = Literal["float32", "float16", "bfloat16"]
Array = NDArray[np.float32 | np.float16 | np.uint16]  # uint16 holds bfloat16's bits
Codes = NDArray[np.uint8]
Scales = NDArray[np.float32]
Shape = tuple[int, ...]

ADDRESS, NBYTES, START, IS_PINNED, LAYOUT_AT = range(5)  # in a row of a `FramedPart`

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


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Quantized codes, channel-major, several to a byte along T, with their step sizes and middles.

    `value = (code - (2**bits - 1) / 2) * scale + center`, computed in float32 and rounded once to the dtype. The
    product is exact, as every scale is exact in bfloat16, so that a fused multiplication makes the same bits.
    `scales` is (H, 1, D) for keys and (H, T, 1) for values, so that it multiplies an (H, T, D) tensor as it is;
    `centers` are of its shape, None where all are zero. Byte p of a channel holds the codes of tokens
    `p*n ... p*n + n-1`, lowest bits first, where n is `codes_per_byte`; codes behind the last token are padding.
    """

    codes: Codes  # (H, D, P)
    scales: Scales
    bits: int
    tokens: int
    centers: Scales | None = None


@dataclass(frozen=True, slots=True)
class PackedTile:
    """Tokens `start` to `start + keys.tokens` of one layer."""

    start: int
    keys: PackedTensor
    values: PackedTensor


class FrameLayout(NamedTuple):
    """The offsets of a layer's parts in one frame, as `store.codec.frame` describes them; the keys' steps come first.

    `step` tokens share the keys' steps, fewer at the end. `is_turned`: codes lie as (H, P, D). A trellis' code gives a
    level only with the codes before it, from each span's first token on.
    """

    tokens: int
    step: int
    key_bits: int
    key_width: int  # bits that a code takes in a byte
    value_bits: int
    value_width: int
    is_turned: int  # as all of these are
    middles: int
    key_codes: int
    value_steps: int
    value_codes: int
    key_trellis: int  # whether the codes are of one
    value_trellis: int


class FramedPart(NamedTuple):
    """Tokens `start` to `start + layout.tokens` of one layer as stored in their frame; `sizes`: step sizes by index.

    `row` passes all of that to compiled code: the address and length of the data, the start, whether a GPU can read the
    data in place, and from `LAYOUT_AT` on the layout.
    """

    start: int
    data: Codes
    row: NDArray[np.int64]
    layout: FrameLayout
    sizes: Scales


class PackedLayer(NamedTuple):
    """One layer in codes; `shapes` are the (H, T, D) of keys and values.

    A long chunk is cut into several tiles along T, in order and without gaps, which `read` makes of the layer. Where
    they lie in frames as these are written today, `framed` are all of these, for who reads them himself.
    """

    shapes: tuple[Shape, Shape]
    read: "Callable[[PackedLayer], tuple[PackedTile, ...]]"
    framed: tuple[FramedPart, ...] = ()

    @classmethod
    def of(cls, tiles: tuple[PackedTile, ...]) -> Self:
        """Made of tiles that are there."""
        tokens = sum(tile.keys.tokens for tile in tiles)
        keys, values = tiles[0].keys.codes.shape, tiles[0].values.codes.shape

        def read(_: PackedLayer) -> tuple[PackedTile, ...]:
            return tiles

        return cls(((keys[0], tokens, keys[1]), (values[0], tokens, values[1])), read)

    @property
    def tiles(self) -> tuple[PackedTile, ...]:
        """Made anew each time."""
        return self.read(self)


class FramedRecord(NamedTuple):
    """A record whose layers lie in one piece of memory as its frames have them, each in as many parts.

    `rows` (L, P, R) are those of its parts, all zeros for a layer without a cache; `shapes` are each layer's heads and
    dims of keys, then of values; `tokens` are its own and its tail's; `sizes`: of steps, by place.
    """

    memory: Codes
    rows: NDArray[np.int64]
    shapes: tuple[Shape | None, ...]
    tokens: int
    sizes: Scales


class ReadFrames(NamedTuple):
    """Neighbouring layers of several records, unpacked into memory that lives as long as this.

    `rows` (L, N, R) are those of their parts, record by record, `tokens` of each record so many; `shapes` all heads and
    dims of keys, then of values, that are among them, `sizes` of steps, by place.
    """

    memory: object
    rows: NDArray[np.int64]
    tokens: Sequence[int]
    shapes: Collection[Shape]
    sizes: Scales


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


def reach(scales: Scales, centers: Scales | None, *, bits: int) -> float:
    """A bound that no value exceeds. Checking the values themselves would take half the time of a decode."""
    widest = float(scales.max()) * 2 ** (bits - 1)
    return widest if centers is None else widest + float(np.abs(centers).max())


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
