"""Blobs to records, whole or one layer group alone. Takes frames from a reader and knows no medium."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import zstandard

from store.blob import Head, StoredShape
from store.codec.frame import KEYS, MAX_FRAME_BYTES, VALUES, Packing, read_lossless, read_packed
from store.codec.quantize import dequantize
from store.codec.spec import Spec
from store.errors import BadBlob, MissReason, RecordError, SpecError
from store.reader import BlobReader
from store.record import Dtype, LayerKV, PackedLayer, PackedTile, Record

_local = threading.local()  # zstd's contexts belong to one thread each

T = TypeVar("T")
ReadTile = Callable[["LayerSpan"], T]


def decode(reader: BlobReader) -> Record:
    """The plain record: exact for `lossless`, else within the spec's bound. Raises `BadBlob`."""
    layers = [kv for numbers in reader.head.groups for kv in _plain(reader, numbers)]
    return Record(reader.head.dtype, tuple(layers))


def decode_group(reader: BlobReader, group: int) -> list[LayerKV | None]:
    """Plain keys and values of the layers of one group, in layer order."""
    return _plain(reader, reader.head.groups[group])


def packed_group(reader: BlobReader, group: int) -> list[PackedLayer | None]:
    """Codes and scales of the layers of one group, in layer order. Raises `BadBlob`."""
    return _packed(reader, reader.head.groups[group])


def _plain(reader: BlobReader, numbers: range) -> list[LayerKV | None]:
    if _packing(reader.head).bits is None:
        return [_join(tiles) if tiles else None for tiles in _layers(reader, numbers, read=_read_plain)]
    return [layer and _unpack(layer, reader.head.dtype) for layer in _packed(reader, numbers)]


def _packed(reader: BlobReader, numbers: range) -> list[PackedLayer | None]:
    if _packing(reader.head).bits is None:
        raise RecordError("a lossless blob holds no codes: decode it plain")
    return [PackedLayer(tuple(tiles)) if tiles else None for tiles in _layers(reader, numbers, read=_read_packed)]


def _layers(reader: BlobReader, numbers: range, *, read: ReadTile[T]) -> list[list[T] | None]:
    """The tiles of every layer in the frames of one group; None for a layer without a cache."""
    head = reader.head
    found: dict[int, list[T]] = {}
    for number in numbers:
        for part in _parts(reader, number):
            found.setdefault(part.layer, []).append(read(part))
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
class LayerSpan:
    """One span of one layer, as it lies in a frame."""

    packing: Packing
    layer: int
    shape: StoredShape
    start: int
    tokens: int
    keys: memoryview
    values: memoryview


def _parts(reader: BlobReader, number: int) -> Iterator[LayerSpan]:
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
            start, tokens = frame.start + span.start, len(span)
            yield LayerSpan(packing, layer, shape, start, tokens, raw[position:middle], raw[middle:end])
            position = end


def _unpacked_bytes(head: Head, number: int) -> int:
    """The bytes that the shapes need, without a walk through the spans: a head may claim any number of tokens."""
    frame, packing = head.frames[number], _packing(head)
    size = packing.frame_bytes(head.shapes[frame.layer : frame.layer + frame.layers], frame.tokens)
    if size > MAX_FRAME_BYTES:
        raise BadBlob(MissReason.CORRUPT, f"frame {number} claims {size} bytes, more than {MAX_FRAME_BYTES}")
    return size


def _packing(head: Head) -> Packing:
    try:
        return Packing(Spec.parse(head.codec).bits, head.dtype)
    except SpecError as error:
        raise BadBlob(MissReason.NEWER_FORMAT, str(error)) from None


def _read_packed(part: LayerSpan) -> PackedTile:
    packing, shape = part.packing, part.shape
    keys = read_packed(part.keys, (shape.key_heads, part.tokens, shape.key_dim), packing=packing, axis=KEYS)
    values = read_packed(part.values, (shape.value_heads, part.tokens, shape.value_dim), packing=packing, axis=VALUES)
    return PackedTile(part.start, keys, values)


def _read_plain(part: LayerSpan) -> LayerKV:
    dtype, shape = part.packing.dtype, part.shape
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


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_FRAME_BYTES)
    return _local.decompressor
