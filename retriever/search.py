"""Search in a catalog: by words, by vectors, or both fused by rank; then reranked on request. Keeps no state.

Filters hold before anything is ranked or cut. One search sees one committed state of the catalog.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from retriever.catalog.view import CatalogView
from retriever.embedders.embedding import Embedder, Reranker
from retriever.errors import SearchError
from retriever.filter_condition import EVERYTHING, FilterCondition
from retriever.types import Passage, WordMatch
from retriever.vectors import VectorIndex

WINDOW = 10  # hits of each kind that are fused at least; else as many as are asked for
RANK = 60  # added to a rank before its reciprocal is taken, as in the paper on reciprocal rank fusion
NEAR = 1.1  # what a rank by vectors counts more than the same by words
MOST = 1000  # hits of one search

Mode = Literal["lexical", "vector", "hybrid"]


@dataclass(frozen=True, slots=True)
class Query:
    """A search request. No `mode`: hybrid where there are vectors, else lexical.

    `reranked`: so many of the best are ordered again by the reranker; 0 for none. `bound`: what the asker may know of
    at all; scores tell of nothing else. `neighbors`: so many chunks before and behind each hit come along.
    """

    text: str
    limit: int = 10
    mode: Mode | None = None
    allowed: FilterCondition = EVERYTHING
    reranked: int = 0
    bound: FilterCondition = EVERYTHING
    neighbors: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """`score` orders the hits of one search: BM25, cosine, fused ranks, or what the reranker says."""

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class Searcher:
    """`vectors`: the index and the embedder whose vectors it holds; None where nothing is embedded."""

    vectors: tuple[VectorIndex, Embedder] | None = None
    reranker: Reranker | None = None

    def search(self, view: CatalogView, query: Query) -> list[Hit]:
        """The hits, best first, each chunk once and before its neighbors. Raises SearchError, and Overtaken."""
        self._check(query)
        if not query.text.strip() or query.limit == 0:
            return []
        hits = self._found(view, replace(query, limit=max(query.limit, query.reranked)))
        hits = (self._reranked(query, hits) if query.reranked else hits)[: query.limit]
        if not query.neighbors:
            return hits
        around = with_neighbors(view, hits, before=query.neighbors, after=query.neighbors, allowed=query.allowed)
        return sorted(around, key=lambda hit: -hit.score)

    def _check(self, query: Query) -> None:
        if not 0 <= query.limit <= MOST or not 0 <= query.reranked <= MOST:
            raise SearchError(f"0 to {MOST} hits can be asked for, got {max(query.limit, query.reranked)}")
        if query.mode in ("vector", "hybrid") and not self.vectors:
            raise SearchError(f"{query.mode} search needs an embedder: name one in the settings, or search by words")
        if query.reranked and not self.reranker:
            raise SearchError("no reranker is configured: name one in the settings, or leave reranking out")

    def _mode(self, query: Query) -> Mode:
        return query.mode or ("hybrid" if self.vectors else "lexical")

    def _found(self, view: CatalogView, query: Query) -> list[Hit]:
        mode = self._mode(query)
        deep = max(WINDOW, query.limit) if mode == "hybrid" else query.limit
        words = [] if mode == "vector" else view.lexical(query.text, query.allowed, limit=deep, within=query.bound)
        if mode == "lexical":
            return [Hit(each.passage, each.score) for each in words]
        near = self._near(view, query, limit=deep)
        return fused(near, words)[: query.limit] if mode == "hybrid" else near

    def _near(self, view: CatalogView, query: Query, *, limit: int) -> list[Hit]:
        """The nearest hits. Chunks whose documents do not serve yet have vectors too: then more are asked for."""
        assert self.vectors is not None
        index, embedder = self.vectors
        vector, asked = embedder.query(query.text), limit
        while True:
            near = dict(index.search(view, vector, allowed=query.allowed, limit=asked))
            shown = view.holding(list(near), query.allowed)
            if len(shown) >= limit or len(near) < asked:
                return [Hit(passage, near[passage.chunk]) for passage in shown[:limit]]
            asked *= 2

    def _reranked(self, query: Query, hits: Sequence[Hit]) -> list[Hit]:
        """The hits in their new order; what is not reranked stays behind, in its order."""
        assert self.reranker is not None
        first, others = hits[: query.reranked], hits[query.reranked :]
        scores: Sequence[float] = self.reranker.scores(query.text, [hit.passage.text for hit in first]) if first else ()
        again = [Hit(hit.passage, float(score)) for hit, score in zip(first, scores, strict=True)]
        return [*sorted(again, key=lambda hit: -hit.score), *others]


def fused(near: Sequence[Hit], words: Sequence[WordMatch]) -> list[Hit]:
    """Reciprocal rank fusion: what stands high in both lists comes first.

    A rank by words counts as far as the words of the query stand there: the best of passages that share two common
    words with a question is no find, the one that has its rare name is.
    """
    scores: dict[int, float] = {}
    passages = {each.passage.chunk: each.passage for each in (*words, *near)}
    for rank, hit in enumerate(near, start=1):
        scores[hit.passage.chunk] = NEAR / (RANK + rank)
    for rank, found in enumerate(words, start=1):
        chunk = found.passage.chunk
        scores[chunk] = scores.get(chunk, 0.0) + found.share / (RANK + rank)
    ordered = sorted(scores, key=lambda chunk: (-scores[chunk], chunk))
    return [Hit(passages[chunk], scores[chunk]) for chunk in ordered]


def in_prompt_order(hits: Sequence[Hit]) -> list[Hit]:
    """Orders documents by their best chunk, and the chunks of one document as they stand in it."""
    best: Mapping[str, int] = {hit.passage.document: -place for place, hit in enumerate(reversed(hits))}
    return sorted(hits, key=lambda hit: (best[hit.passage.document], hit.passage.place))


def with_neighbors(
    view: CatalogView, hits: Sequence[Hit], *, before: int, after: int, allowed: FilterCondition
) -> list[Hit]:
    """The chunks around each hit that fit too, behind it and with its score; each chunk once."""
    found: dict[int, Hit] = {hit.passage.chunk: hit for hit in hits}
    for hit in hits:
        place = hit.passage.place
        first = max(0, place - before)
        limit = place + after + 1 - first
        for passage in view.passages(hit.passage.document, first=first, limit=limit, allowed=allowed):
            found.setdefault(passage.chunk, Hit(passage, hit.score))
    return list(found.values())
