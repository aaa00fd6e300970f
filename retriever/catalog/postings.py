"""Keeps in memory which passages words stand in, estimated counts, passages' lengths, and what filters let through.

FTS5 needs a second for a question on a million passages, as it visits every row of every word. Rows are numbered for
good and only grow, so what was read once needs its end added, and rows that are gone are found out when they are read.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retriever.catalog.connection import CatalogConnection
from retriever.filter_condition import FilterCondition

MOST_BYTES = 128 << 20
COUNTED = 20_000  # rows of a word that are counted; of a more frequent one the number is estimated
FEW = 2_000  # rows of a word that are read again after every change, so that those that went do not count
STALE = 1.1  # an estimate is made again when the catalog has grown or shrunk by so much
KEPT = 32  # filters

Places = NDArray[np.int32]


_Known = tuple[Places, int, int]  # rows up to the second number, read when there had been so many changes


class Postings:
    """Shared by all views of a catalog. Safe for threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._words: OrderedDict[str, _Known] = OrderedDict()
        self._estimates: dict[str, tuple[int, int]] = {}
        self._filters: OrderedDict[tuple[str, FilterCondition, int], Places] = OrderedDict()
        self._lengths = np.zeros(1, np.int32)
        self._bytes = 0

    def of(self, connection: CatalogConnection, term: str, *, highest: int, changes: int) -> Places:
        """The rows up to `highest`, ascending, where the word stands; perhaps some that are gone."""
        with self._guard:
            known, last, read = self._words.get(term, (np.empty(0, np.int32), 0, 0))
        if read > changes:  # without the rows that went since this view
            return self._rows(connection, term, after=0, limit=-1)
        if read < changes and len(known) < FEW:
            known, last, read = self._rows(connection, term, after=0, limit=-1), highest, changes
        elif last < highest:
            known, last = np.append(known, self._rows(connection, term, after=last, limit=-1)), highest
            read = changes
        self._keep(term, (known, last, read))
        return known[: np.searchsorted(known, highest, "right")]

    def count(self, connection: CatalogConnection, term: str, *, highest: int, changes: int, passages: int) -> int:
        """The estimated number of passages with the word: rows come in order, the first ones tell how dense all are."""
        with self._guard:
            known, last, read = self._words.get(term, (None, 0, 0))
            estimate, when = self._estimates.get(term, (0, 0))
        if known is not None and read <= changes and last <= highest <= last * STALE:
            return min(passages, len(self.of(connection, term, highest=highest, changes=changes)))
        if when / STALE <= passages <= when * STALE:
            return min(passages, estimate)
        first = self._rows(connection, term, after=0, limit=COUNTED)
        if len(first) < COUNTED:
            self._keep(term, (first, highest, changes))
            return min(passages, len(first))
        estimate = round(len(first) * highest / int(first[-1]))
        with self._guard:
            self._estimates[term] = (estimate, passages)
        return min(passages, estimate)

    def lengths(self, connection: CatalogConnection, *, highest: int) -> Places:
        """The number of words of each passage, by row; 0 for rows that there never were."""
        with self._guard:
            known = self._lengths
        if len(known) <= highest:
            found = connection.execute("SELECT row, words FROM passages WHERE row >= ?", (len(known),)).fetchall()
            numbers = np.array(found, np.int32).reshape(-1, 2)
            grown = np.zeros(highest + 1, np.int32)
            grown[: len(known)] = known
            grown[numbers[:, 0]] = numbers[:, 1]
            with self._guard:
                self._lengths = known = max(grown, self._lengths, key=len)
        return known

    def allowed(self, connection: CatalogConnection, condition: FilterCondition, *, changes: int) -> Places:
        """The passages that a filter keeps, also of versions that do not serve."""
        query = f"SELECT row FROM passages WHERE label IN ({condition.sql})"
        return self._filtered(connection, query, condition=condition, changes=changes)

    def serving(self, connection: CatalogConnection, condition: FilterCondition, *, changes: int) -> Places:
        """The passages that a filter keeps, of what serves alone."""
        query = (
            "SELECT p.row FROM passages p JOIN documents d ON d.row = p.document "
            f"WHERE d.serving = 1 AND p.label IN ({condition.sql})"
        )
        return self._filtered(connection, query, condition=condition, changes=changes)

    def _filtered(
        self, connection: CatalogConnection, query: str, *, condition: FilterCondition, changes: int
    ) -> Places:
        key = (query, condition, changes)
        with self._guard:
            if key in self._filters:
                self._filters.move_to_end(key)
                return self._filters[key]
        rows = np.array(connection.execute(query, condition.values).fetchall(), np.int32).reshape(-1)
        with self._guard:
            self._filters[key] = rows
            if len(self._filters) > KEPT:
                self._filters.popitem(last=False)
        return rows

    def clear(self) -> None:
        """Forget the words: too much of what is known of them is gone."""
        with self._guard:
            self._words.clear()
            self._estimates.clear()
            self._bytes = 0

    def _keep(self, term: str, known: _Known) -> None:
        with self._guard:
            if term in self._words:
                self._bytes -= self._words.pop(term)[0].nbytes
            self._words[term] = known
            self._bytes += known[0].nbytes
            while self._bytes > MOST_BYTES and len(self._words) > 1:
                _, (oldest, *_) = self._words.popitem(last=False)
                self._bytes -= oldest.nbytes

    def _rows(self, connection: CatalogConnection, term: str, *, after: int, limit: int) -> Places:
        found = connection.rows_of_word(term, after=after, limit=limit)
        return np.array(found, np.int32).reshape(-1)


def weighed(words: Sequence[tuple[Places, float]], *, among: Places | None) -> tuple[Places, NDArray[np.float64]]:
    """The rows where any of the words stands, of some rows only, and the sums of the weights of those that do."""
    rows = np.concatenate([places for places, _ in words])
    weights = np.repeat([weight for _, weight in words], [len(places) for places, _ in words])
    sums = np.bincount(rows, weights, minlength=int(among.max(initial=0)) + 1 if among is not None else 0)
    found = np.flatnonzero(sums) if among is None else among[sums[among] > 0]
    return found.astype(np.int32), sums[found].astype(np.float64)
