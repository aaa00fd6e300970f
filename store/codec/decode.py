"""Blobs to records, whole or one layer group alone. Takes frames from a reader and knows no medium."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import zstandard
from msgspec.structs import astuple
from numpy.typing import NDArray

from store.blob import PLAIN_FORMAT, Blob, Buffer, Frame, Head, StoredShape
from store.codec.frame import (
    MAX_FRAME_BYTES,
    LayerForm,
    address_of,
    frame_layout,
    framed_layer,
    framed_part,
    read_plain,
    rows_of,
)
from store.codec.frame_v1 import frame_v1_bytes, read_frame_v1
from store.codec.quantize import STEP_SIZES, dequantize
from store.codec.spec import Spec
from store.errors import BadBlob, MissReason, SpecError, StoreError
from store.reader import BlobReader, Fetch, Layers
from store.record import (
    ADDRESS,
    START,
    Codes,
    Dtype,
    FramedPart,
    FrameLayout,
    LayerKV,
    PackedLayer,
    ReadFrames,
    Record,
    Tail,
)

_Part = LayerKV | PackedLayer | FramedPart  # a layer's tokens of one frame

_spec = lru_cache(64)(Spec.parse)
_UNPACKS_SEVERAL = "multi_decompress_to_buffer" in zstandard.backend_features  # in a call; some builds do not
_local = threading.local()  # zstd's contexts belong to one thread each


def decode(reader: BlobReader) -> Record:
    """The plain record: exact for `lossless`, else within the spec's bound. Raises `BadBlob`."""
    head = reader.head
    groups = (read_group(reader, group) for group in range(len(head.groups)))
    layers = tuple(_plain(layer, head.dtype) for group in groups for layer in group)
    return Record(head.dtype, layers, head.ids_digest, Tail(head.tail_tokens, head.tail_digest))


def read_group(reader: BlobReader, group: int) -> Layers:
    """The layers of one group as they are kept, in layer order: plain where lossless, else codes. Raises `BadBlob`."""
    numbers = reader.numbers[group]
    if reader.layers is not None:
        frame = reader.head.frames[numbers.start]
        return reader.layers[frame.layer : frame.layer + frame.layers]
    return _read(reader.head, numbers, fetch=reader.frame)


def read_frames(readers: Sequence[BlobReader], groups: Sequence[int], *, threads: int = 1) -> ReadFrames | None:
    """Groups of each reader, unpacked by one call with so many threads, where these are the same layers of codes in as
    many frames.

    None where any is something else, or cannot be read: `read_group` says why.
    """
    laid, frames, starts = list[_Laid](), list[tuple[BlobReader, int]](), list[int]()
    parts, forms = list[NDArray[np.int64]](), set[tuple[int, int]]()
    for group in groups if _UNPACKS_SEVERAL else ():
        before, covered = len(laid), set[tuple[int, int]]()
        for reader in readers:
            for number in reader.numbers[group]:
                frame = reader.head.frames[number]
                one = None if reader.layers is not None else _laid_out(reader.head, frame)
                if one is None or one.rows is None:  # the others are not looked at
                    return None
                laid.append(one)
                parts.append(one.rows)
                frames.append((reader, number))
                starts.append(frame.start)
                covered.add((frame.layer, frame.layers))
        if len(covered) != 1:
            return None
        forms.add((len(laid[-1].layers), len(laid) - before))
    if len(forms) != 1:
        return None
    try:
        with readers[0].several(frames) as data:
            expected = np.array([each.nbytes for each in laid], np.uint64).tobytes()
            memory = _decompressor().multi_decompress_to_buffer([*data], decompressed_sizes=expected, threads=threads)
    except (BadBlob, StoreError, zstandard.ZstdError):
        return None
    rows = np.concatenate(parts, axis=1)
    rows[:, :, ADDRESS] += _addresses(memory)
    rows[:, :, START] = starts
    shapes = {layer.form.shape for one in laid for layer in one.layers if layer is not None}
    layers, every, columns = rows.shape
    of_group = every // len(groups)
    rows = rows.reshape(layers, len(groups), of_group, columns).swapaxes(0, 1).reshape(-1, of_group, columns)
    tokens = [reader.head.tokens for reader in readers]
    return ReadFrames(memory, rows, tokens, [astuple(shape) for shape in shapes], STEP_SIZES)


