"""Records to blobs and back. The codec is named by the key, the terms by the caller; no medium is known here."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import zstandard

from store.blob import Blob, Frame, Head, Shape, Terms, digest, write_head
from store.codec.frame import (
    KEYS,
    VALUES,
    Packing,
    cut_evenly,
    read_lossless,
    read_packed,
    write_lossless,
    write_packed,
)
from store.codec.quantize import dequantize
from store.codec.spec import Spec
from store.codec.table import Center, Table
from store.errors import BadBlob, MissReason, RecordError, SpecError
from store.key import CacheKey
from store.reader import BlobReader
from store.record import (
    Dtype,
    LayerKV,
    PackedLayer,
    PackedRecord,
    PackedTile,
    Record,
    all_finite,
)

# LMDB's file stays within 5 % of its content with values of this size, and a layer of a large model fills one.
FRAME_BYTES = 320 << 10
# No frame of ours unpacks to more; a head that says so was not written here.
MAX_FRAME_BYTES = 32 << 20
_OWN_BLOCK_BYTES = 16 << 10
_ZSTD_LEVEL = 1  # higher levels win less than 0.1 %: quantized codes repeat nothing, only their frequencies help

_local = threading.local()  # zstd's contexts belong to one thread each

T = TypeVar("T")
ReadTile = Callable[[BlobReader, "Part"], T]


def encode(record: Record, key: CacheKey, *, terms: Terms, table: Table | None = None) -> Blob:
    """Pack a record as `key.codec` says."""
    spec = Spec.parse(key.codec)
    if (table.id if table else None) != spec.table:
        raise RecordError(f"codec {spec.text!r} needs table {spec.table}, got {table.id if table else None}")
    _refuse_non_finite(record)
    packing = Packing(spec.bits, record.dtype)
    shapes = tuple(layer and _shape(layer) for layer in record.layers)
    rows: list[Frame] = []
    frames: list[bytes] = []
    for tile in plan_tiles(shapes, record.tokens, packing=packing):
        _refuse_oversized(packing, shapes, tile=tile)
        data = _compress(_write_tile(record, tile, packing=packing, table=table))
        rows.append(Frame(tile.layers.start, len(tile.layers), tile.start, tile.tokens, len(data), digest(data)))
        frames.append(data)
    head = Head(
        key.tenant, key.chunk, key.fingerprint, key.codec, terms, record.dtype, record.tokens, shapes, tuple(rows)
    )  # fmt: skip
    return Blob(head, write_head(head), tuple(frames))


def decode(reader: BlobReader) -> Record:
    """The plain record: exact for `lossless`, else within the spec's bound. Raises `BadBlob`."""
    layers = [kv for group in range(len(reader.head.groups)) for kv in decode_group(reader, group)]
    return Record(reader.head.dtype, tuple(layers))


def decode_packed(reader: BlobReader) -> PackedRecord:
    """Codes and scales of a quantized blob, nothing unpacked. Raises `BadBlob`."""
    layers = [kv for group in range(len(reader.head.groups)) for kv in packed_group(reader, group)]
    head = reader.head
    return PackedRecord(head.codec, head.dtype, head.tokens, tuple(layers))


def decode_group(reader: BlobReader, group: int) -> list[LayerKV | None]:
    """Plain keys and values of the layers of one group, in layer order."""
    if _packing(reader.head).bits is None:
        return [_join(tiles) if tiles else None for tiles in _layers(reader, group, read=_read_plain)]
    return [layer and _unpack(layer, reader.head.dtype) for layer in packed_group(reader, group)]


def packed_group(reader: BlobReader, group: int) -> list[PackedLayer | None]:
    """Codes and scales of the layers of one group, in layer order."""
    if _packing(reader.head).bits is None:
        raise RecordError("a lossless blob holds no codes: decode it plain")
    _refuse_other_table(reader)
    return [PackedLayer(tuple(tiles)) if tiles else None for tiles in _layers(reader, group, read=_read_packed)]


@dataclass(frozen=True, slots=True)
class Tile:
    """What one frame holds: some layers, whole, or some tokens of a layer that is too large for a frame."""

    layers: range
    start: int
    tokens: int


