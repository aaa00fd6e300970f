"""BM25 over a catalog's words: an approximate score by the rarest words picks candidates, all words rank their texts.

Words that stand nearly everywhere tell little and cost most. So passages are chosen by which of the rarest words they
hold, as many words as `ROWS` allows, and the most promising are scored by all words, read from the text. Where that
finds too little, as behind a narrow filter, no word is left out.
"""

import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from retriever.catalog.connection import Bodies, CatalogConnection
from retriever.catalog.postings import Places, Postings, weighed
from retriever.catalog.query_terms import query_terms, terms
from retriever.catalog.rows import passages
from retriever.filter_condition import EVERYTHING, LISTED, FilterCondition, listed
from retriever.types import Passage, WordMatch

K1, B = 1.2, 0.75
ROWS = 250_000  # that the words which choose candidates may have together
SCORED = 300  # candidates that are scored by all words
ASKED = 1000  # words of a query that count, the first ones: each is looked up by itself

_SCORED = """
SELECT p.row, p.chunk, d.title, CAST(c.text AS BLOB)
FROM passages p JOIN chunks c ON c.row = p.chunk JOIN documents d ON d.row = p.document WHERE
"""

Numbers = NDArray[np.float64]

_scoring = threading.Lock()  # all of it is Python: threads at once would but take the interpreter from each other


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a query, what it adds at most to a score but for its frequency, and in how many passages it stands."""

    term: str
    weight: float
    found: int

    def times(self, counted: Counter[str]) -> int:
        """How often the word stands in a text."""
        if not self.term.endswith("*"):
            return counted[self.term]
        return sum(times for term, times in counted.items() if term.startswith(self.term[:-1]))


@dataclass(frozen=True, slots=True)
class PassageTotals:
    """Counts over the whole catalog; `highest` is the last passage's number."""

    passages: int
    words: int
    changes: int
    highest: int


