"""What the store makes of one chunk: every codec packs it, LMDB keeps it, and it is read back. No model is needed."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from service.composition import compose_store
from service.settings import Settings
from store.blob import Terms
from store.codec.decode import decode, decode_packed
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import BlobReader
from store.record import LayerKV, Record, narrow, widen

SPECS = ("lossless", "q8", "q6", "q4", "q3", "q2")
LAYERS, HEADS, TOKENS, DIM = 8, 8, 256, 128


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one codec made of the chunk; `read_gb_s` counts the bytes that stand unpacked in 16 bits."""

    codec: str
    nbytes: int
    ratio: float
    bits: float
    rms_error: float
    read_gb_s: float


def show_codecs() -> Iterator[Outcome]:
    """Store and read a quarter of an 8B model's cache of one chunk, once for every codec."""
    record = _record()
    with tempfile.TemporaryDirectory() as folder, compose_store(Settings(store=f"lmdb://{folder}/store")) as store:
        for spec in SPECS:
            blob = encode(record, CacheKey("demo", "chunk", "random", spec), terms=Terms(0, precomputed=True))
            store.put(blob)
            reader = store.open(blob.head.key)
            assert isinstance(reader, BlobReader), reader
            start = time.perf_counter()
            decode(reader) if spec == "lossless" else decode_packed(reader)
            seconds = time.perf_counter() - start
            ratio = record.nbytes / blob.nbytes
            yield Outcome(
                spec, blob.nbytes, ratio, 16 / ratio, _error(record, decode(reader)), record.nbytes / seconds / 1e9
            )


def _record() -> Record:
    random = np.random.default_rng(0)

    def tensor() -> np.ndarray:
        loudness = np.exp(random.standard_normal((HEADS, 1, DIM)) / 2)
        return narrow((random.standard_normal((HEADS, TOKENS, DIM)) * loudness).astype(np.float32), "bfloat16")

    return Record("bfloat16", tuple(LayerKV(tensor(), tensor()) for _ in range(LAYERS)))


def _error(wanted: Record, got: Record) -> float:
    """Root mean square error of the keys, relative to their own."""
    pairs = [(a.keys, b.keys) for a, b in zip(wanted.layers, got.layers, strict=True) if a and b]
    wide = [(widen(a, wanted.dtype), widen(b, got.dtype)) for a, b in pairs]
    wrong = sum(float(((a - b) ** 2).sum()) for a, b in wide)
    return (wrong / sum(float((a**2).sum()) for a, _ in wide)) ** 0.5