def plan_tiles(shapes: Sequence[Shape | None], tokens: int, *, packing: Packing) -> list[Tile]:
    """Cut a record into frames of about `FRAME_BYTES`, in layer order; a layer without a cache joins its neighbour."""
    tiles: list[Tile] = []
    first, held = 0, 0
    for layer, shape in enumerate(shapes):
        size = packing.layer_bytes(shape, tokens) if shape else 0
        if held and held + size > FRAME_BYTES:
            tiles += _cut(range(first, layer), tokens, size=held, packing=packing)
            first, held = layer, 0
        held += size
    return tiles + _cut(range(first, len(shapes)), tokens, size=held, packing=packing)


def _cut(layers: range, tokens: int, *, size: int, packing: Packing) -> list[Tile]:
    """One tile, or several along the tokens where one layer alone is too large."""
    pieces = min(-(-size // FRAME_BYTES), tokens // packing.shortest)
    return [Tile(layers, span.start, len(span)) for span in cut_evenly(tokens, pieces)]


def _write_tile(record: Record, tile: Tile, *, packing: Packing, table: Table | None) -> Iterator[bytes]:
    for index in tile.layers:
        layer = record.layers[index]
        if layer is None:
            continue
        key_center, value_center = _centers(table, index, layer=layer)
        for span in packing.spans(tile.tokens):
            rows = slice(tile.start + span.start, tile.start + span.stop)
            if packing.bits is None:
                yield from write_lossless(layer.keys[:, rows])
                yield from write_lossless(layer.values[:, rows])
            else:
                yield from write_packed(layer.keys[:, rows], packing, axis=KEYS, center=key_center)
                yield from write_packed(layer.values[:, rows], packing, axis=VALUES, center=value_center)


def _centers(table: Table | None, index: int, *, layer: LayerKV) -> tuple[Center | None, Center | None]:
    if table is None:
        return None, None
    row = _row(table, index, shape=_shape(layer))
    if row is None:
        raise RecordError(f"table {table.id} was fitted on another model: its layer {index} has another shape")
    return row


def _row(table: Table, index: int, *, shape: Shape) -> tuple[Center, Center] | None:
    """The centers of a layer; None where the table was fitted on other shapes."""
    row = table.layers[index] if index < len(table.layers) else None
    wanted = (shape.key_heads, 1, shape.key_dim), (shape.value_heads, 1, shape.value_dim)
    return row if row is not None and (row[0].shape, row[1].shape) == wanted else None


def _layers(reader: BlobReader, group: int, *, read: ReadTile[T]) -> list[list[T] | None]:
    """The tiles of every layer of a group; None for a layer without a cache."""
    head = reader.head
    numbers = head.groups[group]
    found: dict[int, list[T]] = {}
    for number in numbers:
        for part in _parts(reader, number):
            found.setdefault(part.layer, []).append(read(reader, part))
    frame = head.frames[numbers.start]
    return [found.get(layer) for layer in range(frame.layer, frame.layer + frame.layers)]


def _decompress(reader: BlobReader, number: int) -> bytes:
    expected = _unpacked_bytes(reader.head, number)
    with reader.frame(number) as data:
        try:
            told = zstandard.get_frame_parameters(data).content_size
            if told != expected:
                raise BadBlob(MissReason.CORRUPT, f"frame {number} unpacks to {told} bytes, its shapes need {expected}")
            return _decompressor().decompress(data, max_output_size=expected)
        except zstandard.ZstdError as error:
            raise BadBlob(MissReason.CORRUPT, f"frame {number}: {error}") from None


@dataclass(frozen=True, slots=True)
class Part:
    """One span of one layer, as it lies in a frame."""

    layer: int
    shape: Shape
    start: int
    tokens: int
    keys: memoryview
    values: memoryview


def _parts(reader: BlobReader, number: int) -> Iterator[Part]:
    head, frame = reader.head, reader.head.frames[number]
    packing = _packing(head)
    raw, position = memoryview(_decompress(reader, number)), 0
    for layer in range(frame.layer, frame.layer + frame.layers):
        shape = head.shapes[layer]
        if shape is None:
            continue
        for span in packing.spans(frame.tokens):
            key_bytes, value_bytes = packing.span_bytes(shape, len(span))
            middle, end = position + key_bytes, position + key_bytes + value_bytes
            yield Part(layer, shape, frame.start + span.start, len(span), raw[position:middle], raw[middle:end])
            position = end


def _unpacked_bytes(head: Head, number: int) -> int:
    """What the shapes need, told without a walk through the spans: a head may claim any number of tokens."""
    frame, packing = head.frames[number], _packing(head)
    size = _frame_bytes(packing, head.shapes[frame.layer : frame.layer + frame.layers], tokens=frame.tokens)
    if size > MAX_FRAME_BYTES:
        raise BadBlob(MissReason.CORRUPT, f"frame {number} claims {size} bytes, more than {MAX_FRAME_BYTES}")
    return size


def _frame_bytes(packing: Packing, shapes: Sequence[Shape | None], *, tokens: int) -> int:
    return sum(packing.layer_bytes(shape, tokens) for shape in shapes if shape)


def _packing(head: Head) -> Packing:
    try:
        return Packing(Spec.parse(head.codec).bits, head.dtype)
    except SpecError as error:
        raise BadBlob(MissReason.NEWER_FORMAT, str(error)) from None


def _refuse_other_table(reader: BlobReader) -> None:
    wanted, given = Spec.parse(reader.head.codec).table, reader.table.id if reader.table else None
    if wanted != given:
        raise BadBlob(MissReason.NO_TABLE, f"codec {reader.head.codec!r} needs table {wanted}, got {given}")


def _read_packed(reader: BlobReader, part: Part) -> PackedTile:
    packing, shape = _packing(reader.head), part.shape
    keys = read_packed(part.keys, (shape.key_heads, part.tokens, shape.key_dim), packing=packing, axis=KEYS)
    values = read_packed(part.values, (shape.value_heads, part.tokens, shape.value_dim), packing=packing, axis=VALUES)
    if reader.table is not None:
        row = _row(reader.table, part.layer, shape=shape)
        if row is None:
            raise BadBlob(MissReason.NO_TABLE, f"table {reader.table.id} has another shape in layer {part.layer}")
        keys, values = replace(keys, center=row[0]), replace(values, center=row[1])
    return PackedTile(part.start, keys, values)


def _read_plain(reader: BlobReader, part: Part) -> LayerKV:
    dtype, shape = reader.head.dtype, part.shape
    return LayerKV(
        read_lossless(part.keys, (shape.key_heads, part.tokens, shape.key_dim), dtype=dtype),
        read_lossless(part.values, (shape.value_heads, part.tokens, shape.value_dim), dtype=dtype),
    )


def _join(tiles: list[LayerKV]) -> LayerKV:
    if len(tiles) == 1:
        return tiles[0]
    keys, values = [tile.keys for tile in tiles], [tile.values for tile in tiles]
    return LayerKV(np.concatenate(keys, axis=1), np.concatenate(values, axis=1))


def _unpack(layer: PackedLayer, dtype: Dtype) -> LayerKV:
    return LayerKV(
        dequantize([tile.keys for tile in layer.tiles], dtype),
        dequantize([tile.values for tile in layer.tiles], dtype),
    )


def _refuse_oversized(packing: Packing, shapes: Sequence[Shape | None], *, tile: Tile) -> None:
    size = _frame_bytes(packing, [shapes[layer] for layer in tile.layers], tokens=tile.tokens)
    if size > MAX_FRAME_BYTES:
        raise RecordError(f"layer {tile.layers.start}: one frame takes {size} bytes, more than {MAX_FRAME_BYTES}")


def _shape(layer: LayerKV) -> Shape:
    keys, values = layer.keys.shape, layer.values.shape
    return Shape(keys[0], keys[2], values[0], values[2])


def _refuse_non_finite(record: Record) -> None:
    for index, layer in enumerate(record.layers):
        for name, array in (("keys", layer.keys), ("values", layer.values)) if layer else ():
            if not all_finite(array, record.dtype):
                raise RecordError(
                    f"layer {index} {name}: NaN or infinity is no cache; was the model run in a dtype that overflows?"
                )


def _compress(pieces: Iterable[bytes]) -> bytes:
    """One zstd frame. A large piece is a block of its own: planes of exponents and mantissas share no statistics."""
    whole = list(pieces)
    stream = _compressor().compressobj(size=sum(map(len, whole)))
    out: list[bytes] = []
    for piece in whole:
        out.append(stream.compress(piece))
        if len(piece) >= _OWN_BLOCK_BYTES:
            out.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    return b"".join((*out, stream.flush()))


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    return _local.compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_FRAME_BYTES)
    return _local.decompressor
