"""Packs records into blobs: how layers are cut into frames, zstd; refuses NaN, infinity, and a frame too large."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import zstandard

from store.blob import FORMAT, PLAIN_FORMAT, Blob, Frame, Head, StoredShape, Terms, digest, write_head
from store.codec.frame import MAX_FRAME_BYTES, FrameForm, cut_evenly, written_form
from store.codec.spec import Spec
from store.errors import RecordError
from store.key import CacheKey
from store.record import Array, Dtype, LayerKV, Record

# LMDB's file stays within 5 % of its content with values of this size, and a layer of a large model fills one.
FRAME_BYTES = 320 << 10
_OWN_BLOCK_BYTES = 512  # a smaller piece is not worth a table of frequencies
# Quantized codes repeat nothing, only their frequencies help: what a larger table finds costs more than it saves.
_ZSTD = zstandard.ZstdCompressionParameters(compression_level=1, hash_log=6)

_local = threading.local()  # zstd's contexts belong to one thread each


def encode(record: Record, key: CacheKey, *, terms: Terms) -> Blob:
    """Pack a record as `key.codec` says."""
    spec = Spec.parse(key.codec)
    _refuse_non_finite(record)
    shapes = tuple(layer and _shape(layer) for layer in record.layers)
    forms = [shape and written_form(spec.bits(layer), shape, dtype=record.dtype) for layer, shape in enumerate(shapes)]
    rows: list[Frame] = []
    frames: list[bytes] = []
    for tile in plan_tiles(forms, record.tokens):
        _refuse_oversized(forms, tile)
        data = _compress(_write_tile(record, tile, forms=forms))
        rows.append(Frame(tile.layers.start, len(tile.layers), tile.start, tile.tokens, len(data), digest(data)))
        frames.append(data)
    head = Head(
        key.tenant, key.chunk, key.fingerprint, key.codec, terms, record.dtype, record.tokens, shapes, tuple(rows),
        FORMAT if spec.has_trellis else PLAIN_FORMAT, record.ids_digest, b"", record.tail.tokens, record.tail.digest,
    )  # fmt: skip
    return Blob(head, write_head(head), tuple(frames))


@dataclass(frozen=True, slots=True)
class Tile:
    """What one frame holds: some layers, whole, or some tokens of a layer that is too large for a frame."""

    layers: range
    start: int
    tokens: int


def plan_tiles(forms: Sequence[FrameForm | None], tokens: int) -> list[Tile]:
    """Cut a record into frames of about `FRAME_BYTES`, in layer order; a layer without a cache joins its neighbour."""
    tiles: list[Tile] = []
    first, held = 0, 0
    for layer, form in enumerate(forms):
        size = form.nbytes(tokens) if form else 0
        if held and held + size > FRAME_BYTES:
            tiles += _cut(range(first, layer), tokens, size=held, forms=forms)
            first, held = layer, 0
        held += size
    return tiles + _cut(range(first, len(forms)), tokens, size=held, forms=forms)


def _cut(layers: range, tokens: int, *, size: int, forms: Sequence[FrameForm | None]) -> list[Tile]:
    """One tile, or several along the tokens where one layer alone is too large."""
    shortest = max((form.shortest for form in (forms[layer] for layer in layers) if form), default=1)
    pieces = min(-(-size // FRAME_BYTES), tokens // shortest)
    return [Tile(layers, span.start, len(span)) for span in cut_evenly(tokens, pieces)]


def _write_tile(record: Record, tile: Tile, *, forms: Sequence[FrameForm | None]) -> Iterator[bytes]:
    rows = slice(tile.start, tile.start + tile.tokens)
    for form, found in groupby(tile.layers, key=forms.__getitem__):
        layers = [layer for layer in map(record.layers.__getitem__, found) if layer is not None]
        if form is not None:
            yield from form.write([LayerKV(each.keys[:, rows], each.values[:, rows]) for each in layers])


def _refuse_oversized(forms: Sequence[FrameForm | None], tile: Tile) -> None:
    size = sum(form.nbytes(tile.tokens) for form in (forms[layer] for layer in tile.layers) if form)
    if size > MAX_FRAME_BYTES:
        raise RecordError(f"layer {tile.layers.start}: one frame takes {size} bytes, more than {MAX_FRAME_BYTES}")


def _shape(layer: LayerKV) -> StoredShape:
    keys, values = layer.keys.shape, layer.values.shape
    return StoredShape(keys[0], keys[2], values[0], values[2])


def _refuse_non_finite(record: Record) -> None:
    for index, layer in enumerate(record.layers):
        for name, array in (("keys", layer.keys), ("values", layer.values)) if layer else ():
            if not _all_finite(array, record.dtype):
                raise RecordError(
                    f"layer {index} {name}: NaN or infinity is no cache; was the model run in a dtype that overflows?"
                )


def _all_finite(array: Array, dtype: Dtype) -> bool:
    if dtype == "bfloat16":
        return int((array.view(np.uint16) & np.uint16(0x7FFF)).max()) < 0x7F80
    return bool(np.isfinite(array).all())


def _compress(pieces: Iterable[bytes]) -> bytes:
    """The pieces as one zstd frame. All but a small one are blocks of their own: kinds share no frequencies."""
    whole = list(pieces)
    stream = _compressor().compressobj(size=sum(map(len, whole)))
    out: list[bytes] = []
    open_bytes = 0  # in the block that has begun
    for piece in whole:
        if open_bytes and len(piece) >= _OWN_BLOCK_BYTES:
            out.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
            open_bytes = 0
        out.append(stream.compress(piece))
        open_bytes += len(piece)
        if open_bytes >= _OWN_BLOCK_BYTES:
            out.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
            open_bytes = 0
    return b"".join((*out, stream.flush()))


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(compression_params=_ZSTD)
    return _local.compressor