@dataclass(frozen=True, slots=True)
class LexicalSearch:
    """A search in one view. `known`: the passages that scores may tell of, where these are not all."""

    connection: CatalogConnection
    postings: Postings
    totals: PassageTotals
    known: Places | None = None

    def within(self, bound: FilterCondition) -> "LexicalSearch":
        """A search by this one's words, whose scores tell of nothing but the passages that fit."""
        if bound == EVERYTHING:
            return self
        known = self.postings.serving(self.connection, bound, changes=self.totals.changes)
        words = int(self.postings.lengths(self.connection, highest=self.totals.highest)[known].sum())
        return replace(self, totals=replace(self.totals, passages=len(known), words=words), known=known)

    def search(self, query: str, allowed: FilterCondition, *, limit: int) -> list[WordMatch]:
        """The best passages first, each chunk once; only those that have a word of the query."""
        wanted = self._words(query)
        if not wanted or limit < 1:
            return []
        among = None
        if allowed != EVERYTHING:
            among = self.postings.allowed(self.connection, allowed, changes=self.totals.changes)
        rarest = self._rarest(wanted)
        found = self._ranked(self._promising(rarest, among), wanted, limit=limit)
        if len(found) < limit and len(rarest) < len(wanted):
            found = self._ranked(self._promising(wanted, among), wanted, limit=limit)
        scores = {row: (score, share) for row, score, share in found[:limit]}
        shown = passages(self.connection, f"p.row IN {LISTED}", values=[listed(list(scores))])
        worded = [WordMatch(each, *scores[each.row]) for each in shown]
        return sorted(worded, key=lambda each: (-each.score, each.passage.row))

    def shares(self, query: str, found: Sequence[Passage]) -> dict[int, float]:
        """How much of what the query's words tell each of these passages has, up to 1, by chunk."""
        wanted = self._words(query)
        with _scoring:
            return {each.chunk: self._score(body(each.title, each.text), wanted)[1] for each in found}

    def _words(self, query: str) -> list[_Word]:
        """The words of a query: those that stand nowhere, then the rarest first."""
        count, highest, changes = self.totals.passages, self.totals.highest, self.totals.changes
        wanted: list[_Word] = []
        for term, times in islice(Counter(query_terms(query)).items(), ASKED):
            word = _Word(term, 0.0, 0)
            found = self._found(word, highest=highest, changes=changes, passages=count)
            wanted.append(
                replace(word, weight=times * math.log(1 + (count - found + 0.5) / (found + 0.5)), found=found)
            )
        return sorted(wanted, key=lambda word: word.found)

    def _found(self, word: _Word, *, highest: int, changes: int, passages: int) -> int:
        """The number of passages that a word stands in."""
        if self.known is None:
            return self.postings.count(self.connection, word.term, highest=highest, changes=changes, passages=passages)
        places = self.postings.of(self.connection, word.term, highest=highest, changes=changes)
        return int(np.isin(self.known, places, assume_unique=True).sum())

    def _rarest(self, wanted: Sequence[_Word]) -> Sequence[_Word]:
        rows = 0
        for number, word in enumerate(wanted):
            rows += word.found
            if number and rows > ROWS:
                return wanted[:number]
        return wanted

    def _promising(self, words: Sequence[_Word], among: Places | None) -> tuple[Places, Numbers]:
        """The rows where any of the words stands, and their scores as if it stood there once."""
        highest, changes = self.totals.highest, self.totals.changes
        places = [  # of words that were not found when they were counted too
            (self.postings.of(self.connection, word.term, highest=highest, changes=changes), word.weight)
            for word in words
        ]
        rows, weights = weighed(places, among=among)
        lengths = self.postings.lengths(self.connection, highest=highest)
        return rows, weights / (1 + K1 * (1 - B + B * lengths[rows] / self._mean))

    def _ranked(
        self, promising: tuple[Places, Numbers], wanted: Sequence[_Word], *, limit: int
    ) -> list[tuple[int, float, float]]:
        """Rows with score and share, best first; of a chunk the best row. More are read while too few are there."""
        best: dict[int, tuple[float, int, float]] = {}
        for rows in _best_first(*promising, step=max(SCORED, 2 * limit)):
            part = listed(rows.tolist())
            found = self.connection.execute(f"{_SCORED} p.row IN {LISTED} AND d.serving = 1", (part,)).fetchall()
            with _scoring:
                for row, chunk, title, text in found:
                    score, share = self._score(body(title, text.decode(errors="replace")), wanted)
                    if score > 0:
                        best[chunk] = max(best.get(chunk, (0.0, 0, 0.0)), (score, -row, share))
            if 2 * len(found) < len(rows):
                self.postings.clear()
            if len(best) >= limit:
                break
        return [(-row, score, share) for score, row, share in sorted(best.values(), reverse=True)]

    def _score(self, found: Sequence[str], wanted: Sequence[_Word]) -> tuple[float, float]:
        counted = Counter(found)
        length = K1 * (1 - B + B * len(found) / self._mean)
        score = told = 0.0
        for word in wanted:
            if times := word.times(counted):
                score += word.weight * times * (K1 + 1) / (times + length)
                told += word.weight
        return score, told / sum(word.weight for word in wanted) if told else 0.0

    @property
    def _mean(self) -> float:
        """The mean number of words of a passage."""
        return max(1, self.totals.words) / max(1, self.totals.passages)


def _best_first(rows: Places, scores: Numbers, *, step: int) -> Iterator[Places]:
    """Yields rows by score in growing parts, as mostly the first one is enough."""
    while len(rows):
        parted = np.argpartition(-scores, min(step, len(rows) - 1))
        yield rows[parted[:step]]
        rows, scores, step = rows[parted[step:]], scores[parted[step:]], 2 * step


def index(connection: CatalogConnection, bodies: Bodies) -> int:
    """Put passages into the table of words, each with its terms; returns the number of these."""
    connection.put_words(bodies)
    counts = [(len(found), row) for row, found in bodies]
    connection.executemany("UPDATE passages SET words = ? WHERE row = ?", counts)
    return sum(count for count, _ in counts)


def body(title: str, text: str) -> list[str]:
    """The terms of a passage: what the table holds of it."""
    return terms(f"{title}\n{text}" if title else text)
