"""Prompts of drawn tokens for an engine of this process, and their chunks' records in a store. Measures nothing."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Condition

from blend.adopt.load import LoadedModel
from blend.engine.engine import Done, EngineRequest, Event, Failed, Ready, Token
from blend.engine.local_engine import LocalEngine
from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import ChunkSegment, Prompt
from service.documents.chunk_capture import tailed
from service.model.capture_context import ChunkIds
from store.blob import Terms
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import BlobReader
from store.record_source import BlobSource
from store.url import open_store

FULL, PREFIX = BlendOrder("full", 0.0), BlendOrder("prefix", 0.0)
Ids = tuple[int, ...]


class Asked:
    """A request under way: what it was told, and when. `tokens`: of its prompt."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.asked_s = tokens, time.perf_counter()
        self.ready: Ready | None = None
        self.ready_s = self.ended_s = 0.0
        self.answer, self.told_s = list[int](), list[float]()
        self._over: Done | Failed | None = None
        self._changed = Condition()

    @property
    def first_s(self) -> float:
        """The seconds to the first token."""
        return self.ready_s - self.asked_s

    @property
    def computed(self) -> int:
        """The tokens that came neither from records nor from a prompt before."""
        assert self.ready is not None
        return self.ready.report.fresh + self.ready.report.recomputed

    def hear(self, event: Event) -> None:
        """Called from the engine's thread."""
        now = time.perf_counter()
        with self._changed:
            if isinstance(event, Ready):
                self.ready, self.ready_s = event, now
            elif isinstance(event, Token):
                self.answer.append(event.id)
                self.told_s.append(now)
            elif isinstance(event, Done | Failed):
                self._over, self.ended_s = event, now
            self._changed.notify_all()

    def wait(self, holds: Callable[["Asked"], bool] = lambda asked: False) -> None:
        """Return at its end, or once it holds. Raises the error that ended the request."""
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None or holds(self))
            if isinstance(self._over, Failed):
                raise self._over.error


def ask(engine: LocalEngine, prompt: Prompt, *, order: BlendOrder, most: int = 1, session: str = "") -> Asked:
    """Hands a prompt in, for an answer of `most` tokens."""
    asked = Asked(len(prompt.ids))
    sampling = Sampling(max_tokens=most, ignore_eos=True)
    engine.submit(EngineRequest(prompt, sampling, order, session=session), asked.hear)
    return asked


def open_loop(asks: Sequence[Callable[[], Asked]], gaps: Sequence[float]) -> list[Asked]:
    """Asks each so many seconds behind the one before, whether that is answered or not; returns when all are."""
    due, asked = time.perf_counter(), list[Asked]()
    for each, gap in zip(asks, gaps, strict=False):
        due += gap
        time.sleep(max(0.0, due - time.perf_counter()))
        asked.append(each())
    for each in asked:
        each.wait()
    return asked


def plain(ids: Sequence[int]) -> Prompt:
    """A prompt that knows no chunks."""
    return Prompt((), (), tuple(ids))


def drawn(tokens: int, chance: random.Random, *, vocabulary: int) -> list[int]:
    """Token ids by chance, of the upper half."""
    return [chance.randrange(vocabulary // 2, vocabulary) for _ in range(tokens)]


class StoredChunks:
    """Chunks whose records lie in LMDB, each opened anew for each prompt, as the service does. Closed by its maker."""

    def __init__(
        self, model: LoadedModel, engine: LocalEngine, folder: Path, *, prefix: Ids, codec: str = "q4"
    ) -> None:
        self.prefix = prefix
        self._engine, self._codec = engine, codec
        self._fingerprint = model.fingerprint.behind(prefix)
        self._store = open_store(f"lmdb://{folder}")
        self.ids = list[Ids]()

    def add(self, chunks: Sequence[Ids]) -> range:
        """Captures chunks, and returns their numbers."""
        first = len(self.ids)
        for number, (ids, record) in enumerate(
            zip(chunks, self._engine.capture(self.prefix, chunks).result(), strict=True), first
        ):
            key = self._key(number)
            self._store.put_all([encode(tailed(record, ChunkIds(ids, ())), key, terms=Terms(0, precomputed=True))])
        self._store.flush()
        self.ids += chunks
        return range(first, len(self.ids))

    def segment(self, number: int) -> ChunkSegment:
        """A chunk with its record."""
        found = self._store.open(self._key(number))
        assert isinstance(found, BlobReader), found
        return ChunkSegment(self.ids[number], BlobSource(found, self._fingerprint))

    def prompt(self, numbers: Sequence[int], question: Sequence[int]) -> Prompt:
        """Prefix, these chunks, and a question."""
        return Prompt(self.prefix, tuple(self.segment(each) for each in numbers), tuple(question))

    def text(self, numbers: Sequence[int], question: Sequence[int]) -> Prompt:
        """The same prompt as text."""
        return plain([*self.prefix, *(token for each in numbers for token in self.ids[each]), *question])

    def _key(self, number: int) -> CacheKey:
        return CacheKey("bench", str(number), "random", self._codec)

    def close(self) -> None:
        self._store.close()


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute prompts of chunks: how they are laid out, and the order to the engine."""

    order: BlendOrder
    has_records: bool

    def made(self, chunks: StoredChunks, numbers: Sequence[int], question: Sequence[int]) -> Prompt:
        return (chunks.prompt if self.has_records else chunks.text)(numbers, question)


def ways(ratio: float) -> dict[str, Way]:
    """All computed; behind the longest beginning that a prompt before it had; chunks' records, wherever they stand."""
    return {
        "full": Way(FULL, has_records=False),
        "prefix": Way(PREFIX, has_records=False),
        f"ask {100 * ratio:g} %": Way(BlendOrder("ask", ratio), has_records=True),
    }
