"""Blobs in memory to keys and values in a context: gigabytes of 16-bit numbers a second, one thread.

`python -m tests.bench.placed`. Copied into the tree of another commit it measures that one: what it calls has stood
since the first format of blobs.
"""

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from blend.fuse import record_loader
from blend.fuse.prompt import ChunkSegment, Prompt, lay_out
from service.model.blob_source import BlobSource
from store.blob import Blob, Terms
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import BlobReader, read
from store.record import LayerKV, Record, narrow
from tests.bench.model import PREFIX, QUESTION, Shape, adopted, random_model, words

SHAPES = {  # what a token keeps is that of the real one, the rest small
    "0.5B": Shape(24, hidden=128, intermediate=64, heads=2, kv_heads=2, vocabulary=512),
    "8B": Shape(32, hidden=1024, intermediate=64, heads=8, kv_heads=8, vocabulary=512),
}
CHUNKS, TOKENS, RUNS = 8, 256, 9


def placed(shape: Shape, spec: str) -> float:
    model = adopted(random_model(shape, dtype="bfloat16"))
    decoder, tokens = model.decoder, PREFIX + QUESTION + CHUNKS * TOKENS
    blobs = [_blob(shape, spec, number) for number in range(CHUNKS)]
    texts = [words(TOKENS, number) for number in range(CHUNKS)]
    readers: Any = getattr(record_loader, "Readers", ThreadPoolExecutor)(1)
    context = decoder.context(tokens)
    decoder.prepare(tokens)

    def load() -> float:
        start = time.perf_counter()
        found = [read(blob) for blob in blobs]
        sources = [BlobSource(each, model.fingerprint) for each in found if isinstance(each, BlobReader)]
        segments = tuple(ChunkSegment(text, source) for text, source in zip(texts, sources, strict=True))
        prompt = Prompt(words(PREFIX, 1), segments, words(QUESTION, 2))
        spans = lay_out(
            prompt, fingerprint=model.fingerprint, window=decoder.window, vocabulary=decoder.vocabulary
        ).spans
        assert len(spans) == CHUNKS
        loader = record_loader.RecordLoader(decoder, context, wanted=lambda layer: spans, readers=readers)
        for layer in decoder.model_layers.keeping:
            loader.wait(layer)
        loader.close()
        return loader.bytes / (time.perf_counter() - start) / 1e9

    load()
    return statistics.median(load() for _ in range(RUNS))


def _blob(shape: Shape, spec: str, number: int) -> Blob:
    random = np.random.default_rng(number)

    def tensor() -> np.ndarray:
        drawn = random.standard_normal((shape.kv_heads, TOKENS, shape.hidden // shape.heads), dtype=np.float32)
        return narrow(drawn, "bfloat16")

    record = Record("bfloat16", tuple(LayerKV(tensor(), tensor()) for _ in range(shape.layers)))
    return encode(record, CacheKey("bench", f"c{number}", "random", spec), terms=Terms(0, precomputed=True))


def main() -> None:
    torch.set_num_threads(1)
    print(
        json.dumps(
            {f"{name} {spec}": round(placed(shape, spec), 3) for name, shape in SHAPES.items() for spec in ("q4", "q8")}
        )
    )


if __name__ == "__main__":
    main()
