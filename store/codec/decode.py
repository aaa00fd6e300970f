"""Unpacks frames (zstd, older formats) into rows and records; a head that claims too many parts or bytes is corrupt."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import zstandard
from msgspec.structs import astuple
from numpy.typing import NDArray

from store.blob import PLAIN_FORMAT, Buffer, Frame, Head, StoredShape
from store.codec.frame import MAX_FRAME_BYTES, FrameForm, Levels, Trellis, written_form
from store.codec.quantize import STEP_SIZES
from store.codec.spec import KVBits, Spec
from store.codec.version_one import VersionOne
from store.errors import BadBlob, MissReason, SpecError
from store.reader import BlobReader
from store.record import Codes, Dtype, LayerKV, Record, Tail
from store.rows import ADDRESS, TOKENS, Rows, StoredRows, address_of, no_rows, numbers_of

MAX_PARTS = 1 << 16  # of all layers, each counted with as many as any has: memory is taken for their rows

_UNPACKS_SEVERAL = "multi_decompress_to_buffer" in zstandard.backend_features  # in a call; some builds do not
_local = threading.local()  # zstd's contexts belong to one thread each


def decode(reader: BlobReader) -> Record:
    """The plain record: exact for `lossless`, else within the spec's bound. Raises `BadBlob`."""
    head = reader.head
    stored = read_rows([reader], range(len(head.shapes)))
    layers = tuple(shape and _plain(stored, layer, head=head) for layer, shape in enumerate(head.shapes))
    return Record(head.dtype, layers, head.ids_digest, Tail(head.tail_tokens, head.tail_digest))


def _plain(stored: StoredRows, layer: int, *, head: Head) -> LayerKV:
    shape = head.shapes[layer]
    assert shape is not None, f"layer {layer} keeps nothing of its own"
    parts = [
        numbers_of(row, astuple(shape), sizes=stored.sizes, dtype=head.dtype)
        for row in stored.rows[layer]
        if row[TOKENS]
    ]
    keys = np.concatenate([part.keys for part in parts], axis=1)
    return LayerKV(keys, np.concatenate([part.values for part in parts], axis=1))


def read_rows(readers: Sequence[BlobReader], layers: range, *, threads: int = 1) -> StoredRows:
    """Neighbouring layers of each record, read and unpacked together by so many threads. What lies in a frame with
    these layers is read with them. Raises `BadBlob`, or what the medium raises.
    """
    laid = [None if each.unpacked else _laid_out(each.head, layers) for each in readers]
    wanted = [
        _Wanted(reader, number, frame)
        for reader, one in zip(readers, laid, strict=True)
        if one
        for number, frame in enumerate(one.frames, one.first)
    ]
    memory, addresses = _unzipped(wanted, threads=threads) if wanted else (None, np.zeros(0, np.int64))
    held, parts, place = [memory], list[Rows](), 0
    for reader, one in zip(readers, laid, strict=True):
        if one is None:
            assert reader.unpacked is not None
            held.append(reader.unpacked.memory)
            parts.append(reader.unpacked.rows[layers.start : layers.stop])
            continue
        rows = one.rows.copy()
        rows[:, :, ADDRESS] += addresses[place : place + len(one.frames)][one.frame_of]
        parts.append(rows)
        place += len(one.frames)
    return StoredRows(held, parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), STEP_SIZES)


class _LaidFrame(NamedTuple):
    """A frame's bytes before zstd, its tokens, and the forms of the layers in it."""

    nbytes: int
    tokens: int
    forms: tuple[FrameForm, ...]


class _Laid(NamedTuple):
    """Frames from the `first` on, and the rows (L, N, R) of parts in them, were each frame at the address zero; which
    of the frames has each part.
    """

    first: int
    frames: tuple[_LaidFrame, ...]
    rows: Rows
    frame_of: NDArray[np.int64]


class _Wanted(NamedTuple):
    reader: BlobReader
    number: int
    frame: _LaidFrame


class _Lying(NamedTuple):
    """What tells how frames lie: (layer, layers, start, tokens) of those from the `first` on, and these layers' shapes,
    from that of the first frame on; `version` is of the blob's format.
    """

    codec: str
    dtype: Dtype
    version: int
    first: int
    frames: tuple[tuple[int, int, int, int], ...]
    shapes: tuple[StoredShape | None, ...]


def _laid_out(head: Head, layers: range) -> _Laid:
    """How the frames lie that have these layers, and rows of these alone. Raises `BadBlob`."""
    some = [(number, each) for number, each in enumerate(head.frames) if lies_in(each, layers)]
    frames = tuple([(each.layer, each.layers, each.start, each.tokens) for _, each in some])
    begin, end = frames[0][0], frames[-1][0] + frames[-1][1]
    try:
        found = _laid(_Lying(head.codec, head.dtype, head.format, some[0][0], frames, head.shapes[begin:end]))
    except SpecError as error:
        raise BadBlob(MissReason.NEWER_FORMAT, str(error)) from None
    if (begin, end) == (layers.start, layers.stop):
        return found
    wanted = slice(layers.start - begin, layers.stop - begin)
    return found._replace(rows=found.rows[wanted], frame_of=found.frame_of[wanted])


def lies_in(frame: Frame, layers: range) -> bool:
    """Whether a frame has any of these layers."""
    return frame.layer < layers.stop and layers.start < frame.layer + frame.layers


