"""A catalog with all that follows from it: documents embedded and kept, searched, embedded anew by another embedder.

What is put is embedded first and then kept in one transaction, so that words and vectors never disagree.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from retriever.catalog.catalog import Catalog
from retriever.catalog.change import CatalogChange
from retriever.catalog.view import CatalogView
from retriever.documents import Document
from retriever.embedders.embedding import Embedder, Embedders, Reranker
from retriever.errors import SearchError
from retriever.filter_condition import EVERYTHING, FilterCondition
from retriever.recognition.recogniser import Recognised, Recogniser
from retriever.search import Found, Hit, Query, Searcher, awaited, serves
from retriever.types import Removal, Vectors
from retriever.vectors import Overtaken, VectorIndex

TOGETHER = 64  # texts that are embedded before it is told how far that came
TRIES = 50  # views, where other searches are always sooner

T = TypeVar("T")


class Embedded(NamedTuple):
    """How many of a library's chunks have their vectors."""

    made: int
    chunks: int


class Library:
    """The library of one tenant. Safe for threads. `folder` is for what can be made again from the catalog.

    `catalog` itself is for what concerns documents alone: listing, patching, deleting, collections.
    Embedders may come while it is in use. Where the catalog still serves the vectors of another than the wanted one,
    that one is needed as well, until `advance` has embedded everything anew; else search is by words meanwhile.
    `embedded`: how far `advance` has come; None where it has nothing left to do.
    """

    def __init__(
        self, catalog: Catalog, folder: Path, *, embedders: Embedders | None = None, reranker: Reranker | None = None
    ) -> None:
        self.catalog = catalog
        self.embedded: Embedded | None = None
        self._folder = folder
        self._embedders = embedders or Embedders()
        self._reranker = reranker
        self._indexes: dict[str, VectorIndex] = {}
        self._recogniser = Recogniser()
        self._advanced = 0  # the last chunk that `advance` embedded, so that it need not look from the first one on
        if wanted := self._embedders.wanted:
            with catalog.change() as change:
                change.add_embedder(wanted.name, dim=wanted.dim)

    def put(self, documents: Sequence[Document], *, collection: str) -> Removal:
        """Embed documents and make them serve."""
        vectors = self._embedded(documents, collection=collection)
        with self.catalog.change() as change:
            removal = change.put(documents, collection=collection)
            _keep(change, vectors)
        return removal

    def stage_all(
        self,
        documents: Sequence[Document],
        *,
        collection: str,
        claim: Callable[[CatalogChange, Sequence[int]], Sequence[int]] = lambda change, versions: versions,
        anew: Set[str] = frozenset(),
        on_embedded: Callable[[Embedded], None] = lambda embedded: None,
    ) -> list[int]:
        """Embed documents together and keep them, to serve later; returns the numbers of their versions.

        `claim` is called with these within the change, and says which are still wanted; the others are dropped.
        `anew`: ids of chunks that are embedded even if they were before, so that timing reveals no other document.
        `on_embedded` is told how far that came, and may raise what ends it.
        """
        vectors = self._embedded(documents, collection=collection, anew=anew, on_embedded=on_embedded)
        with self.catalog.change() as change:
            versions = [change.stage(document, collection=collection) for document in documents]
            _keep(change, vectors)
            wanted = set(claim(change, versions))
            for version in versions:
                if version not in wanted:
                    change.drop(version)
        return [version for version in versions if version in wanted]

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """The reranker's score of each text. Raises SearchError where there is none."""
        if self._reranker is None:
            raise SearchError("no reranker is configured: name one in the settings")
        return [float(score) for score in self._reranker.scores(query, texts)] if texts else []

    def search(self, query: Query) -> list[Hit]:
        """The hits, best first, each chunk once and before its neighbors."""
        return self.look_for(query).hits

    def look_for(self, query: Query) -> Found:
        """The hits of a search, best first, and how much they have to do with the query."""
        return self._seeing(lambda view: self._searcher(view).search(view, query))

    def mode(self, view: CatalogView) -> Literal["lexical", "hybrid"]:
        """How it searches where nobody says."""
        return "hybrid" if self._serving(view) else "lexical"

    def awaited(self, view: CatalogView, *, counts: bool) -> str:
        """What search by vectors of the wanted embedder waits for, with numbers of chunks or without; empty where it
        serves, or nobody wants it."""
        return awaited(view, self._embedders, counts=counts)

    def recognise(self, text: str, *, allowed: FilterCondition = EVERYTHING) -> list[Recognised]:
        """The chunks whose text stands in this one."""
        return self._seeing(lambda view: self._recogniser.find(view, text, allowed=allowed))

    def advance(self, chunks: int) -> int:
        """Embed at most so many of the chunks that the wanted embedder has not seen; returns how many it did.

        When none is left, its vectors serve, and those of all others go.
        """
        wanted = self._embedders.wanted
        if wanted is None or chunks < 1:
            return 0
        with self.catalog.view() as view:
            found = _lacking(view, wanted.name, after=self._advanced, limit=chunks)
            if not found and self._advanced:  # chunks passed before may lack a vector now
                found = _lacking(view, wanted.name, after=0, limit=chunks)
            done = not found and [each.name for each in view.embedders()] == [wanted.name] and serves(view, wanted)
            self.embedded = Embedded(view.embedded(wanted.name), view.counts().chunks) if found else None
        if done:
            return 0
        vectors = {wanted.name: _by(wanted, [(chunk, text) for _, chunk, text in found])}
        with self.catalog.change() as change:
            change.add_embedder(wanted.name, dim=wanted.dim)  # another library may have dropped it
            _keep(change, vectors)
            if not found:
                change.serve_embedder(wanted.name)
        self._advanced = found[-1][0] if found else 0
        return len(found)

    def maintain(self) -> None:
        """Purge deleted rows; rebuild the vector index if it was outgrown, and save it. May take minutes."""
        with self.catalog.change() as change:
            change.purge()
        self.catalog.empty_log()
        with self.catalog.view() as view:
            serving = self._serving(view)
        if serving:
            self._index(serving).maintain(self.catalog)

    def forget_indexes(self) -> None:
        """Let go of what was made from the catalog, files too, where it may be another one by now."""
        for index in self._indexes.values():
            index.forget()
        for file in self._folder.glob("vectors-*"):
            file.unlink(missing_ok=True)

    def _embedded(
        self,
        documents: Sequence[Document],
        *,
        collection: str,
        anew: Set[str] = frozenset(),
        on_embedded: Callable[[Embedded], None] = lambda embedded: None,
    ) -> dict[str, tuple[list[str], Vectors]]:
        """Vectors of all chunks but white space, by each embedder; none where the collection is kept without search."""
        texts = {part.id: part.text for each in documents for part in each.parts if part.text.strip()}
        with self.catalog.view() as view:
            if collection in view.unsearched():
                return {}
            known = {entry.name for entry in view.embedders()}
            wanted = [each for each in self._embedders.known if each.name in known]
            shared = [chunk for chunk in texts if chunk not in anew]
            has = {each.name: view.vectors(shared, embedder=each.name) for each in wanted}
        return {each.name: _completed(each, texts, has=has[each.name], on_embedded=on_embedded) for each in wanted}

    def _serving(self, view: CatalogView) -> Embedder | None:
        return next((each for each in self._embedders.known if serves(view, each)), None)

    def _searcher(self, view: CatalogView) -> Searcher:
        serving = self._serving(view)
        return Searcher((self._index(serving), serving) if serving else None, self._reranker, self._embedders)

    def _index(self, embedder: Embedder) -> VectorIndex:
        if embedder.name not in self._indexes:
            fresh = VectorIndex(self._folder, embedder=embedder.name, dim=embedder.dim)
            self._indexes.setdefault(embedder.name, fresh)  # another thread may have been faster
        return self._indexes[embedder.name]

    def _seeing(self, look: Callable[[CatalogView], T]) -> T:
        for _ in range(TRIES):
            with self.catalog.view() as view:
                try:
                    return look(view)
                except Overtaken:
                    continue
        raise SearchError("the catalog changes faster than it can be searched: try again")


