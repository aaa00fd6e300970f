"""Interfaces of embedders and rerankers; refuses blank texts and zero vectors; batches, and a cache of queries.

Vectors have unit length, so that a dot product is a cosine. A text that holds nothing but white space has no vector:
it is an error that names its place, before anything is computed.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retriever.errors import EmbeddingError

Vector = NDArray[np.float32]  # (dim,)
Vectors = NDArray[np.float32]  # (N, dim)

QUERIES = 1024  # what a cache holds: 4 MB of vectors of 1,024 numbers


class Embedder(Protocol):
    """Turns texts into vectors. Every method may be called from any thread."""

    @property
    def name(self) -> str:
        """The identity of the vectors: it changes when vectors do, and only then within a process."""
        ...

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""
        ...

    def passages(self, texts: Sequence[str]) -> Vectors:
        """(N, dim) float32, in the order of the texts. Raises EmbeddingError."""
        ...

    def query(self, text: str) -> Vector:
        """(dim,) float32. Raises EmbeddingError."""
        ...

    def tokens(self, texts: Sequence[str]) -> int | None:
        """How many tokens of passages it reads; None where its server alone knows. Raises EmbeddingError."""
        ...


class Reranker(Protocol):
    """Scores how well texts answer a question. May be called from any thread."""

    def scores(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """One finite number for each text, in their order; more is better. Raises EmbeddingError."""
        ...


def cached(embedder: Embedder) -> Embedder:
    """Wraps an embedder with a cache of the vectors of the last different queries. These are read-only."""
    return _Cached(embedder)


def checked(texts: Sequence[str]) -> list[str]:
    """The texts for an encoder: a lone surrogate, which UTF-8 cannot encode, becomes U+FFFD."""
    for place, text in enumerate(texts):
        if not text.strip():
            raise EmbeddingError(f"text {place + 1} of {len(texts)} is {text[:20]!r}: leave out what has no words")
    return [re.sub("[\ud800-\udfff]", "\ufffd", text) for text in texts]


def unit(rows: NDArray[np.floating], source: str) -> Vectors:
    """(N, dim) as float32 of unit length. A row without a direction is an error: it would match everything alike."""
    wide = np.asarray(rows, dtype=np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    bad = np.flatnonzero(~np.isfinite(lengths[:, 0]) | (lengths[:, 0] == 0.0))
    if bad.size:
        what = "zero" if lengths[bad[0], 0] == 0.0 else "not finite"
        raise EmbeddingError(f"the vector of text {bad[0] + 1} of {len(rows)} from {source} is {what}: check the model")
    return (wide / lengths).astype(np.float32)


def batches(texts: Sequence[str], *, count: int, characters: int) -> list[range]:
    """Slices of consecutive texts, at most `count`, and `characters` together. A longer text goes alone."""
    found: list[range] = []
    start = total = 0
    for place, text in enumerate(texts):
        if place > start and (place - start >= count or total + len(text) > characters):
            found.append(range(start, place))
            start, total = place, 0
        total += len(text)
    return [*found, range(start, len(texts))] if texts else []


class EmbedderAround:
    """An `Embedder` that does all as another does, but for what a class makes of it."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def dim(self) -> int:
        return self._embedder.dim

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self._embedder.passages(texts)

    def query(self, text: str) -> Vector:
        return self._embedder.query(text)

    def tokens(self, texts: Sequence[str]) -> int | None:
        return self._embedder.tokens(texts)


class _Cached(EmbedderAround):
    def __init__(self, embedder: Embedder) -> None:
        super().__init__(embedder)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Vector] = OrderedDict()  # the least recently used first

    def query(self, text: str) -> Vector:
        with self._lock:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
                return known
        vector = self._embedder.query(text).copy()  # outside the lock: a slow query must not stop the known ones
        vector.flags.writeable = False
        with self._lock:
            self._known[text] = vector
            self._known.move_to_end(text)
            while len(self._known) > QUERIES:
                self._known.popitem(last=False)
        return vector


@dataclass(slots=True)
class Embedders:
    """The embedder whose vectors are wanted, and `others`, whose vectors serve until all of those are made.

    `lacks` says why the wanted one is not there, which passes where it `is_awaited`; else it says what to do.
    """

    wanted: Embedder | None = None
    others: tuple[Embedder, ...] = ()
    lacks: str = "name one in the settings"
    is_awaited: bool = False

    @property
    def known(self) -> list[Embedder]:
        """All that are there, the wanted one first."""
        return [*([self.wanted] if self.wanted else []), *self.others]
