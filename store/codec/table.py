"""What is fitted once per model instead of stored in every blob: the mean of each channel, which a step need not cover.

A table is named by the digest of its bytes. A blob refers to it by that name, so it can never be decoded with another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from store.blob import Shape
from store.errors import BadBlob, MissReason, RecordError
from store.record import LayerKV, Record, widen

Center = NDArray[np.float32]  # (H, 1, D)


class _Layer(msgspec.Struct, frozen=True, array_like=True):
    heads: tuple[int, int]
    dims: tuple[int, int]
    keys: bytes  # float32, (H, D)
    values: bytes


@dataclass(frozen=True, slots=True)
class Table:
    """Channel means of keys and values for each layer; None where a layer has no cache of its own."""

    id: str
    layers: tuple[tuple[Center, Center] | None, ...]

    def row(self, index: int, shape: Shape) -> tuple[Center, Center] | None:
        """The centers of a layer; None where the table was fitted on other shapes."""
        row = self.layers[index] if index < len(self.layers) else None
        wanted = (shape.key_heads, 1, shape.key_dim), (shape.value_heads, 1, shape.value_dim)
        return row if row is not None and (row[0].shape, row[1].shape) == wanted else None

    @classmethod
    def parse(cls, data: bytes, table_id: str) -> Self:
        """Read what `write` wrote under this id; raises `BadBlob` when the bytes are others."""
        if _name(data) != table_id:
            raise BadBlob(MissReason.NO_TABLE, f"the bytes of table {table_id} do not have that digest")
        try:
            rows = msgspec.msgpack.decode(data, type=tuple[_Layer | None, ...])
            return cls(table_id, tuple(row and (_center(row, 0), _center(row, 1)) for row in rows))
        except (ValueError, RecursionError) as error:  # msgspec's errors and numpy's are ValueErrors too
            raise BadBlob(MissReason.NO_TABLE, f"table {table_id} does not parse: {error}") from None


def _center(row: _Layer, which: int) -> Center:
    data = row.values if which else row.keys
    heads, dim = row.heads[which], row.dims[which]
    center = np.frombuffer(data, np.float32)
    if min(heads, dim) < 1 or center.size != heads * dim or not np.isfinite(center).all():
        raise ValueError(f"{center.size} numbers for {heads} heads of {dim}, or one that is not finite")
    return center.reshape(heads, 1, dim)


def _name(data: bytes) -> str:
    return blake3(data).hexdigest(16)


def fit(records: Sequence[Record]) -> bytes:
    """The bytes of a table fitted on sample records of one model."""
    if not records:
        raise RecordError("a table is fitted on at least one record, got none")
    if len({tuple(map(_shape, record.layers)) for record in records}) > 1:
        raise RecordError("a table is fitted on records of one model, got records of different shapes")
    return msgspec.msgpack.encode([_fit_layer(records, index) for index in range(len(records[0].layers))])


def _shape(layer: LayerKV | None) -> tuple[int, ...] | None:
    return layer and (*layer.keys.shape[::2], *layer.values.shape[::2])


def _fit_layer(records: Sequence[Record], index: int) -> _Layer | None:
    if records[0].layers[index] is None:
        return None
    keys = _mean([widen(layer.keys, record.dtype) for record in records if (layer := record.layers[index])])
    values = _mean([widen(layer.values, record.dtype) for record in records if (layer := record.layers[index])])
    if not np.isfinite(keys).all() or not np.isfinite(values).all():
        raise RecordError(f"layer {index}: NaN or infinity has no mean; was the model run in a dtype that overflows?")
    heads, dims = zip(keys.shape, values.shape, strict=True)
    return _Layer(heads, dims, keys.tobytes(), values.tobytes())


def _mean(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The mean over all tokens, (H, D), summed in float64: numbers near float32's largest overflow otherwise."""
    return np.concatenate(parts, axis=1).mean(axis=1, dtype=np.float64).astype(np.float32)


def named(data: bytes) -> Table:
    """The table that `fit` wrote, with its id."""
    return Table.parse(data, _name(data))
