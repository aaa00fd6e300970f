"""A blob's layers unpacked into one piece of memory, for a tier that is asked for them often. Knows no medium."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from store.blob import Blob, Head
from store.codec.decode import layers_of
from store.codec.frame import turned_layer
from store.reader import Layers
from store.record import Array, Codes, LayerKV, PackedLayer, PackedTensor, PackedTile, Scales

Allocate = Callable[[int], NDArray[np.uint8]]  # memory of at least so many bytes, free again with its last view

_ALIGNED = 64  # bytes: where each array begins
_ARRAY_BYTES = 320  # of Python's objects around an array
_LAYER_BYTES = 850  # and around a layer in codes

Number = TypeVar("Number", bound=np.generic)


def allocate(nbytes: int) -> NDArray[np.uint8]:
    """Ordinary memory."""
    return np.empty(nbytes, np.uint8)


@dataclass(frozen=True, slots=True)
class UnpackedBlob:
    """All of a blob's layers, for reading alone; `nbytes` is all the memory that they take."""

    head: Head
    head_bytes: bytes
    layers: Layers
    nbytes: int


def unpacked(blob: Blob, allocate: Allocate | None = None) -> UnpackedBlob:
    """Unpacks a blob whose digests were checked. Raises `BadBlob` where it does not hold what its head says.

    With `allocate` codes and steps are arrays, in the memory that it gives; without it they stay as they lie in frames.
    """
    layers = layers_of(blob)
    packed = sum(isinstance(layer, PackedLayer) for layer in layers)

    def around(arrays: int) -> int:
        return len(blob.head_bytes) + _ARRAY_BYTES * arrays + _LAYER_BYTES * packed

    if allocate is None:
        kept = tuple(layer and _as_it_lies(layer) for layer in layers)
        held = [array for layer in kept if layer for array in _held(layer)]
        for array in held:
            array.flags.writeable = False
        return UnpackedBlob(blob.head, blob.head_bytes, kept, sum(array.nbytes for array in held) + around(len(held)))
    arrays = [array for layer in layers if layer for array in _arrays(layer)]
    memory = _Memory(allocate(sum(-(-array.nbytes // _ALIGNED) * _ALIGNED for array in arrays)))
    moved = tuple(layer and memory.moved(layer) for layer in layers)
    return UnpackedBlob(blob.head, blob.head_bytes, moved, memory.nbytes + around(len(arrays)))


def _as_it_lies(layer: LayerKV | PackedLayer) -> LayerKV | PackedLayer:
    return turned_layer(layer) if isinstance(layer, PackedLayer) else layer


def _held(layer: LayerKV | PackedLayer) -> Iterator[Array | Codes | Scales]:
    """The arrays that a layer keeps alive."""
    if isinstance(layer, PackedLayer) and layer.framed:
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


class _Memory:
    """One piece of memory that arrays move into, one behind the other."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.nbytes = memory.nbytes
        self._memory = memory
        self._used = 0

    def moved(self, layer: LayerKV | PackedLayer) -> LayerKV | PackedLayer:
        """The layer with its arrays in here."""
        if isinstance(layer, LayerKV):
            return LayerKV(self._array(layer.keys), self._array(layer.values))
        tiles = (PackedTile(tile.start, self._tensor(tile.keys), self._tensor(tile.values)) for tile in layer.tiles)
        return PackedLayer.of(tuple(tiles))

    def _tensor(self, tensor: PackedTensor) -> PackedTensor:
        centers = None if tensor.centers is None else self._array(tensor.centers)
        codes = self._array(tensor.codes.transpose(0, 2, 1)).transpose(0, 2, 1)  # as whoever makes numbers turns them
        return PackedTensor(codes, self._array(tensor.scales), tensor.bits, tensor.tokens, centers)

    def _array(self, array: NDArray[Number]) -> NDArray[Number]:
        place: NDArray[Number] = (
            self._memory[self._used : self._used + array.nbytes].view(array.dtype).reshape(array.shape)
        )
        place[...] = array
        place.flags.writeable = False
        self._used += -(-array.nbytes // _ALIGNED) * _ALIGNED
        return place
