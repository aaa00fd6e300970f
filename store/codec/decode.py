"""Blobs to records, whole or one layer group alone. Takes frames from a reader and knows no medium."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache

import numpy as np
import zstandard

from store.blob import PLAIN_FORMAT, Blob, Buffer, Frame, Head, StoredShape
from store.codec.frame import MAX_FRAME_BYTES, LayerForm, framed_layer, framed_part, read_plain
from store.codec.frame_v1 import frame_v1_bytes, read_frame_v1
from store.codec.quantize import dequantize
from store.codec.spec import Spec
from store.errors import BadBlob, MissReason, SpecError
from store.reader import BlobReader, Fetch, Layers
from store.record import Dtype, FramedPart, LayerKV, PackedLayer, Record, Tail

_Part = LayerKV | PackedLayer | FramedPart  # a layer's tokens of one frame

_spec = lru_cache(64)(Spec.parse)
_local = threading.local()  # zstd's contexts belong to one thread each


def decode(reader: BlobReader) -> Record:
    """The plain record: exact for `lossless`, else within the spec's bound. Raises `BadBlob`."""
    head = reader.head
    groups = (read_group(reader, group) for group in range(len(head.groups)))
    layers = tuple(_plain(layer, head.dtype) for group in groups for layer in group)
    return Record(head.dtype, layers, head.ids_digest, Tail(head.tail_tokens, head.tail_digest))


def read_group(reader: BlobReader, group: int) -> Layers:
    """The layers of one group as they are kept, in layer order: plain where lossless, else codes. Raises `BadBlob`."""
    if reader.groups is not None:
        return reader.groups[group]
    return _read(reader.head, reader.numbers[group], fetch=reader.frame)


def layers_of(blob: Blob) -> list[Layers]:
    """The layers of all groups of a blob whose digests were checked. Raises `BadBlob`."""
    frames = blob.frames
    return [_read(blob.head, numbers, fetch=lambda number: nullcontext(frames[number])) for numbers in blob.head.groups]


def _read(head: Head, numbers: range, *, fetch: Fetch) -> Layers:
    """The layers of the frames of one group."""
    frame = head.frames[numbers.start]
    forms = _forms_of(head, frame)
    parts: list[list[_Part]] = [[] for _ in forms]
    for number in numbers:
        frame = head.frames[number]
        sizes = [_layer_bytes(form, frame.tokens, version=head.format) for form in forms]
        with fetch(number) as data:
            raw, place = memoryview(_decompress(data, sum(sizes), number=number)), 0
        for form, size, found in zip(forms, sizes, parts, strict=True):
            if form is not None:
                found.append(_read_layer(raw[place : place + size], form, head=head, frame=frame))
                place += size
    return [form and _join(found, form) for form, found in zip(forms, parts, strict=True)]


def _forms_of(head: Head, frame: Frame) -> tuple[LayerForm | None, ...]:
    """How each layer of a frame is laid out; None for one without a cache. Raises `BadBlob`."""
    shapes = head.shapes[frame.layer : frame.layer + frame.layers]
    try:
        return _forms(head.codec, shapes, first=frame.layer, dtype=head.dtype, has_trellis=head.format > PLAIN_FORMAT)
    except SpecError as error:
        raise BadBlob(MissReason.NEWER_FORMAT, str(error)) from None


@lru_cache(1024)  # each frame of each chunk asks, and most lie alike
def _forms(
    codec: str, shapes: Sequence[StoredShape | None], *, first: int, dtype: Dtype, has_trellis: bool
) -> tuple[LayerForm | None, ...]:
    spec = _spec(codec)
    bits = [spec.bits(number) for number in range(first, first + len(shapes))]
    return tuple(
        shape and LayerForm(each, shape, dtype, has_trellis=has_trellis)
        for each, shape in zip(bits, shapes, strict=True)
    )


@lru_cache(1024)
def _layer_bytes(form: LayerForm | None, tokens: int, *, version: int) -> int:
    if form is None:
        return 0
    return form.nbytes(tokens) if version > 1 else frame_v1_bytes(form, tokens)


def _read_layer(raw: memoryview, form: LayerForm, *, head: Head, frame: Frame) -> _Part:
    if form.bits is None:
        return read_plain(raw, form, tokens=frame.tokens)
    read = framed_part if head.format > 1 else read_frame_v1
    return read(raw, form, start=frame.start, tokens=frame.tokens)


def _decompress(data: Buffer, expected: int, *, number: int) -> bytes:
    if expected > MAX_FRAME_BYTES:
        raise BadBlob(MissReason.CORRUPT, f"frame {number} claims {expected} bytes, more than {MAX_FRAME_BYTES}")
    try:
        told = zstandard.get_frame_parameters(data).content_size
        if told != expected:
            raise BadBlob(MissReason.CORRUPT, f"frame {number} unpacks to {told} bytes, its shapes need {expected}")
        return _decompressor().decompress(data, max_output_size=expected)
    except zstandard.ZstdError as error:
        raise BadBlob(MissReason.CORRUPT, f"frame {number}: {error}") from None


def _join(parts: Sequence[_Part], form: LayerForm) -> LayerKV | PackedLayer:
    """One layer out of its parts along the tokens, which are all of one kind."""
    if framed := [part for part in parts if isinstance(part, FramedPart)]:
        return framed_layer(framed, form.shape)
    plain = [part for part in parts if isinstance(part, LayerKV)]
    if not plain:
        return PackedLayer.of(tuple(tile for part in parts if isinstance(part, PackedLayer) for tile in part.tiles))
    if len(plain) == 1:
        return plain[0]
    keys, values = [part.keys for part in plain], [part.values for part in plain]
    return LayerKV(np.concatenate(keys, axis=1), np.concatenate(values, axis=1))


def _plain(layer: LayerKV | PackedLayer | None, dtype: Dtype) -> LayerKV | None:
    if not isinstance(layer, PackedLayer):
        return layer
    tiles = layer.tiles
    return LayerKV(dequantize([tile.keys for tile in tiles], dtype), dequantize([tile.values for tile in tiles], dtype))


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_FRAME_BYTES)
    return _local.decompressor
