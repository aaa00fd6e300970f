"""Stand-ins for models: vectors and scores that follow from the words of a text alone, the same in every process."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from blake3 import blake3

from retriever.catalog.query_terms import terms
from retriever.embedders.embedding import Vector, Vectors, checked
from retriever.embedders.nearness import ANSWERS
from retriever.errors import EmbeddingError

DIM = 16


class WordEmbedder:
    """The sum of one direction for each word and a little of one for the whole text: texts that share words are near.

    `seen`: the texts that it was asked for, but for those by which its nearness is measured. `refused`: a text with
    this word is an error. `meanwhile` is called before passages are embedded, once.
    """

    def __init__(self, name: str = "words", *, dim: int = DIM, refused: str = "") -> None:
        self.name = name
        self.dim = dim
        self.seen: list[str] = []
        self.refused = refused
        self.meanwhile: Callable[[], object] | None = None

    def passages(self, texts: Sequence[str]) -> Vectors:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()
        rows = [self._vector(text) for text in checked(texts)]
        self.seen += [text for text in texts if text not in ANSWERS]
        return np.stack(rows) if rows else np.zeros((0, self.dim), np.float32)

    def query(self, text: str) -> Vector:
        [known] = checked([text])
        return self._vector(known)

    def tokens(self, texts: Sequence[str]) -> int:
        return sum(len(text.split()) for text in texts)

    def _vector(self, text: str) -> Vector:
        if self.refused and self.refused in text:
            raise EmbeddingError(f"the text has {self.refused!r} in it", temporary=True)
        found = sum((_direction(f"{self.name} {word}", self.dim) for word in set(terms(text))), np.zeros(self.dim))
        found = found + 0.1 * _direction(f"{self.name} whole {text}", self.dim)
        return (found / np.linalg.norm(found)).astype(np.float32)


class Longest:
    """A reranker that likes long texts."""

    def scores(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        return [float(len(text)) for text in texts]


@lru_cache(maxsize=1 << 16)
def _direction(name: str, dim: int) -> Vector:
    seed = int.from_bytes(blake3(name.encode("utf-8", "surrogatepass")).digest(8))
    return np.random.default_rng(seed).standard_normal(dim).astype(np.float32)
