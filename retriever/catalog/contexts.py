"""Where chunks stand, the passages that a collection's are captured behind (fillers), and which to capture anew."""

from collections.abc import Iterator, Mapping, Sequence

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.rows import loads, sound_text
from retriever.filter_condition import LISTED, Value, listed
from retriever.types import ChunkPlace, FillerPassage, Label

_OFF = '%"in_context":false%'  # in rules as they are kept; those of earlier releases say nothing
_SOME = 16  # documents whose passages are read together

_PLACES = """
SELECT c.id, l.collection, l.metadata, d.row, d.serving, d.id, d.title, p.place, coalesce(b.id, ''), m.metadata
FROM passages p JOIN chunks c ON c.row = p.chunk JOIN documents d ON d.row = p.document JOIN labels l ON l.row = p.label
LEFT JOIN passages q ON q.document = p.document AND q.place = p.place - 1
LEFT JOIN chunks b ON b.row = q.chunk LEFT JOIN labels m ON m.row = q.label WHERE
"""
_Where = tuple[int, int | None, str, str, str, str | None]
_WHERE = """
SELECT p.chunk, q.chunk, d.title, l.collection, l.metadata, m.metadata
FROM passages p JOIN documents d ON d.row = p.document JOIN labels l ON l.row = p.label
LEFT JOIN passages q ON q.document = p.document AND q.place = p.place - 1 LEFT JOIN labels m ON m.row = q.label
"""


class ContextsView:
    """Where chunks stand, in one committed state."""

    def __init__(self, connection: CatalogConnection) -> None:
        self._connection = connection

    def places_of(self, ids: Sequence[str], *, serving: bool = False) -> list[ChunkPlace]:
        """All places of these chunks, in no order: in staged versions too, or in those alone that are `serving`."""
        which = f"c.id IN {LISTED}{' AND d.serving = 1' if serving else ''}"
        found = self._connection.execute(f"{_PLACES} {which}", (listed(ids),))
        return [_place(*each) for each in found]

    def fillers(self, collection: str) -> dict[str, tuple[FillerPassage, ...]]:
        found: dict[str, tuple[FillerPassage, ...]] = {}
        rows = "SELECT domain, document, chunk, title, excerpt FROM fillers WHERE collection = ? ORDER BY domain, place"
        for domain, document, chunk, title, excerpt in self._connection.execute(rows, (collection,)):
            passage = FillerPassage(document, chunk, title, bytes(excerpt).decode())
            found[domain] = (*found.get(domain, ()), passage)
        return found

    def moved(self, limit: int, *, swept: bool) -> list[tuple[int, str]]:
        """Chunks (row, id) that may stand in another context than when they were captured, oldest first.

        Of those that are `swept`, blobs may lack; those most used come first. The same id may come twice.
        """
        rows = f"SELECT row, id FROM moved WHERE swept {'>' if swept else '='} 0 ORDER BY swept DESC, row LIMIT ?"
        return self._connection.execute(rows, (limit,)).fetchall()


