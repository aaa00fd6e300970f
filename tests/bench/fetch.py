"""Records into a context without a model's work: what reading, checking, unpacking, turning and placing take."""

import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import zstandard

from blend.adopt.load import LoadedModel
from blend.fuse.prompt import ChunkSegment, Prompt, PromptLayout, lay_out
from blend.fuse.record_loader import Readers, RecordLoader
from service.app.give_back_memory import keep_freed_memory
from store.blob import Blob, Buffer, Terms, digest, write_head
from store.blob_store import BlobStore
from store.codec.encode import encode
from store.codec.unpacked import Allocate, allocate
from store.key import CacheKey
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader
from store.record import LayerKV, Record, narrow
from store.record_source import BlobSource
from store.tiers.budget import TierBudget
from store.tiers.memory_store import MemoryCache
from tests.bench.model import DISTINCT, PREFIX, QUESTION, Shape, adopted, random_model, words

SHAPES = {  # what a token keeps is that of the real one, the rest small
    "0.5B": Shape(24, hidden=128, intermediate=64, heads=2, kv_heads=2, vocabulary=512),
    "8B": Shape(32, hidden=1024, intermediate=64, heads=8, kv_heads=8, vocabulary=512),
}
THREADS = (1, 2)
IN_TURN = 3
Row = dict[str, float]


def fetch(*, tokens: int, chunk: int, runs: int, device: str) -> dict[str, object]:
    """Each shape: gigabytes of 16-bit keys and values a second, out of each medium and with so many threads."""
    keep_freed_memory()  # as a service does
    return {name: _shape(shape, device, tokens=tokens, chunk=chunk, runs=runs) for name, shape in SHAPES.items()}


def _shape(shape: Shape, device: str, *, tokens: int, chunk: int, runs: int) -> dict[str, Row]:
    model = adopted(random_model(shape, dtype="bfloat16", device=device))
    blobs = _blobs(shape, chunk, tokens // chunk)
    nbytes = tokens // chunk * chunk * model.decoder.token_bytes
    with media(blobs) as (below, near):
        cases: dict[tuple[str, str], Callable[[], object]] = {
            (store.name, f"{threads} threads"): _loading(model, store, blobs, threads=threads)
            for store in (below, near)
            for threads in THREADS
        }
        alone = {("floor", name): work for name, work in floors(blobs, nbytes).items()}
        rates = _rates({**cases, **alone}, nbytes, runs)
    found: dict[str, Row] = {}
    for (medium, case), rate in rates.items():
        found.setdefault(medium, {})[case] = round(rate, 3)
    for medium in (below.name, near.name):
        found[medium]["two by one"] = round(found[medium]["2 threads"] / found[medium]["1 threads"], 2)
    return found


@contextmanager
def media(blobs: Sequence[Blob], allocate: Allocate = allocate) -> Generator[tuple[BlobStore, BlobStore]]:
    """LMDB and the tier in memory, with all blobs in both."""
    with (
        TemporaryDirectory() as folder,
        LmdbStore(Path(folder)) as below,
        MemoryCache(TierBudget(lowest=False), allocate) as near,
    ):
        below.put_all(blobs)
        for blob in blobs:
            near.put(blob)
        yield below, near


def _blobs(shape: Shape, chunk: int, count: int) -> list[Blob]:
    """A few that are drawn, each under several names."""
    random = np.random.default_rng(0)

    def tensor() -> np.ndarray:
        drawn = random.standard_normal((shape.kv_heads, chunk, shape.hidden // shape.heads), dtype=np.float32)
        return narrow(drawn, "bfloat16")

    def drawn() -> Blob:
        record = Record("bfloat16", tuple(LayerKV(tensor(), tensor()) for _ in range(shape.layers)))
        return encode(record, CacheKey("bench", "drawn", "random", "q4"), terms=Terms(0, precomputed=True))

    return named([drawn() for _ in range(min(DISTINCT, count))], count)


def named(some: Sequence[Blob], count: int) -> list[Blob]:
    """So many blobs: each of some under several names."""
    heads = [msgspec.structs.replace(some[number % len(some)].head, chunk=str(number)) for number in range(count)]
    return [Blob(head, write_head(head), some[number % len(some)].frames) for number, head in enumerate(heads)]


def _loading(model: LoadedModel, store: BlobStore, blobs: Sequence[Blob], *, threads: int) -> Callable[[], object]:
    """From the opening of the blobs to the last record in the context, whose memory is there already."""
    decoder, readers = model.decoder, Readers(threads)
    tokens = blobs[0].head.tokens
    texts = [words(tokens, number) for number in range(len(blobs))]
    prefix, question = words(PREFIX, 1), words(QUESTION, 2)
    context = decoder.context(PREFIX + QUESTION + tokens * len(blobs))
    decoder.prepare(context.capacity)

    def layout() -> PromptLayout:
        found = [store.open(blob.head.key) for blob in blobs]
        sources = [BlobSource(each, model.fingerprint) for each in found if isinstance(each, BlobReader)]
        segments = tuple(ChunkSegment(text, source) for text, source in zip(texts, sources, strict=True))
        prompt = Prompt(prefix, segments, question)
        return lay_out(prompt, fingerprint=model.fingerprint, window=decoder.window, vocabulary=decoder.vocabulary)

    def load() -> None:
        placed = layout()
        wanted = dict.fromkeys(decoder.model_layers.keeping, placed.spans)
        loader = RecordLoader(decoder, context, wanted=wanted, readers=readers)
        for layer in reversed(decoder.model_layers.keeping):  # nobody computes meanwhile, or is woken for each layer
            loader.wait(layer)
        loader.close()
        assert loader.bytes == tokens * len(blobs) * decoder.token_bytes

    return load


def floors(blobs: Sequence[Blob], nbytes: int) -> dict[str, Callable[[], object]]:
    """What one thread takes for a part of it alone, and two, which is what a machine has to give to two."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    halves, two = (slice(nbytes // 2), slice(nbytes // 2, None)), ThreadPoolExecutor(2)
    frames = [frame for blob in blobs for frame in blob.frames]

    def unzip(some: Sequence[Buffer]) -> None:
        decompressor = zstandard.ZstdDecompressor()
        for frame in some:
            decompressor.decompress(frame)

    return {
        "memcpy": lambda: np.copyto(target, source),
        "memcpy, 2 threads": lambda: [*two.map(lambda half: np.copyto(target[half], source[half]), halves)],
        "digest": lambda: [digest(frame) for frame in frames],
        "zstd": lambda: unzip(frames),
        "zstd, 2 threads": lambda: [*two.map(unzip, (frames[::2], frames[1::2]))],
    }


def _rates(
    cases: Mapping[tuple[str, str], Callable[[], object]], nbytes: int, runs: int
) -> dict[tuple[str, str], float]:
    """All in turn, round by round, so that what else the machine does strikes each; the first round does not count, and
    of each turn not its first call: a core that slept takes longer to wake than some of these take.
    """
    seconds: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    for _ in range(runs + 1):
        for case, work in cases.items():
            work()
            for _ in range(IN_TURN):
                start = time.perf_counter()
                work()
                seconds[case].append(time.perf_counter() - start)
    return {case: nbytes / statistics.median(each[IN_TURN:]) / 1e9 for case, each in seconds.items()}