def _addresses(memory: zstandard.BufferWithSegmentsCollection) -> list[int]:
    """Where its segments begin."""
    addresses, begin = list[int](), 0
    for number in range(len(memory)):
        segment = memory[number]
        if not segment.offset:  # another piece begins
            begin = _address_of(segment)
        addresses.append(begin + segment.offset)
    return addresses


def _address_of(segment: zstandard.BufferSegment) -> int:
    return address_of(np.frombuffer(memoryview(segment), np.uint8))  # pyright: ignore[reportArgumentType]


def layers_of(blob: Blob) -> Layers:
    """All layers of a blob whose digests were checked. Raises `BadBlob`."""
    frames = blob.frames
    groups = (_read(blob.head, each, fetch=lambda number: nullcontext(frames[number])) for each in blob.head.groups)
    return [layer for group in groups for layer in group]


class _FrameForm(NamedTuple):
    """What tells how a frame's layers lie, the first of which has this number; `version` is of the blob's format."""

    codec: str
    shapes: tuple[StoredShape | None, ...]
    first: int
    tokens: int
    dtype: Dtype
    version: int


class _LaidLayer(NamedTuple):
    """Where in a frame's bytes a layer lies, and how; `layout` where it is read as it lies."""

    form: LayerForm
    where: slice
    layout: FrameLayout | None


class _Laid(NamedTuple):
    """A frame's bytes before zstd, and where in them each layer lies; None for one without a cache.

    `rows` (L, 1, R) are those of the layers' parts, were the frame at the address zero; None where not all are read as
    they lie.
    """

    nbytes: int
    layers: tuple[_LaidLayer | None, ...]
    rows: NDArray[np.int64] | None


def _read(head: Head, numbers: range, *, fetch: Fetch) -> Layers:
    """The layers of the frames of one group."""
    found = list[tuple[LayerForm | None, list[_Part]]]()
    for number in numbers:
        frame = head.frames[number]
        nbytes, every, _ = _laid_out(head, frame)
        found = found or [(laid.form if laid else None, []) for laid in every]
        with fetch(number) as data:
            raw = np.frombuffer(_decompress(data, nbytes, number=number), np.uint8)
        address = address_of(raw)
        for laid, (_, parts) in zip(every, found, strict=True):
            if laid is not None:
                parts.append(_read_layer(raw[laid.where], laid, frame=frame, address=address + laid.where.start))
    return [None if form is None else _join(parts, form) for form, parts in found]


def _laid_out(head: Head, frame: Frame) -> _Laid:
    """How a frame's layers lie. Raises `BadBlob`."""
    shapes = head.shapes[frame.layer : frame.layer + frame.layers]
    try:
        return _laid(_FrameForm(head.codec, shapes, frame.layer, frame.tokens, head.dtype, head.format))
    except SpecError as error:
        raise BadBlob(MissReason.NEWER_FORMAT, str(error)) from None


@lru_cache(1024)  # each frame of each chunk asks, and most lie alike
def _laid(frame: _FrameForm) -> _Laid:
    spec, tokens, place = _spec(frame.codec), frame.tokens, 0
    found: list[_LaidLayer | None] = []
    for number, shape in enumerate(frame.shapes, frame.first):
        if shape is None:
            found.append(None)
            continue
        form = LayerForm(spec.bits(number), shape, frame.dtype, has_trellis=frame.version > PLAIN_FORMAT)
        stop = place + (form.nbytes(tokens) if frame.version > 1 else frame_v1_bytes(form, tokens))
        is_framed = form.bits is not None and frame.version > 1 and stop <= MAX_FRAME_BYTES
        found.append(_LaidLayer(form, slice(place, stop), frame_layout(form, tokens) if is_framed else None))
        place = stop
    framed = [(each.layout, each.where) for each in found if each and each.layout]
    rows = rows_of(framed) if len(framed) == len(found) else None
    return _Laid(place, tuple(found), rows)


def _read_layer(raw: Codes, laid: _LaidLayer, *, frame: Frame, address: int) -> _Part:
    if laid.layout is not None:
        return framed_part(raw, laid.layout, start=frame.start, address=address)
    if laid.form.bits is None:
        return read_plain(raw.data, laid.form, tokens=frame.tokens)
    return read_frame_v1(raw.data, laid.form, start=frame.start, tokens=frame.tokens)


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
