"""Reads one state of a catalog: documents, passages, words, vectors, marks, jobs and uploads. Changes nothing."""

import json
from collections.abc import Sequence

import numpy as np

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.contexts import ContextsView
from retriever.catalog.lexical import LexicalSearch, PassageTotals
from retriever.catalog.postings import Postings
from retriever.catalog.rows import LIVE, digest_of, entries, fact, jobs, loads, passages, sound_text, uploads
from retriever.catalog.soundness import is_same
from retriever.documents import Document
from retriever.filter_condition import EVERYTHING, LISTED, FilterCondition, listed
from retriever.types import (
    CatalogState,
    Collection,
    Counts,
    DocumentRow,
    EmbeddedChunks,
    EmbedderEntry,
    Label,
    Limit,
    MarkEntries,
    Passage,
    Rows,
    SourceFile,
    Vectors,
    WordMatch,
)
from retriever.upload_types import Job, QueuedUpload


class CatalogView(ContextsView):
    """Reads one committed state."""

    def __init__(self, connection: CatalogConnection, postings: Postings) -> None:
        super().__init__(connection)
        self._postings = postings

    def state(self) -> CatalogState:
        found: dict[str, int] = dict(self._connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
        catalog, changes = (fact(self._connection, name) for name in ("catalog", "changes"))
        return CatalogState(
            str(catalog), changes, found.get("chunks", 0), found.get("removed", 0), found.get("vectors", 0)
        )

    def collection(self, name: str) -> Collection | None:
        found = self._connection.execute("SELECT rules, created FROM collections WHERE name = ?", (name,)).fetchone()
        return Collection(name, loads(found[0]), found[1]) if found else None

    def collections(self) -> list[Collection]:
        found = self._connection.execute("SELECT name, rules, created FROM collections ORDER BY name")
        return [Collection(name, loads(rules), created) for name, rules, created in found]

    def unsearched(self) -> tuple[str, ...]:
        """The names of the collections that are kept without search."""
        found = self._connection.execute(
            "SELECT name FROM collections WHERE json_type(rules, '$.search') = 'false' ORDER BY name"
        )
        return tuple(name for (name,) in found)

    def prefix(self, collection: str, *, model: str) -> tuple[int, ...] | None:
        """The token ids that a model's captures of this collection stand behind."""
        found = self._connection.execute(
            "SELECT ids FROM prefixes WHERE collection = ? AND model = ?", (collection, model)
        ).fetchone()
        return tuple(np.frombuffer(found[0], "<u4").tolist()) if found else None

    def document(self, document: str) -> DocumentRow | None:
        found = entries(self._connection, "d.id = ?", values=[document])
        return found[0] if found else None

    def serves(self, document: Document, *, collection: str) -> bool:
        """Whether this document serves already, just so and sound, and was not patched since."""
        return is_same(self._connection, document.id, digest=digest_of(document, collection))

    def documents(self, allowed: FilterCondition, *, after: str = "", limit: int = 100) -> list[DocumentRow]:
        """The documents that fit, in the order of their ids, from behind `after` on."""
        where = f"d.label IN ({allowed.sql}) AND d.id > ? ORDER BY d.id LIMIT ?"
        return entries(self._connection, where, values=[*allowed.values, after, limit])

    def count(self, allowed: FilterCondition) -> int:
        """How many documents fit."""
        [found] = self._connection.execute(
            f"SELECT count(*) FROM documents WHERE serving = 1 AND label IN ({allowed.sql})", allowed.values
        ).fetchone()
        return found

    def ages(self, allowed: FilterCondition) -> list[tuple[float, str, str]]:
        """When each of the documents that fit came, its id and its collection."""
        return self._connection.execute(
            "SELECT d.created, d.id, l.collection FROM documents d JOIN labels l ON l.row = d.label "
            f"WHERE d.serving = 1 AND d.label IN ({allowed.sql})",
            allowed.values,
        ).fetchall()

    def version(self, document: str) -> int | None:
        """The number of the version that serves."""
        found = self._connection.execute("SELECT row FROM documents WHERE id = ? AND serving = 1", (document,))
        row = found.fetchone()
        return row[0] if row else None

    def nbytes(self, allowed: FilterCondition) -> int:
        """How many bytes the texts of the passages that fit have."""
        [found] = self._connection.execute(
            "SELECT CAST(coalesce(sum(length(CAST(c.text AS BLOB))), 0) AS BIGINT) FROM passages p "
            "JOIN chunks c ON c.row = p.chunk JOIN documents d ON d.row = p.document WHERE d.serving = 1 "
            f"AND p.label IN ({allowed.sql})",
            allowed.values,
        ).fetchone()
        return found

    def passages(
        self, document: str, *, first: int = 0, limit: int = 1 << 40, allowed: FilterCondition = EVERYTHING
    ) -> list[Passage]:
        """The passages of a document that fit, in its order: those of at most `limit` places from `first` on."""
        where = f"d.id = ? AND p.place >= ? AND p.place < ? AND p.label IN ({allowed.sql}) ORDER BY p.place"
        return passages(self._connection, where, values=[document, first, first + limit, *allowed.values])

    def holding(self, chunks: Sequence[int], allowed: FilterCondition) -> list[Passage]:
        """The oldest passage that fits of each of these chunks, in the order of `chunks`."""
        oldest = (
            "SELECT min(o.row) FROM passages o JOIN documents e ON e.row = o.document "
            f"WHERE e.serving = 1 AND o.chunk IN {LISTED} AND o.label IN ({allowed.sql}) GROUP BY o.chunk"
        )
        found = passages(self._connection, f"p.row IN ({oldest})", values=[listed(chunks), *allowed.values])
        places = {chunk: place for place, chunk in enumerate(chunks)}
        return sorted(found, key=lambda each: places[each.chunk])

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of those chunks that are known, by their ids."""
        return dict(self._connection.execute(f"SELECT id, row FROM chunks WHERE id IN {LISTED}", (listed(ids),)))

    def labels_of(self, ids: Sequence[str]) -> dict[str, list[Label]]:
        """The labels of these chunks in documents, each once; in staged versions too."""
        found: dict[str, list[Label]] = {}
        rows = self._connection.execute(
            "SELECT DISTINCT c.id, l.collection, l.metadata FROM chunks c JOIN passages p ON p.chunk = c.row "
            f"JOIN labels l ON l.row = p.label WHERE c.id IN {LISTED}",
            (listed(ids),),
        )
        for chunk, collection, metadata in rows:
            found.setdefault(chunk, []).append(Label(collection, loads(metadata)))
        return found

    def lexical(
        self, query: str, allowed: FilterCondition, *, limit: int, within: FilterCondition = EVERYTHING
    ) -> list[WordMatch]:
        """The passages that fit best by BM25, best first, each chunk once.

        How rare a word is, and how long a passage, is counted `within`: no score tells of what else there is.
        """
        return self._words(within).search(query, allowed, limit=limit)

    def shares(self, query: str, found: Sequence[Passage], *, within: FilterCondition = EVERYTHING) -> dict[int, float]:
        """How much of what the query's words tell each of these passages has, up to 1, by chunk. Counted `within`."""
        return self._words(within).shares(query, found)

    def passages_within(self, within: FilterCondition) -> int:
        """The number of passages that words are counted in."""
        return self._words(within).totals.passages

    def _words(self, within: FilterCondition) -> LexicalSearch:
        count, words, changes = (fact(self._connection, name) for name in ("passages", "words", "changes"))
        highest = self._connection.execute("SELECT max(row) FROM passages").fetchone()[0] or 0
        totals = PassageTotals(count, words, changes, highest)
        return LexicalSearch(self._connection, self._postings, totals).within(within)

    def chunks_of(self, allowed: FilterCondition) -> Rows:
        """The chunks of the passages that fit, ascending."""
        found = self._connection.execute(
            "SELECT DISTINCT p.chunk FROM passages p JOIN documents d ON d.row = p.document "
            f"WHERE d.serving = 1 AND p.label IN ({allowed.sql})",
            allowed.values,
        ).fetchall()
        return np.sort(np.array(found, np.int64).reshape(-1))

    def oldest_of(self, allowed: FilterCondition) -> Rows:
        """The rows (passage, chunk) for the chunks of what fits, in the order of their oldest passages that fit.

        Numbers of chunks tell whether a text was there before, perhaps in what does not fit; this order does not.
        """
        found = self._connection.execute(
            "SELECT min(p.row), p.chunk FROM passages p JOIN documents d ON d.row = p.document "
            f"WHERE d.serving = 1 AND p.label IN ({allowed.sql}) GROUP BY p.chunk ORDER BY 1",
            allowed.values,
        ).fetchall()
        return np.array(found, np.int64).reshape(-1, 2)

    def texts(self, chunks: Sequence[int]) -> dict[int, str]:
        rows = f"SELECT row, id, CAST(text AS BLOB) FROM chunks WHERE row IN {LISTED}"
        found = {row: sound_text(chunk, data) for row, chunk, data in self._connection.execute(rows, (listed(chunks),))}
        return {row: text for row, text in found.items() if text is not None}

    def marked_after(self, chunk: int) -> MarkEntries:
        found = self._connection.execute(
            "SELECT row, head, tail, nbytes FROM chunks WHERE row > ? AND head IS NOT NULL ORDER BY row", (chunk,)
        ).fetchall()
        rows, heads, tails, nbytes = np.array(found, np.int64).reshape(-1, 4).T
        return MarkEntries.columns(rows=rows, heads=heads, tails=tails, nbytes=nbytes)

    def removed_after(self, row: int) -> Rows:
        """The chunks that were removed since the state's `removed` was this."""
        found = self._connection.execute("SELECT chunk FROM removed WHERE row > ? ORDER BY row", (row,)).fetchall()
        return np.array(found, np.int64).reshape(-1)

    def embedders(self) -> list[EmbedderEntry]:
        found = self._connection.execute("SELECT name, dim, serving FROM embedders ORDER BY row")
        return [EmbedderEntry(name, dim, bool(serving)) for name, dim, serving in found]

    def embedded_after(self, row: int, *, embedder: str, limit: int) -> EmbeddedChunks:
        found = self._connection.execute(
            "SELECT row, chunk, vector FROM vectors WHERE row > ? "
            "AND embedder = (SELECT row FROM embedders WHERE name = ?) ORDER BY row LIMIT ?",
            (row, embedder, limit),
        ).fetchall()
        numbers = np.array([each[:2] for each in found], np.int64).reshape(-1, 2)
        return EmbeddedChunks(numbers[:, 0], numbers[:, 1], _vectors([each[2] for each in found]))

    def vectors(self, ids: Sequence[str], *, embedder: str) -> dict[str, Vectors]:
        """The vectors of these chunks that are known, by chunk id."""
        found = self._connection.execute(
            "SELECT c.id, v.vector FROM chunks c JOIN vectors v ON v.chunk = c.row "
            f"AND v.embedder = (SELECT row FROM embedders WHERE name = ?) WHERE c.id IN {LISTED}",
            (embedder, listed(ids)),
        )
        return {chunk: _vectors([vector])[0] for chunk, vector in found}

    def embedded(self, embedder: str) -> int:
        """How many chunks have a vector of this embedder."""
        [found] = self._connection.execute(
            "SELECT count(*) FROM vectors WHERE embedder = (SELECT row FROM embedders WHERE name = ?)", (embedder,)
        ).fetchone()
        return found

    def without_vector(self, after: int, *, embedder: str, limit: int) -> list[tuple[int, str, str]]:
        """Chunks (row, id, text) that lack one, in the order of their rows; not those that no search may find."""
        hidden = self.unsearched()
        told = (
            "AND EXISTS (SELECT 1 FROM passages p JOIN labels l ON l.row = p.label "
            f"WHERE p.chunk = chunks.row AND l.collection NOT IN {LISTED}) "
        )
        found = self._connection.execute(
            "SELECT row, id, CAST(text AS BLOB) FROM chunks WHERE row > ? "
            "AND NOT EXISTS (SELECT 1 FROM vectors WHERE chunk = chunks.row "
            "AND embedder = (SELECT row FROM embedders WHERE name = ?)) "
            f"{told if hidden else ''}ORDER BY row LIMIT ?",
            (after, embedder, *([listed(hidden)] if hidden else []), limit),
        )
        return [(row, chunk, sound_text(chunk, data) or "") for row, chunk, data in found]

    def counts(self) -> Counts:
        [documents] = self._connection.execute("SELECT count(*) FROM documents WHERE serving = 1").fetchone()
        [chunks] = self._connection.execute("SELECT count(*) FROM chunks").fetchone()
        return Counts(documents, fact(self._connection, "passages"), chunks)

    def chunk_ids(self, limit: int) -> list[str]:
        """The ids of the first chunks in their order, those of staged versions too."""
        found = self._connection.execute("SELECT id FROM chunks ORDER BY id LIMIT ?", (limit,))
        return [chunk for (chunk,) in found]

    def sources(self, collection: str) -> dict[str, SourceFile]:
        """The files that were put into a collection, by their names."""
        found = self._connection.execute(
            "SELECT name, signature, documents, base FROM sources WHERE collection = ?", (collection,)
        )
        return {name: SourceFile(signature, tuple(json.loads(told)), base) for name, signature, told, base in found}

    def limit(self, collection: str, *, model: str) -> Limit | None:
        """What stopped a model's caches of this collection, if anything did."""
        found = self._connection.execute(
            "SELECT terms, nbytes FROM limits WHERE collection = ? AND model = ?", (collection, model)
        ).fetchone()
        return Limit(*found) if found else None

    def unswept(self, limit: int) -> list[tuple[int, str]]:
        """Removed chunks (row, id) whose caches are not known to be gone, oldest first, but for chunks that are again.

        The same id may come twice. Where there are none, all up to the state's `removed` may be called swept.
        """
        return self._connection.execute(
            "SELECT row, id FROM removed WHERE row > (SELECT value FROM facts WHERE name = 'swept') "
            "AND NOT EXISTS (SELECT 1 FROM chunks WHERE chunks.id = removed.id) ORDER BY row LIMIT ?",
            (limit,),
        ).fetchall()

    def job(self, job: str) -> Job | None:
        found = jobs(self._connection, "id = ?", values=[job])
        return found[0] if found else None

    def jobs(self, *, after: str = "", limit: int = 100) -> list[Job]:
        """The jobs, newest first, from behind `after` on; none where that is not known.

        Those whose uploads wait for a collection are left out: nothing is done for them.
        """
        behind = "row < (SELECT row FROM jobs WHERE id = ?)" if after else "? = ''"
        idle = f"SELECT job FROM uploads INDEXED BY live_uploads WHERE {LIVE} AND collection = ''"
        where = f"{behind} AND row NOT IN ({idle}) ORDER BY row DESC LIMIT ?"
        return jobs(self._connection, where, values=[after, limit])

    def uploads(self, job: str, *, first: int = 0, limit: int = 100) -> list[QueuedUpload]:
        """The uploads of a job in the order of their numbers, without the first so many."""
        where = "u.job = (SELECT row FROM jobs WHERE id = ?) ORDER BY u.row LIMIT ? OFFSET ?"
        return uploads(self._connection, where, values=[job, limit, first], index="uploads_of_job")

    def live(self, limit: int, *, but: Sequence[int] = (), least: int = 0, most: int = 1 << 40) -> list[QueuedUpload]:
        """The first live uploads but these, in the order of their numbers, whose contents have so many bytes.

        Those that wait for a collection are left out.
        """
        others = f" AND u.row NOT IN {LISTED}" if but else ""
        where = f"{LIVE} AND u.collection <> '' AND u.nbytes >= ? AND u.nbytes <= ?{others} ORDER BY u.row LIMIT ?"
        values = [least, most, *([listed(but)] if but else []), limit]
        index = "live_sizes" if least else "live_uploads"
        return uploads(self._connection, where, values=values, index=index)

    def live_of(self, numbers: Sequence[int]) -> list[QueuedUpload]:
        """Those of these uploads that are live, in the order of their numbers."""
        return uploads(self._connection, f"{LIVE} AND u.row IN {LISTED} ORDER BY u.row", values=[listed(numbers)])

    def content(self, number: int) -> bytes | None:
        """The content of an upload that is live, None of any other."""
        found = self._connection.execute("SELECT content FROM contents WHERE upload = ?", (number,)).fetchone()
        return found[0] if found else None

    def unready(self, collection: str | None = None) -> list[QueuedUpload]:
        """The uploads that count of documents that do not serve: live ones, and those that came to nothing."""
        place = "" if collection is None else "u.collection = ? AND "
        where = (
            f"{place}u.document <> '' AND u.state IN ('waiting', 'computing', 'failed', 'cancelled') "
            "AND NOT EXISTS (SELECT 1 FROM documents d WHERE d.id = u.document AND d.serving = 1) "
            "AND NOT EXISTS (SELECT 1 FROM uploads o WHERE o.document = u.document AND o.state <> 'superseded' "
            "AND (o.origin > u.origin OR (o.origin = u.origin AND o.row > u.row)))"
        )
        return uploads(self._connection, where, values=[] if collection is None else [collection])

    def upload_of(self, document: str) -> QueuedUpload | None:
        """The upload of a document that counts: the last that was accepted and that no other superseded."""
        where = (
            "u.document = ? AND u.document <> '' AND u.state <> 'superseded' ORDER BY u.origin DESC, u.row DESC LIMIT 1"
        )
        found = uploads(self._connection, where, values=[document], index="uploads_of_document")
        return found[0] if found else None


def _vectors(blobs: Sequence[bytes]) -> Vectors:
    """The vectors (N, dim), as they were kept."""
    flat = np.frombuffer(b"".join(blobs), "<f2").astype(np.float32)
    return flat.reshape(len(blobs), -1) if blobs else flat.reshape(0, 0)
