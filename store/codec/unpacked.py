"""A blob's layers unpacked into one piece of memory, for a tier that is asked for them often. Knows no medium."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from store.blob import Blob, Head
from store.codec.decode import read_rows
from store.reader import read
from store.record import STORAGE, Codes, Dtype, Shape
from store.rows import (
    ADDRESS,
    IN_CODES,
    IS_PINNED,
    LAYOUT_AT,
    NBYTES,
    PLAIN,
    TOKENS,
    FrameLayout,
    StoredRows,
    address_of,
    code_blocks,
    data_of,
    numbers_of,
    packed_codes,
)

_ALIGNED = 64  # bytes: where each part begins
_BLOB_BYTES = 1_000  # of Python's objects around a blob's memory

_IS_TURNED = LAYOUT_AT + FrameLayout._fields.index("is_turned")


class Memory(NamedTuple):
    """One piece, free again with the last view of it; `is_pinned`: a GPU reads it where it lies."""

    data: Codes
    is_pinned: bool = False


Allocate = Callable[[int], Memory]  # at least so many bytes


def allocate(nbytes: int) -> Memory:
    """Ordinary memory."""
    return Memory(np.empty(nbytes, np.uint8))


@dataclass(frozen=True, slots=True)
class UnpackedBlob:
    """All of a blob's layers, for reading alone; `nbytes` is all the memory that they take."""

    head: Head
    head_bytes: bytes
    stored: StoredRows
    nbytes: int


def unpacked(blob: Blob, allocate: Allocate = allocate) -> UnpackedBlob:
    """Unpacks a blob whose digests were checked, its codes turned as they are read. Raises `BadBlob` where it does not
    hold what its head says.
    """
    head = blob.head
    read_here = read_rows([read(blob)], range(len(head.shapes)))
    rows = read_here.rows.copy()
    places = (rows[:, :, NBYTES] + _ALIGNED - 1) // _ALIGNED * _ALIGNED
    ends = places.cumsum().reshape(places.shape)
    memory, is_pinned = allocate(int(ends[-1, -1]))
    begins = ends - places
    for layer, shape in enumerate(head.shapes):
        for part, row in enumerate(read_here.rows[layer]):
            if shape is not None and row[TOKENS]:
                room = memory[begins[layer, part] :][: row[NBYTES]]
                _turn(row, astuple(shape), dtype=head.dtype, out=room)
    memory.flags.writeable = False
    rows[:, :, ADDRESS] = begins + address_of(memory)
    rows[:, :, IS_PINNED], rows[:, :, _IS_TURNED] = is_pinned, 1
    nbytes = memory.nbytes + len(blob.head_bytes) + rows.nbytes + _BLOB_BYTES
    return UnpackedBlob(head, blob.head_bytes, StoredRows(memory, rows, read_here.sizes), nbytes)


def _turn(row: NDArray[np.int64], shape: Shape, *, dtype: Dtype, out: Codes) -> None:
    """Writes a part's bytes, its codes or plain numbers turned as they are read."""
    data, layout = data_of(row), FrameLayout(*row[LAYOUT_AT:].tolist())
    if layout.form == PLAIN:
        numbers, both = numbers_of(row, shape, sizes=np.zeros(0, np.float32), dtype=dtype), out.view(STORAGE[dtype])
        both[: numbers.keys.size] = numbers.keys.reshape(-1)
        both[numbers.keys.size :] = numbers.values.reshape(-1)
        return
    out[:] = data
    for _, at, block in code_blocks(layout, shape) if layout.form == IN_CODES else ():
        codes = packed_codes(data[at:], block, is_turned=False)
        out[at : at + codes.size].reshape(codes.shape)[...] = codes
