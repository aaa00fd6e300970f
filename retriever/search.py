"""Search by words, vectors or both: how scores are fused, reranking, neighbours, and which best hit is no find.

Filters hold before anything is ranked or cut. One search sees one committed state of the catalog.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from retriever.catalog.view import CatalogView
from retriever.embedders.embedding import Embedder, Embedders, Reranker, Vector
from retriever.embedders.nearness import nearness
from retriever.errors import SearchError
from retriever.filter_condition import EVERYTHING, FilterCondition
from retriever.types import Passage, WordMatch
from retriever.vectors import VectorIndex

WINDOW = 30  # hits of each kind that are fused at least; else as many as are asked for
BY_WORDS = 11  # what all words of a question count beside its vector, times the spread of unrelated cosines
RARE = 3  # the power of their share: a passage with half of them counts an eighth, which is what chance brings
TOLD, OF_MANY = 0.4, 10_000  # the share of what a query's words tell that a find by words alone has, among so many
MOST = 1000  # hits of one search

Mode = Literal["lexical", "vector", "hybrid"]


@dataclass(frozen=True, slots=True)
class Query:
    """A search request. No `mode`: hybrid where there are vectors, else lexical.

    `reranked`: so many of the best are ordered again by the reranker; 0 for none. `bound`: what the asker may know of
    at all; scores tell of nothing else. `neighbors`: so many chunks before and behind each hit come along.
    `floors`: those of the relevance, by collection, in the place of the fitted one.
    """

    text: str
    limit: int = 10
    mode: Mode | None = None
    allowed: FilterCondition = EVERYTHING
    reranked: int = 0
    bound: FilterCondition = EVERYTHING
    neighbors: int = 0
    floors: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Hit:
    """`score` orders the hits of one search: BM25, cosine, cosine and words together, or what the reranker says."""

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class Relevance:
    """How much the best hit has to do with the query, and what chance brings: what is not above it is no find.

    By vectors it is a cosine, with the words on top where these are searched too, and the floor is fitted for the
    embedder; by words alone it is the share of what the query's words tell.
    """

    best: float
    floor: float

    @property
    def is_found(self) -> bool:
        return self.best >= self.floor


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, best first. No `relevance` where nothing was looked for."""

    hits: list[Hit]
    relevance: Relevance | None = None


