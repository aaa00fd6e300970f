"""How fast LMDB gives its bytes back, beside memcpy in the same run, and what it costs to put them there.

python -m tests.bench.lmdb
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from store.blob import Blob, Terms
from store.codec.decode import read_rows
from store.codec.encode import encode
from store.key import CacheKey
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader
from store.record import LayerKV, Record, narrow
from store.tiers.budget import TierBudget

LAYERS, HEADS, TOKENS, DIM = 32, 8, 256, 128
BLOBS = 12
ROUNDS = 7


def median_s(run: Callable[[], object]) -> float:
    """Seconds of a call, the median of several after one that is not counted."""
    run()
    times: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def make_blobs() -> list[Blob]:
    """Chunks of 256 tokens of an 8B model's shape, 4 bits."""
    random = np.random.default_rng(0)

    def tensor() -> np.ndarray:
        return narrow(random.standard_normal((HEADS, TOKENS, DIM)).astype(np.float32), "bfloat16")

    layer = LayerKV(tensor(), tensor())
    record = Record("bfloat16", (layer,) * LAYERS)
    return [encode(record, CacheKey("t", f"{n:03}", "f", "q4"), terms=Terms(0, precomputed=True)) for n in range(BLOBS)]


def read_all(store: LmdbStore, blobs: list[Blob]) -> None:
    """Every frame of every blob, verified, not copied."""
    for blob in blobs:
        reader = store.open(blob.head.key)
        assert isinstance(reader, BlobReader), reader
        for number in range(len(reader.head.frames)):
            with reader.frame(number):
                pass


def decode_all(store: LmdbStore, blobs: list[Blob]) -> None:
    """Every blob as packed codes."""
    for blob in blobs:
        reader = store.open(blob.head.key)
        assert isinstance(reader, BlobReader), reader
        for group in reader.groups:
            read_rows([reader], group)


def put_times_s(store: LmdbStore, blobs: list[Blob]) -> list[float]:
    """Seconds of each durable put."""
    times: list[float] = []
    for blob in blobs:
        start = time.perf_counter()
        store.put(blob)
        times.append(time.perf_counter() - start)
    return times


def measure(folder: Path) -> dict[str, float]:
    """All figures, rates in GB/s of stored bytes unless named otherwise."""
    blobs = make_blobs()
    nbytes = sum(blob.nbytes for blob in blobs)
    plain = 2 * LAYERS * 2 * HEADS * TOKENS * DIM * BLOBS
    source = np.ones(nbytes, np.uint8)
    with LmdbStore(folder / "store", TierBudget()) as store:
        puts = put_times_s(store, blobs)
        return {
            "blob_mb": nbytes / BLOBS / 1e6,
            "memcpy_gb_s": nbytes / median_s(source.copy) / 1e9,
            "read_verified_gb_s": nbytes / median_s(lambda: read_all(store, blobs)) / 1e9,
            "read_to_packed_codes_gb_s_of_fp16": plain / median_s(lambda: decode_all(store, blobs)) / 1e9,
            "put_ms_p50": statistics.median(puts) * 1e3,
            "put_ms_max": max(puts) * 1e3,
            "file_bytes_per_blob_byte": store.environment.file_bytes() / nbytes,
        }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder)), indent=2))


if __name__ == "__main__":
    main()