@lru_cache(1024)  # each chunk asks, and most lie alike
def _laid(lying: _Lying) -> _Laid:
    frames = list[_LaidFrame]()
    begin = lying.frames[0][0]
    for number, (layer, layers, _, tokens) in enumerate(lying.frames, lying.first):
        forms = [_form(lying, each) for each in range(layer - begin, layer - begin + layers)]
        nbytes = sum([form.nbytes(tokens) for form in forms if form])
        if nbytes > MAX_FRAME_BYTES:
            raise BadBlob(MissReason.CORRUPT, f"frame {number} claims {nbytes} bytes, more than {MAX_FRAME_BYTES}")
        frames.append(_LaidFrame(nbytes, tokens, tuple([form for form in forms if form])))
    return _Laid(lying.first, tuple(frames), *_rows_of(lying))


def _rows_of(lying: _Lying) -> tuple[Rows, NDArray[np.int64]]:
    """Rows of all layers' parts, and the frame that each is in."""
    begin, starts = lying.frames[0][0], [start for _, _, start, _ in lying.frames]
    place, places = 0, list[int]()  # of each frame along the tokens, among those of its layers
    for number in range(len(starts)):
        place = place + 1 if number and lying.frames[number][0] == lying.frames[number - 1][0] else 0
        places.append(place)
    if len(lying.shapes) * (max(places) + 1) > MAX_PARTS:
        raise BadBlob(MissReason.CORRUPT, f"{len(lying.shapes)} layers in up to {max(places) + 1} parts: too many")
    rows = no_rows(len(lying.shapes), max(places) + 1)
    frame_of = np.zeros(rows.shape[:2], np.int64)
    for number, (layer, layers, start, tokens) in enumerate(lying.frames):
        at = 0
        for each in range(layer - begin, layer - begin + layers):
            form = _form(lying, each)
            if form is not None:
                nbytes = form.current_nbytes(tokens)
                rows[each, places[number]] = at, nbytes, start, 0, *form.layout(tokens)
                at += nbytes
            frame_of[each, places[number]] = number
    return rows, frame_of


def _form(lying: _Lying, at: int) -> FrameForm | None:
    """How a layer is written, of the shape at this place; None for one without a cache."""
    shape, bits = lying.shapes[at], Spec.parse(lying.codec).bits(lying.frames[0][0] + at)
    form = shape and written_form(bits, shape, dtype=lying.dtype)
    if not isinstance(form, Trellis) or lying.version > PLAIN_FORMAT:
        return form
    if lying.version > 1:
        return Levels(form.bits, form.shape, lying.dtype)
    return VersionOne(KVBits(form.bits.keys, form.bits.keys), form.shape, lying.dtype)


def _unzipped(wanted: Sequence[_Wanted], *, threads: int) -> tuple[object, NDArray[np.int64]]:
    """The frames' bytes in memory, and where there each begins."""
    with wanted[0].reader.several([(each.reader, each.number) for each in wanted]) as data:
        for one, each in zip(wanted, data, strict=True):
            _check_size(each, one.frame.nbytes, number=one.number)
        is_current = all(each.reader.head.format > 1 for each in wanted)
        if _UNPACKS_SEVERAL and is_current and len(wanted) > 1:
            expected = np.array([each.frame.nbytes for each in wanted], np.uint64).tobytes()
            with suppress(zstandard.ZstdError):  # one by one, each says what is wrong with it
                found = _decompressor().multi_decompress_to_buffer(
                    [*data], decompressed_sizes=expected, threads=threads
                )
                return found, _addresses(found)
        frames = [_current(_decompressed(each, one), one) for one, each in zip(wanted, data, strict=True)]
    return frames, np.array([address_of(each) for each in frames], np.int64)


def _addresses(memory: zstandard.BufferWithSegmentsCollection) -> NDArray[np.int64]:
    """Where its segments begin."""
    addresses, begin = list[int](), 0
    for number in range(len(memory)):
        segment = memory[number]
        if not segment.offset:  # another piece begins
            begin = address_of(np.frombuffer(memoryview(segment), np.uint8))  # pyright: ignore[reportArgumentType]
        addresses.append(begin + segment.offset)
    return np.array(addresses, np.int64)


def _check_size(data: Buffer, expected: int, *, number: int) -> None:
    try:
        told = zstandard.get_frame_parameters(data).content_size
    except zstandard.ZstdError as error:
        raise BadBlob(MissReason.CORRUPT, f"frame {number}: {error}") from None
    if told != expected:
        raise BadBlob(MissReason.CORRUPT, f"frame {number} unpacks to {told} bytes, its shapes need {expected}")


def _decompressed(data: Buffer, wanted: _Wanted) -> Codes:
    try:
        found = _decompressor().decompress(data, max_output_size=wanted.frame.nbytes)
    except zstandard.ZstdError as error:
        raise BadBlob(MissReason.CORRUPT, f"frame {wanted.number}: {error}") from None
    return np.frombuffer(found, np.uint8)


def _current(data: Codes, wanted: _Wanted) -> Codes:
    """A frame's bytes as they are written today."""
    if wanted.reader.head.format > 1:
        return data
    place, found = 0, list[Codes]()
    for form in wanted.frame.forms:
        stop = place + form.nbytes(wanted.frame.tokens)
        found.append(form.current(data[place:stop], wanted.frame.tokens))
        place = stop
    return np.concatenate(found) if found else data


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_FRAME_BYTES)
    return _local.decompressor