@dataclass(frozen=True, slots=True)
class Searcher:
    """`vectors`: the index and the embedder whose vectors it holds; None where nothing is embedded, or not all yet."""

    vectors: tuple[VectorIndex, Embedder] | None = None
    reranker: Reranker | None = None
    embedders: Embedders = field(default_factory=Embedders)

    def search(self, view: CatalogView, query: Query) -> Found:
        """The hits, best first, each chunk once and before its neighbors. Raises SearchError, and Overtaken."""
        self._check(view, query)
        if not query.text.strip() or query.limit == 0:
            return Found([])
        found = self._found(view, replace(query, limit=max(query.limit, query.reranked)))
        hits = (self._reranked(query, found.hits) if query.reranked else found.hits)[: query.limit]
        if query.neighbors:
            around = with_neighbors(view, hits, before=query.neighbors, after=query.neighbors, allowed=query.allowed)
            hits = sorted(around, key=lambda hit: -hit.score)
        return Found(hits, found.relevance)

    def _check(self, view: CatalogView, query: Query) -> None:
        if not 0 <= query.limit <= MOST or not 0 <= query.reranked <= MOST:
            raise SearchError(f"0 to {MOST} hits can be asked for, got {max(query.limit, query.reranked)}")
        if query.mode in ("vector", "hybrid") and not self.vectors:
            if waits := awaited(view, self.embedders, counts=query.bound == EVERYTHING):
                raise SearchError(f"{query.mode} search waits: {waits}; search by words meanwhile, or ask again later")
            raise SearchError(f"{query.mode} search needs an embedder: {self.embedders.lacks}, or search by words")
        if query.reranked and not self.reranker:
            raise SearchError("no reranker is configured: name one in the settings, or leave reranking out")

    def _mode(self, query: Query) -> Mode:
        return query.mode or ("hybrid" if self.vectors else "lexical")

    def _found(self, view: CatalogView, query: Query) -> Found:
        mode = self._mode(query)
        if mode == "lexical":
            words = _by_words(view, query, limit=query.limit)
            many = math.log(max(view.passages_within(query.bound), 1)) / math.log(OF_MANY)
            hits = [Hit(each.passage, each.score) for each in words]
            shares = [Hit(each.passage, each.share) for each in words]
            return Found(hits, _relevance(shares, query, fitted=TOLD * min(1.0, many)))
        assert self.vectors is not None
        index, embedder = self.vectors
        asked = embedder.query(query.text)
        if mode == "hybrid":
            hits = self._fused(view, query, asked=asked)
        else:
            hits = self._near(view, query, asked=asked, limit=query.limit)
        fitted = nearness(embedder).chance(index.count(view, query.allowed))
        return Found(hits, _relevance(hits, query, fitted=fitted))

    def _fused(self, view: CatalogView, query: Query, *, asked: Vector) -> list[Hit]:
        """The best by vectors and by words, each scored by both.

        The cosine orders what shares but common words with the question, as chance has it; the share of the words
        orders what has its rare ones.
        """
        assert self.vectors is not None
        _, embedder = self.vectors
        deep = max(WINDOW, query.limit)
        words, near = _by_words(view, query, limit=deep), self._near(view, query, asked=asked, limit=deep)
        cosines = {hit.passage.chunk: hit.score for hit in near}
        found = {each.passage.chunk: each.passage for each in words} | {hit.passage.chunk: hit.passage for hit in near}
        shares = {each.passage.chunk: each.share for each in words}
        others = [passage for chunk, passage in found.items() if chunk not in shares]
        shares |= view.shares(query.text, others, within=query.bound)
        vectors = view.vectors(
            [each.id for each in found.values() if each.chunk not in cosines], embedder=embedder.name
        )
        level = nearness(embedder)
        for chunk, passage in found.items():
            if chunk not in cosines:  # white space has no vector
                cosines[chunk] = float(vectors[passage.id] @ asked) if passage.id in vectors else level.apart
        scores = {chunk: cosines[chunk] + BY_WORDS * level.spread * shares[chunk] ** RARE for chunk in found}
        ordered = sorted(found, key=lambda chunk: (-scores[chunk], chunk))
        return [Hit(found[chunk], scores[chunk]) for chunk in ordered[: query.limit]]

    def _near(self, view: CatalogView, query: Query, *, asked: Vector, limit: int) -> list[Hit]:
        """The nearest hits. Chunks whose documents do not serve yet have vectors too: then more are asked for."""
        assert self.vectors is not None
        index, _ = self.vectors
        wanted = limit
        while True:
            near = dict(index.search(view, asked, allowed=query.allowed, limit=wanted))
            shown = view.holding(list(near), query.allowed)
            if len(shown) >= limit or len(near) < wanted:
                return [Hit(passage, near[passage.chunk]) for passage in shown[:limit]]
            wanted *= 2

    def _reranked(self, query: Query, hits: Sequence[Hit]) -> list[Hit]:
        """The hits in their new order; what is not reranked stays behind, in its order."""
        assert self.reranker is not None
        first, others = hits[: query.reranked], hits[query.reranked :]
        scores: Sequence[float] = self.reranker.scores(query.text, [hit.passage.text for hit in first]) if first else ()
        again = [Hit(hit.passage, float(score)) for hit, score in zip(first, scores, strict=True)]
        return [*sorted(again, key=lambda hit: -hit.score), *others]


def serves(view: CatalogView, embedder: Embedder) -> bool:
    """Whether this embedder's vectors are those that are searched."""
    return any(each.serving and each.name == embedder.name for each in view.embedders())


def awaited(view: CatalogView, embedders: Embedders, *, counts: bool) -> str:
    """What search by the wanted embedder's vectors waits for, with numbers of chunks or without; empty where it serves,
    or nobody wants it."""
    if embedders.wanted is None:
        return embedders.lacks if embedders.is_awaited else ""
    if serves(view, embedders.wanted):
        return ""
    made, chunks = (f"{each:,}" for each in (view.embedded(embedders.wanted.name), view.counts().chunks))
    return f"vectors of {made} of {chunks} chunks are made" if counts else "not all vectors are made"


def _relevance(hits: Sequence[Hit], query: Query, *, fitted: float) -> Relevance:
    """That of the hit which is furthest above the floor of its collection."""
    each = [Relevance(hit.score, query.floors.get(hit.passage.collection, fitted)) for hit in hits]
    each = each or [Relevance(0.0, min(query.floors.values(), default=fitted))]
    return max(each, key=lambda one: one.best - one.floor)


def _by_words(view: CatalogView, query: Query, *, limit: int) -> list[WordMatch]:
    return view.lexical(query.text, query.allowed, limit=limit, within=query.bound)


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
