"""What each codec makes of real records of a model: size, error, and how fast it packs and unpacks. Knows no store."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from blend.place.placement import LayerPlaces, RowTurn
from blend.place.placements import placement
from blend.place.torch_placement import DTYPES
from store.blob import Blob, Terms
from store.codec.decode import decode, read_rows
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import read
from store.record import Array, Record, widen


@dataclass(frozen=True, slots=True)
class Sample:
    """A record, and the key under which it is stored."""

    record: Record
    key: CacheKey


@dataclass(frozen=True, slots=True)
class Packed:
    """One codec. `rms_error`: of keys and values, relative to their own size. Speeds in tokens a second.

    Packing is from arrays to a blob, on one core; unpacking is from a blob in memory to tensors on the device.
    """

    codec: str
    bytes_per_token: float
    ratio: float
    bits_per_value: float
    rms_error: float
    pack_tokens_per_s: float
    unpack_tokens_per_s: float


def packed(
    samples: Sequence[Sample],
    codecs: Sequence[str],
    *,
    repeats: int,
    device: torch.device,
) -> list[Packed]:
    """Measures the codecs in turn, round by round; one round before them warms up."""
    packing: dict[str, list[float]] = {codec: [] for codec in codecs}
    unpacking: dict[str, list[float]] = {codec: [] for codec in codecs}
    blobs: dict[str, list[Blob]] = {}
    for number in range(repeats + 1):
        for codec in codecs:
            start = time.perf_counter()
            blobs[codec] = _encoded(samples, codec)
            middle = time.perf_counter()
            _unpack(blobs[codec], device=device)
            if number:
                packing[codec].append(middle - start)
                unpacking[codec].append(time.perf_counter() - middle)
    records = [each.record for each in samples]
    return [
        _row(records, blobs[each], pack_s=median(packing[each]), unpack_s=median(unpacking[each])) for each in codecs
    ]


def _encoded(samples: Sequence[Sample], codec: str) -> list[Blob]:
    terms = Terms(0, precomputed=True)
    return [encode(each.record, replace(each.key, codec=codec), terms=terms) for each in samples]


def _unpack(blobs: Sequence[Blob], *, device: torch.device) -> None:
    """Unpacks blobs as a fuse does, layer by layer."""
    for blob in blobs:
        reader, dtype, tokens = read(blob), DTYPES[blob.head.dtype], blob.head.tokens
        placing, slots = placement(dtype, device), np.array([[0, tokens]], np.int64)
        for layers in reader.groups:
            stored = read_rows([reader], layers)
            for layer, shape in zip(layers, blob.head.shapes[layers.start : layers.stop], strict=True):
                if shape is not None:
                    keys = torch.empty(shape.key_heads, tokens, shape.key_dim, dtype=dtype, device=device)
                    values = torch.empty(shape.value_heads, tokens, shape.value_dim, dtype=dtype, device=device)
                    rows = stored.rows[layer - layers.start :][:1]
                    own = stored._replace(rows=rows)
                    placing.place(LayerPlaces([(keys, values)], own, slots, [(RowTurn(), RowTurn())]))
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _row(records: Sequence[Record], blobs: Sequence[Blob], *, pack_s: float, unpack_s: float) -> Packed:
    tokens, nbytes = sum(each.tokens for each in records), sum(each.nbytes for each in blobs)
    values = sum(array.size for record in records for array in arrays(record))
    return Packed(
        codec=blobs[0].head.codec,
        bytes_per_token=nbytes / tokens,
        ratio=sum(each.nbytes for each in records) / nbytes,
        bits_per_value=8 * nbytes / values,
        rms_error=rms_error(records, [decode(read(each)) for each in blobs]),
        pack_tokens_per_s=tokens / pack_s,
        unpack_tokens_per_s=tokens / unpack_s,
    )


def rms_error(wanted: Sequence[Record], got: Sequence[Record]) -> float:
    """The error as a root mean square, each array relative to its own size: loud layers do not hide quiet ones."""
    shares = [
        _share(widen(a, one.dtype), widen(b, other.dtype))
        for one, other in zip(wanted, got, strict=True)
        for a, b in zip(arrays(one), arrays(other), strict=True)
    ]
    return float(np.mean(shares)) ** 0.5


def _share(wanted: np.ndarray, got: np.ndarray) -> float:
    size = float(np.square(wanted, dtype=np.float64).sum())
    return float(np.square(wanted - got, dtype=np.float64).sum()) / size if size else 0.0


def arrays(record: Record) -> list[Array]:
    """Keys and values of every layer that keeps its own."""
    return [array for layer in record.layers if layer for array in (layer.keys, layer.values)]
