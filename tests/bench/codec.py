"""Measures the codec: sizes for every spec, and speed on one core, in memory and out of LMDB.

`python -m tests.bench.codec` prints one JSON object. `sizes` compares whole blobs with the same record in fp16: of
drawn keys and values, and of the records of the settings' model (by default the one that is built in); `lost` is the
share of the ratio at 512 tokens that 64 tokens do not reach. `speed` is of drawn records, in bytes of fp16 that go in
or come out, per second of wall time and of the thread's own CPU time, medians over `--runs`. `packed` is the way of a
store in memory: every frame verified once, unpacked by zstd, codes and scales laid out as views. `plain` goes on to
bfloat16 (H, T, D). Both drop a group of layers before they read the next, so that no run waits for fresh pages of the
kernel. `near` is the way of a tier of memory above others, from the opening to the codes; `raised` is how a blob gets
there. `alone` has the parts in the same run, in bytes of the blob's frames. `lmdb` has blobs of q4 in LMDB: every frame
verified and not copied, in stored bytes, and what durable puts take.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import numpy as np

from service.app.composition import compose_served
from service.lab.questions.suites import multihop
from service.settings import load_settings
from store.blob import Blob, Terms
from store.codec.decode import decode, read_rows
from store.codec.encode import encode
from store.codec.unpacked import unpacked
from store.errors import Miss
from store.key import CacheKey
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader, read
from store.record import LayerKV, Record, narrow
from store.tiers.budget import TierBudget
from store.tiers.memory_store import MemoryCache
from tests.bench.fetch import floors

SPECS = ("lossless", "q8", "q7", "q6", "q5", "q4", "q3", "q2")
SMALL = ("k3v2", "k2v3", "q2.7", "q2.5", "q2.4", "q2.3", "q2.2", "q2.1", "q1.9", "q1.8", "q1.7", "q1.5")
TOKENS = (64, 256, 512)
LAYERS, HEADS, DIM = 32, 8, 128
STORED = 12  # blobs in LMDB
TERMS = Terms(0, precomputed=True)

Source = Literal["normal", "channels"]
Row = dict[str, float]


def record(source: Source, tokens: int, layers: int = LAYERS) -> Record:
    """Normal numbers; `channels` gives each channel a scale of its own, a factor of e apart at one sigma."""
    random = np.random.default_rng(tokens)

    def tensor() -> np.ndarray:
        wide = random.standard_normal((HEADS, tokens, DIM), dtype=np.float32)
        if source == "channels":
            wide *= np.exp(random.standard_normal((HEADS, 1, DIM), dtype=np.float32))
        return narrow(wide, "bfloat16")

    return Record("bfloat16", tuple(LayerKV(tensor(), tensor()) for _ in range(layers)))


def pack(plain: Record, spec: str, *, chunk: str = "chunk-0123456789abcdef") -> Blob:
    return encode(plain, CacheKey("acme", chunk, "0123456789abcdef" * 2, spec), terms=TERMS)


def captured() -> dict[int, Record]:
    """Records of the settings' model by their tokens, of passages of the made-up world one behind the other."""
    model = compose_served(load_settings())
    told = (passage.text for case in multihop(seed=0, size=max(TOKENS) // 8) for passage in case.passages)
    ids = [token for text in told for token in model.ids(text) or ()]
    with closing(model.engine) as engine:
        return {tokens: engine.capture(model.prefix({}), [ids[:tokens]]).result()[0] for tokens in TOKENS}


def sizes(made: Callable[[int], Record]) -> dict[str, dict[str, object]]:
    """Spec -> what its blobs of a record that is made take at each length."""
    specs = (*SPECS, *SMALL)
    ratios: dict[str, dict[int, float]] = {spec: {} for spec in specs}
    for tokens in TOKENS:
        plain = made(tokens)
        halves = 2 * sum(layer.keys.size + layer.values.size for layer in plain.layers if layer)
        for spec in specs:
            ratios[spec][tokens] = halves / pack(plain, spec).nbytes
    return {
        spec: {
            "ratio": {str(tokens): round(ratio, 3) for tokens, ratio in found.items()},
            "bits_per_value": {str(tokens): round(16 / ratio, 3) for tokens, ratio in found.items()},
            "lost": round(1 - found[64] / found[512], 4),
        }
        for spec, found in ratios.items()
    }


def rate(work: Callable[[], object], nbytes: int, runs: int) -> Row:
    """Gigabytes per second, by the clock and by the thread's CPU time; one run before it is not counted."""
    work()
    wall: list[float] = []
    thread: list[float] = []
    for _ in range(runs):
        clock, spent = time.perf_counter(), time.thread_time()
        work()
        wall.append(time.perf_counter() - clock)
        thread.append(time.thread_time() - spent)
    return {
        "wall_gb_s": round(nbytes / statistics.median(wall) / 1e9, 3),
        "thread_gb_s": round(nbytes / statistics.median(thread) / 1e9, 3),
    }


def speed(spec: str, plain: Record, runs: int) -> dict[str, Row]:
    blob = pack(plain, spec)
    rows = {"encode": rate(lambda: pack(plain, spec), plain.nbytes, runs)}
    if spec != "lossless":
        rows["packed"] = rate(lambda: each_group(read(blob)), plain.nbytes, runs)
    rows["plain"] = rate(lambda: decode(read(blob)), plain.nbytes, runs)
    near = MemoryCache(TierBudget(lowest=False))
    near.put(blob)
    rows["near"] = rate(lambda: each_group(near.open(blob.head.key)), plain.nbytes, runs)
    rows["raised"] = rate(lambda: unpacked(blob), plain.nbytes, runs)
    return rows


def each_group(found: BlobReader | Miss) -> None:
    assert isinstance(found, BlobReader)
    for group in found.groups:
        read_rows([found], group)


def alone(plain: Record, runs: int) -> dict[str, Row]:
    """What no codec can beat: the parts by themselves, on the frames of a q4 blob."""
    blob = pack(plain, "q4")
    size = blob.head.body_bytes
    return {name: rate(work, size, runs) for name, work in floors([blob], size).items()}


def out_of_lmdb(runs: int) -> dict[str, object]:
    """Blobs of 256 tokens, each put durably by itself, then read and unpacked one after another."""
    plain = record("normal", 256)
    blobs = [pack(plain, "q4", chunk=f"{number:03}") for number in range(STORED)]
    puts, nbytes = list[float](), sum(blob.nbytes for blob in blobs)
    with TemporaryDirectory() as folder, LmdbStore(Path(folder, "store"), TierBudget()) as store:
        for blob in blobs:
            start = time.perf_counter()
            store.put(blob)
            puts.append(1e3 * (time.perf_counter() - start))

        def found() -> Iterator[BlobReader | Miss]:
            return (store.open(blob.head.key) for blob in blobs)

        return {
            "verified": rate(lambda: [*map(each_frame, found())], nbytes, runs),
            "packed": rate(lambda: [*map(each_group, found())], STORED * plain.nbytes, runs),
            "put_ms": {"p50": round(statistics.median(puts), 1), "max": round(max(puts), 1)},
            "file_bytes_per_blob_byte": round(store.environment.file_bytes() / nbytes, 3),
        }


def each_frame(found: BlobReader | Miss) -> None:
    assert isinstance(found, BlobReader)
    for number in range(len(found.head.frames)):
        with found.frame(number):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="runs of each measurement, at least 7 (default 9)")
    parser.add_argument(
        "--layers", type=int, default=8, help="layers of the record that speed is measured on (default 8)"
    )
    parser.add_argument("--only", choices=("sizes", "speed", "lmdb"), help="one part of the report (default all)")
    options = parser.parse_args()
    report: dict[str, object] = {"shape": {"layers": LAYERS, "heads": HEADS, "dim": DIM, "dtype": "bfloat16"}}
    runs = max(7, options.runs)
    if options.only in (None, "sizes"):
        drawn = {source: sizes(partial(record, source)) for source in get_args(Source)}
        report["sizes"] = {**drawn, "model": sizes(captured().__getitem__)}
    if options.only in (None, "speed"):
        plain = record("channels", 256, options.layers)
        report["speed"] = {spec: speed(spec, plain, runs) for spec in SPECS}
        report["alone"] = alone(plain, runs)
    if options.only in (None, "lmdb"):
        report["lmdb"] = out_of_lmdb(runs)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
