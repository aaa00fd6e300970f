"""Two things to see at once: the built-in model answers from stored chunks, and every codec packs a chunk's cache."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from queue import Queue

import numpy as np

from blend.engine import Done, Event, Failed, Ready, Request, Token
from blend.local import LocalEngine
from blend.sampling import Sampling
from service.composition import compose_model, compose_store
from service.prompts import Titled, assemble
from service.settings import Settings, load_settings
from service.stored import Stored
from store.blob import Terms
from store.codec.decode import decode, decode_packed
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import BlobReader
from store.record import LayerKV, Record, narrow, widen

SPECS = ("lossless", "q8", "q6", "q4", "q3", "q2")
CODEC = "q4"
POLICIES = ("full", "reuse", "hybrid")
PASSAGES = (
    Titled("Code K7 stands for Belford. Nothing else was noted on that day. The captain is Corina.", "Register 12"),
    Titled("Halio lives in K7. Halio keeps a badger. Norworks was founded by the captain.", "Letter 40"),
    Titled("Norworks makes lamps. The ink is still easy to read. The next page is about Selark.", "Ledger 33"),
    Titled("It is led by Rosen. Some lamps are made by Dalware. Dalware is based in Fenhaven.", "Ledger 33"),
)
QUESTIONS = (
    "Which animal does Halio keep?",
    "Where does Halio live?",
    "Who founded Norworks?",
    "Who leads Selark?",
)
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


@dataclass(frozen=True, slots=True)
class Asked:
    """One question under one policy, from records that are packed with `q4` and kept in LMDB."""

    question: str
    policy: str
    answer: str
    first_token_ms: float
    reused: int
    recomputed: int
    prompt: int


def show_answers() -> Iterator[Asked]:
    """Ask the built-in model: from the text, from the stored chunks alone, and blended."""
    settings = load_settings().model_copy(update={"model": "builtin"})
    model = compose_model(settings)
    engine = LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint)
    with tempfile.TemporaryDirectory() as folder, compose_store(Settings(store=f"lmdb://{folder}/store")) as store:
        try:
            frame = assemble(model.tokenizer, PASSAGES, question="")
            behind = model.fingerprint.behind(frame.prefix)
            keys = [CacheKey("demo", str(i), behind.digest, CODEC) for i in range(len(PASSAGES))]
            for record, key in zip(engine.capture(frame.prefix, frame.passages).result(), keys, strict=True):
                store.put(encode(record, key, terms=Terms(0, precomputed=True)))
            for question, policy in product(QUESTIONS, POLICIES):
                asked = assemble(model.tokenizer, PASSAGES, question=question)
                readers = [store.open(key) for key in keys]
                prompt = asked.prompt(
                    [Stored(reader, behind) if isinstance(reader, BlobReader) else None for reader in readers]
                )
                yield _ask(engine, question, request=Request(prompt, Sampling(max_tokens=16, temperature=0.0), policy))
        finally:
            engine.close()


def _ask(engine: LocalEngine, question: str, *, request: Request) -> Asked:
    events: Queue[tuple[float, Event]] = Queue()
    start = time.perf_counter()
    engine.submit(request, lambda event: events.put((time.perf_counter() - start, event)))
    answer, first, report = "", 0.0, None
    while True:
        seconds, event = events.get()
        match event:
            case Ready(report=found):
                first, report = seconds, found
            case Token(text=text):
                answer += text
            case Done(text=text):
                assert report is not None
                prompt = report.reused + report.recomputed + report.fresh
                answer = (answer + text).strip()
                return Asked(
                    question, request.policy, answer, 1000 * first, report.reused, report.recomputed, prompt
                )  # fmt: skip
            case Failed(error=error):
                raise error


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
