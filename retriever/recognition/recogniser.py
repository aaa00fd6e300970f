"""Recognises a catalog's chunks in a text. Keeps the marks of all chunks in memory and catches up with the catalog."""

import threading
from copy import copy
from dataclasses import dataclass

from retriever.catalog.view import CatalogView
from retriever.filter_condition import FilterCondition
from retriever.recognition.known_chunks import KnownChunks
from retriever.types import CatalogState, Passage
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
        self._known = KnownChunks()
        self._seen: CatalogState | None = None

    def find(self, view: CatalogView, text: str, *, allowed: FilterCondition) -> list[Recognised]:
        """Chunks of documents that serve and fit, in the order of the text. Raises Overtaken."""
        with self._guard:
            self._catch_up(view, view.state())
            known = copy(self._known)  # the present state, whatever a search with a later view adds
        holding: dict[int, Passage] = {}

        def fitting(rows: list[int]) -> set[int]:
            holding.update({passage.chunk: passage for passage in view.holding(rows, allowed)})
            return holding.keys() & set(rows)

        found = known.find(text, texts=view.texts, allowed=lambda rows: fitting(list(rows)))
        return [Recognised(match.start, match.end, holding[match.row]) for match in found]

    def _catch_up(self, view: CatalogView, state: CatalogState) -> None:
        seen = self._seen
        if seen is None or seen.catalog != state.catalog:
            self._known, seen = KnownChunks(), CatalogState(state.catalog, 0, 0, 0, 0)
        if seen.chunks > state.chunks or seen.removed > state.removed:
            raise Overtaken("another search has seen a later state of the catalog")
        entries = view.marked_after(seen.chunks)
        removed = view.removed_after(seen.removed)
        if not len(self._known):
            self._known = KnownChunks(entries)
        elif len(entries):
            self._known.add(entries)
        if len(removed):
            self._known.remove(removed.tolist())
        self._seen = state
