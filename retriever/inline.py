"""Recognises a catalog's chunks in a text. Keeps the marks of all chunks in memory and catches up with the catalog."""

import threading
from copy import copy
from dataclasses import dataclass

from retriever.catalog.base import Passage, Standing
from retriever.catalog.contract.catalog import View
from retriever.filters import Condition
from retriever.known import Entries
from retriever.recognize import Known
from retriever.vectors import Overtaken


@dataclass(frozen=True, slots=True)
class Recognised:
    """The text of a chunk, without outer white space, stands from `start` to `end`, in characters."""

    start: int
    end: int
    passage: Passage


class Recogniser:
    """Recognises the chunks of one catalog. Safe for threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known = Known()
        self._seen: Standing | None = None

    def find(self, view: View, text: str, *, allowed: Condition) -> list[Recognised]:
        """Chunks of documents that serve and fit, in the order of the text. Raises Overtaken."""
        with self._guard:
            self._catch_up(view, view.standing())
            known = copy(self._known)  # as it is now, whatever a search with a later view adds to it
        holding: dict[int, Passage] = {}

        def fitting(rows: list[int]) -> set[int]:
            holding.update({passage.chunk: passage for passage in view.holding(rows, allowed)})
            return holding.keys() & set(rows)

        found = known.find(text, texts=view.texts, allowed=lambda rows: fitting(list(rows)))
        return [Recognised(match.start, match.end, holding[match.row]) for match in found]

    def _catch_up(self, view: View, standing: Standing) -> None:
        seen = self._seen
        if seen is None or seen.catalog != standing.catalog:
            self._known, seen = Known(), Standing(standing.catalog, 0, 0, 0, 0)
        if seen.chunks > standing.chunks or seen.removed > standing.removed:
            raise Overtaken("another search has seen a later state of the catalog")
        marked = view.marked_after(seen.chunks)
        entries = Entries.columns(rows=marked.chunks, heads=marked.heads, tails=marked.tails, nbytes=marked.nbytes)
        removed = view.removed_after(seen.removed)
        if not len(self._known):
            self._known = Known(entries)
        elif len(entries):
            self._known.add(entries)
        if len(removed):
            self._known.remove(removed.tolist())
        self._seen = standing