class ContextsChange(ContextsView):
    """The changes of contexts, as part of one transaction."""

    def __init__(self, connection: CatalogConnection) -> None:
        super().__init__(connection)
        self._run = connection.execute

    def in_context(self, collection: str) -> bool:
        """Whether the collection is there, and its rules do not say `"in_context": false`."""
        rows = "SELECT 1 FROM collections WHERE name = ? AND rules NOT LIKE ?"
        return self._run(rows, (collection, _OFF)).fetchone() is not None

    def keep_filler(self, collection: str, domain: str, *, passages: Sequence[FillerPassage]) -> None:
        """Make this the filler, in the place of any other; what was captured behind the other has moved."""
        self._run("DELETE FROM fillers WHERE collection = ? AND domain = ?", (collection, domain))
        self._connection.executemany(
            "INSERT INTO fillers VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (collection, domain, place, each.document, each.chunk, each.title, each.excerpt.encode())
                for place, each in enumerate(passages)
            ],
        )
        self._run(
            "INSERT INTO moved (id) SELECT DISTINCT c.id FROM labels l JOIN passages p ON p.label = l.row "
            "JOIN chunks c ON c.row = p.chunk WHERE l.collection = ?",
            (collection,),
        )

    def fillers_with(self, documents: Sequence[str]) -> list[tuple[str, str, str, str, str]]:
        """The passages of fillers that are of these documents: collection, domain, document, chunk and title."""
        rows = f"SELECT collection, domain, document, chunk, title FROM fillers WHERE document IN {LISTED}"
        return self._run(rows, (listed(documents),)).fetchall()

    def has_filler(self, collection: str, domain: str) -> bool:
        found = self._run("SELECT 1 FROM fillers WHERE collection = ? AND domain = ? LIMIT 1", (collection, domain))
        return found.fetchone() is not None

    def drop_fillers(self, collection: str, *, but: Sequence[str]) -> None:
        """Forget a collection's fillers, but for those of these domains."""
        rows = f"DELETE FROM fillers WHERE collection = ? AND domain NOT IN {LISTED}"
        self._run(rows, (collection, listed(but)))

    def labels_in(self, documents: Sequence[str]) -> list[Label]:
        """What filters see of these documents, as far as they serve; each once."""
        found = self._run(
            "SELECT DISTINCT l.collection, l.metadata FROM documents d JOIN passages p ON p.document = d.row "
            f"JOIN labels l ON l.row = p.label WHERE d.serving = 1 AND d.id IN {LISTED}",
            (listed(documents),),
        )
        return [Label(collection, loads(metadata)) for collection, metadata in found.fetchall()]

    def collection_passages(
        self, collection: str, *, facet: tuple[str, Value] | None = None, staged: Sequence[int] = ()
    ) -> Iterator[ChunkPlace]:
        """The passages of a collection that serve, or are in these staged versions, those of the oldest versions first.

        With a facet, at least those that have it in their metadata.
        """
        last = 0
        having = (
            "p.label IN (SELECT label FROM facets WHERE facets.field = ? AND facets.value = ?)" if facet else "? = ?"
        )
        some = (
            "SELECT DISTINCT d.row FROM documents d JOIN passages p ON p.document = d.row "
            f"JOIN labels l ON l.row = p.label WHERE d.row > ? AND (d.serving = 1 OR d.row IN {LISTED}) "
            f"AND l.collection = ? AND {having} ORDER BY d.row LIMIT ?"
        )
        wanted = (listed(staged), collection, *(facet or (0, 0)), _SOME)
        while versions := [row for (row,) in self._run(some, (last, *wanted)).fetchall()]:
            last = versions[-1]
            found = self._run(f"{_PLACES} d.row IN {LISTED} ORDER BY d.row, p.place", (listed(versions),))
            yield from [_place(*each) for each in found.fetchall()]

    def texts_of(self, ids: Sequence[str]) -> dict[str, str]:
        rows = self._run(f"SELECT id, CAST(text AS BLOB) FROM chunks WHERE id IN {LISTED}", (listed(ids),))
        found = {chunk: sound_text(chunk, data) for chunk, data in rows.fetchall()}
        return {chunk: text for chunk, text in found.items() if text is not None}

    def settled(self, rows: Sequence[int]) -> None:
        """Forget these rows of `moved`: nothing of an old context is left, or nothing of a new one lacks."""
        self._run(f"DELETE FROM moved WHERE row IN {LISTED}", (listed(rows),))

    def lack_contexts(self, uses: Mapping[str, int]) -> None:
        """Note that these chunks lack blobs, or will, as `swept` ones of `moved`; and how often each was used."""
        rows = [(chunk, 1 + count) for chunk, count in uses.items()]
        self._connection.executemany("INSERT INTO moved (id, swept) VALUES (?, ?)", rows)

    def _lost_fillers(self, documents: Sequence[str]) -> set[tuple[str, str]]:
        found = self._run(
            f"SELECT DISTINCT collection, domain FROM fillers f WHERE document IN {LISTED} AND NOT EXISTS ("
            "SELECT 1 FROM documents d JOIN labels l ON l.row = d.label JOIN passages p ON p.document = d.row "
            "JOIN chunks c ON c.row = p.chunk WHERE d.id = f.document AND d.serving = 1 AND d.title = f.title "
            "AND l.collection = f.collection AND c.id = f.chunk)",
            (listed(documents),),
        )
        return {(collection, domain) for collection, domain in found}

    def _leave(self, version: int) -> list[_Where]:
        """The chunks that a version is about to leave to others, and where each stands: under which label, behind what.

        Called when they are counted as left.
        """
        kept = "EXISTS (SELECT 1 FROM chunks c WHERE c.row = p.chunk AND c.uses > 0)"
        return self._run(f"{_WHERE} WHERE p.document = ? AND {kept}", (version,)).fetchall()

    def _left(self, places: Sequence[_Where]) -> None:
        """Mark those chunks as moved that stand nowhere else just so."""
        chunks = listed([*{chunk for chunk, *_ in places}])
        standing = {*self._run(f"{_WHERE} WHERE p.chunk IN {LISTED}", (chunks,))}
        gone = {chunk for chunk, *where in places if (chunk, *where) not in standing}
        self._run(f"INSERT INTO moved (id) SELECT id FROM chunks WHERE row IN {LISTED}", (listed(sorted(gone)),))


def _place(*columns: object) -> ChunkPlace:
    chunk, collection, metadata, version, serving, *others, before_metadata = columns
    told = None if before_metadata is None else loads(str(before_metadata))
    return ChunkPlace(chunk, collection, loads(str(metadata)), version, bool(serving), *others, before_metadata=told)  # type: ignore[arg-type]