def _lacking(view: CatalogView, embedder: str, *, after: int, limit: int) -> list[tuple[int, str, str]]:
    """The chunks behind a row that lack a vector and should have one, so not those of white space."""
    while found := view.without_vector(after, embedder=embedder, limit=limit):
        if told := [each for each in found if each[2].strip()]:
            return told
        after = found[-1][0]
    return []


def _by(embedder: Embedder, chunks: Sequence[tuple[str, str]]) -> tuple[list[str], Vectors]:
    return [chunk for chunk, _ in chunks], embedder.passages([text for _, text in chunks])


def _completed(
    embedder: Embedder,
    texts: Mapping[str, str],
    *,
    has: Mapping[str, Vectors],
    on_embedded: Callable[[Embedded], None],
) -> tuple[list[str], Vectors]:
    """Ids and vectors of all texts. Those that the catalog has are kept again: their chunks may go and come back."""
    lacking = [chunk for chunk in texts if chunk not in has]
    rows = [row[None] for row in has.values()]
    for start in range(0, len(lacking), TOGETHER):
        on_embedded(Embedded(len(has) + start, len(texts)))
        rows.append(embedder.passages([texts[chunk] for chunk in lacking[start : start + TOGETHER]]))
    return [*has, *lacking], np.concatenate(rows or [np.empty((0, embedder.dim), np.float32)])


def _keep(change: CatalogChange, vectors: dict[str, tuple[list[str], Vectors]]) -> None:
    for name, (ids, rows) in vectors.items():
        change.put_vectors(ids, rows, embedder=name)
