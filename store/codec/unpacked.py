"""A blob's layers unpacked into one piece of memory, for a tier that is asked for them often. Knows no medium."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from store.blob import Blob, Head
from store.codec.decode import layers_of
from store.codec.frame import turned_layer
from store.reader import Layers
from store.record import Array, Codes, FramedRecord, LayerKV, PackedLayer, PackedTensor, PackedTile, Scales

_ALIGNED = 64  # bytes: where each array begins
_ARRAY_BYTES = 320  # of Python's objects around an array
_LAYER_BYTES = 850  # and around a layer in codes

Number = TypeVar("Number", bound=np.generic)


class Memory(NamedTuple):
    """One piece, free again with the last view of it; `is_pinned`: a GPU reads it where it lies."""

    data: Codes
    is_pinned: bool = False


Allocate = Callable[[int], Memory]  # at least so many bytes


def allocate(nbytes: int) -> Memory:
    """Ordinary memory."""
    return Memory(np.empty(nbytes, np.uint8))


@dataclass(frozen=True, slots=True)
class MemoryForm:
    """How layers are kept in memory: as they lie in frames, or as arrays of codes and steps. `allocate`s one piece."""

    as_arrays: bool = False
    allocate: Allocate = allocate


AS_IT_LIES = MemoryForm()


@dataclass(frozen=True, slots=True)
class UnpackedBlob:
    """All of a blob's layers, for reading alone; `nbytes` is all the memory that they take."""

    head: Head
    head_bytes: bytes
    layers: Layers
    nbytes: int
    framed: FramedRecord | None = None


def unpacked(blob: Blob, form: MemoryForm = AS_IT_LIES) -> UnpackedBlob:
    """Unpacks a blob whose digests were checked. Raises `BadBlob` where it does not hold what its head says."""
    layers = layers_of(blob)
    held = [array for layer in layers if layer for array in _held(layer, as_arrays=form.as_arrays)]
    memory = _Filled(form.allocate(sum(-(-array.nbytes // _ALIGNED) * _ALIGNED for array in held)))
    kept = tuple(layer and memory.moved(layer, as_arrays=form.as_arrays) for layer in layers)
    framed = None if form.as_arrays else _framed(blob.head, kept, memory=memory.data)
    nbytes = memory.data.nbytes + len(blob.head_bytes) + (0 if framed is None else framed.rows.nbytes)
    nbytes += _ARRAY_BYTES * len(held) + _LAYER_BYTES * sum(isinstance(layer, PackedLayer) for layer in layers)
    return UnpackedBlob(blob.head, blob.head_bytes, kept, nbytes, framed)


def _framed(head: Head, layers: Layers, *, memory: Codes) -> FramedRecord | None:
    """The same as rows, where all layers lie in frames, in as many parts each."""
    packed = {number: layer.framed for number, layer in enumerate(layers) if isinstance(layer, PackedLayer)}
    counts = {len(parts) for parts in packed.values()}
    if len(packed) < sum(layer is not None for layer in layers) or len(counts) != 1 or 0 in counts:
        return None
    first = next(iter(packed.values()))[0]
    rows = np.zeros((len(layers), counts.pop(), len(first.row)), np.int64)
    for number, parts in packed.items():
        rows[number] = [part.row for part in parts]
    shapes = tuple(shape and astuple(shape) for shape in head.shapes)
    return FramedRecord(memory, rows, shapes, head.tokens, first.sizes)


def _held(layer: LayerKV | PackedLayer, *, as_arrays: bool) -> Iterator[Array | Codes | Scales]:
    """The arrays that are kept of a layer."""
    if isinstance(layer, PackedLayer) and layer.framed and not as_arrays:
        yield from (part.data for part in layer.framed)
    else:
        yield from _arrays(layer)


def _arrays(layer: LayerKV | PackedLayer) -> Iterator[Array | Codes | Scales]:
    if isinstance(layer, LayerKV):
        yield from (layer.keys, layer.values)
        return
    for tile in layer.tiles:
        for tensor in (tile.keys, tile.values):
            yield from (tensor.codes, tensor.scales)
            if tensor.centers is not None:
                yield tensor.centers


class _Filled:
    """One piece of memory that arrays move into, one behind the other."""

    def __init__(self, memory: Memory) -> None:
        self.data, self._is_pinned = memory
        self._used = 0

    def moved(self, layer: LayerKV | PackedLayer, *, as_arrays: bool) -> LayerKV | PackedLayer:
        """The layer with what is kept of it in here."""
        if isinstance(layer, LayerKV):
            return LayerKV(self._array(layer.keys), self._array(layer.values))
        if layer.framed and not as_arrays:
            return turned_layer(layer, self._room, is_pinned=self._is_pinned)
        tiles = (PackedTile(tile.start, self._tensor(tile.keys), self._tensor(tile.values)) for tile in layer.tiles)
        return PackedLayer.of(tuple(tiles))

    def _tensor(self, tensor: PackedTensor) -> PackedTensor:
        centers = None if tensor.centers is None else self._array(tensor.centers)
        codes = self._array(tensor.codes.transpose(0, 2, 1)).transpose(0, 2, 1)  # as whoever makes numbers turns them
        return PackedTensor(codes, self._array(tensor.scales), tensor.bits, tensor.tokens, centers)

    def _array(self, array: NDArray[Number]) -> NDArray[Number]:
        place = self._room(array)
        place[...] = array
        place.flags.writeable = False
        return place

    def _room(self, array: NDArray[Number]) -> NDArray[Number]:
        """Memory for an array's numbers."""
        place: NDArray[Number] = (
            self.data[self._used : self._used + array.nbytes].view(array.dtype).reshape(array.shape)
        )
        self._used += -(-array.nbytes // _ALIGNED) * _ALIGNED
        return place
