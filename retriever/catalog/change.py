"""What can be changed in a catalog, inside one transaction. Begins and ends none."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.contexts import ContextRows, places_of
from retriever.catalog.lexical import body, index
from retriever.catalog.renew import index_anew, is_current
from retriever.catalog.rows import check_id, digest_of, dumps, entries, fact, is_same, loads, sound_text
from retriever.catalog.upload_rows import LIVE
from retriever.catalog.upload_tables import UploadTables
from retriever.catalog.word_table import WordTable
from retriever.documents import Document, DocumentPart, Json
from retriever.errors import DocumentError, SearchError
from retriever.filter_condition import LISTED, Value, facets, listed
from retriever.marks import marks
from retriever.types import (
    ChunkPlace,
    Collection,
    DocumentRow,
    FillerPassage,
    Label,
    Limit,
    Removal,
    SourceFile,
    Vectors,
)
from retriever.upload_types import NewUpload, QueuedUpload


class RowsChange:
    """See `Change`."""

    def __init__(self, connection: CatalogConnection, words: WordTable) -> None:
        self._connection = connection
        self._words = words
        self._run = connection.execute
        self._uploads = UploadTables(connection, drop=self.drop)
        self._contexts = ContextRows(connection)

    def put_collection(self, collection: Collection) -> None:
        self._run(
            "INSERT INTO collections VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET rules = excluded.rules",
            (collection.name, dumps(collection.rules), time.time()),
        )

    def delete_collection(self, name: str) -> Removal:
        removal = _together([self._delete("l.collection = ?", name), *self._uploads.delete_collection(name)])
        self._run("DELETE FROM prefixes WHERE collection = ?", (name,))
        self._run("DELETE FROM sources WHERE collection = ?", (name,))
        self._run("DELETE FROM limits WHERE collection = ?", (name,))
        self._run("DELETE FROM fillers WHERE collection = ?", (name,))
        self._run("DELETE FROM collections WHERE name = ?", (name,))
        return removal

    def keep_prefix(self, collection: str, *, model: str, ids: Sequence[int]) -> tuple[int, ...]:
        kept = np.array(ids, "<u4").tobytes()
        self._run("INSERT INTO prefixes VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (collection, model, kept))
        [kept] = self._run(
            "SELECT ids FROM prefixes WHERE collection = ? AND model = ?", (collection, model)
        ).fetchone()
        return tuple(np.frombuffer(kept, "<u4").tolist())

    def put(self, documents: Sequence[Document], *, collection: str) -> Removal:
        versions: list[int] = []
        for document in documents:
            check_id(document.id)
            digest = digest_of(document, collection)
            if not is_same(self._connection, document, digest=digest):
                versions.append(self._stage(document, collection, digest=digest))
        return _together(self._serve(version) for version in versions)

    def stage(self, document: Document, *, collection: str) -> int:
        check_id(document.id)
        return self._stage(document, collection, digest=digest_of(document, collection))

    def serve(self, version: int) -> Removal:
        self._number_anew(version)
        return self._serve(version)

    def _number_anew(self, version: int) -> None:
        """Numbers a version's passages behind all that is indexed, so that only the index's end is ever new."""
        columns = "document, place, chunk, label, name, start, page, own"
        waiting = "(SELECT row FROM documents WHERE row = ? AND serving = 0)"
        found = self._run(
            f"SELECT {columns} FROM passages WHERE document = {waiting} ORDER BY place", (version,)
        ).fetchall()
        if found:
            self._run("DELETE FROM passages WHERE document = ?", (version,))
            self._connection.executemany(f"INSERT INTO passages ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", found)

    def _serve(self, version: int) -> Removal:
        found = self._run("SELECT id, title, created, serving FROM documents WHERE row = ?", (version,)).fetchone()
        if not found:
            raise DocumentError(
                f"version {version} is not there: it was dropped, or its document deleted; put it again"
            )
        document, title, created, serving = found
        if serving:  # indexed already
            return Removal()
        older = self._run("SELECT row, created FROM documents WHERE id = ? AND serving = 1", (document,)).fetchone()
        removal = self._remove(older[0]) if older else Removal()
        self._run(
            "UPDATE documents SET serving = 1, created = ? WHERE row = ?", (older[1] if older else created, version)
        )
        self._index(version, title)
        return removal

    def drop(self, version: int) -> Removal:
        found = self._run("SELECT serving, id FROM documents WHERE row = ?", (version,)).fetchone()
        if not found or found[0]:
            return Removal()
        removal = self._remove(version)
        for collection, domain in self._contexts.lost([found[1]]):  # it was to be filler once it serves
            self._contexts.keep(collection, domain, passages=())
        return removal

    def drop_orphans(self) -> Removal:
        wanted = f"SELECT version FROM uploads WHERE {LIVE} AND version IS NOT NULL"
        found = self._run(f"SELECT row FROM documents WHERE serving = 0 AND row NOT IN ({wanted})").fetchall()
        return _together([self.drop(version) for (version,) in found])

    def patch(self, document: str, *, metadata: Json) -> DocumentRow | None:
        found = entries(self._connection, "d.id = ?", values=[document])
        if not found:
            return None
        taken = {name for name, value in metadata.items() if value is None}
        merged = {name: value for name, value in {**found[0].metadata, **metadata}.items() if name not in taken}
        version, label = self._run(
            "SELECT row, label FROM documents WHERE id = ? AND serving = 1", (document,)
        ).fetchone()
        self._relabel(label, merged)
        own = "SELECT label, own FROM passages WHERE document = ? AND own IS NOT NULL"
        for each, text in self._run(own, (version,)).fetchall():
            self._relabel(each, {**merged, **loads(text)})
        # Its digest is that of nothing that can be put, so a put of what it was before is a change again.
        self._run("UPDATE documents SET updated = ?, digest = ? WHERE row = ?", (time.time(), b"", version))
        return entries(self._connection, "d.id = ?", values=[document])[0]

    def delete(self, documents: Sequence[str]) -> Removal:
        removal = self._delete(f"d.id IN {LISTED}", listed(documents))
        return _together([removal, *self._uploads.delete(documents)])

    def in_context(self, collection: str) -> bool:
        return self._contexts.is_on(collection)

    def keep_filler(self, collection: str, domain: str, *, passages: Sequence[FillerPassage]) -> None:
        self._contexts.keep(collection, domain, passages=passages)

    def places_of(self, ids: Sequence[str]) -> list[ChunkPlace]:
        return places_of(self._connection, ids)

    def fillers_with(self, documents: Sequence[str]) -> list[tuple[str, str, str, str, str]]:
        return self._contexts.having(documents)

    def has_filler(self, collection: str, domain: str) -> bool:
        return self._contexts.has(collection, domain)

    def drop_fillers(self, collection: str, *, but: Sequence[str]) -> None:
        self._contexts.drop(collection, but=but)

    def labels_in(self, documents: Sequence[str]) -> list[Label]:
        return self._contexts.labels_in(documents)

    def collection_passages(
        self, collection: str, *, facet: tuple[str, Value] | None = None, staged: Sequence[int] = ()
    ) -> Iterator[ChunkPlace]:
        return self._contexts.passages_of(collection, facet=facet, staged=staged)

    def texts_of(self, ids: Sequence[str]) -> dict[str, str]:
        return self._contexts.texts(ids)

    def settled(self, rows: Sequence[int]) -> None:
        self._contexts.forget(rows)

    def lack_contexts(self, uses: Mapping[str, int]) -> None:
        self._contexts.lack(uses)

    def purge(self) -> None:
        if not is_current(self._connection, self._words):
            index_anew(self._connection, self._words)
        if fact(self._connection, "dropped") > 0:
            self._words.purge(self._connection)
            self._run("UPDATE facts SET value = -1 WHERE name = 'dropped'")

    def add_embedder(self, name: str, *, dim: int) -> None:
        found = "EXISTS (SELECT 1 FROM embedders) OR EXISTS (SELECT 1 FROM chunks)"
        values = f"(?, ?, CASE WHEN {found} THEN 0 ELSE 1 END)"
        self._run(f"INSERT INTO embedders (name, dim, serving) VALUES {values} ON CONFLICT DO NOTHING", (name, dim))

    def serve_embedder(self, name: str) -> None:
        if not self._run("SELECT 1 FROM embedders WHERE name = ?", (name,)).fetchone():
            raise SearchError(f"the catalog knows no embedder {name!r}: add it first")
        self._run("UPDATE embedders SET serving = CASE WHEN name = ? THEN 1 ELSE 0 END", (name,))
        self._run("DELETE FROM vectors WHERE embedder NOT IN (SELECT row FROM embedders WHERE serving = 1)")
        self._run("DELETE FROM embedders WHERE serving = 0")

    def put_vectors(self, ids: Sequence[str], vectors: Vectors, *, embedder: str) -> None:
        dim = self._run("SELECT dim FROM embedders WHERE name = ?", (embedder,)).fetchone()
        assert not dim or not len(ids) or vectors.shape[1:] == dim, f"{embedder}: {vectors.shape}, not {dim[0]} wide"
        self._connection.executemany(
            "INSERT INTO vectors (embedder, chunk, vector) SELECT e.row, c.row, ? FROM embedders e, chunks c "
            "WHERE e.name = ? AND c.id = ? ON CONFLICT (chunk, embedder) DO NOTHING",
            [(each.astype("<f2").tobytes(), embedder, chunk) for chunk, each in zip(ids, vectors, strict=True)],
        )

    def accept(self, job: str, uploads: Sequence[NewUpload]) -> list[QueuedUpload]:
        return self._uploads.accept(job, uploads)

    def expand(self, number: int, uploads: Sequence[NewUpload]) -> bool:
        return self._uploads.expand(number, uploads)

    def advance(self, upload: QueuedUpload) -> bool:
        return self._uploads.advance(upload)

    def cancel(self, job: str) -> int:
        return self._uploads.cancel(job)

    def expected(self) -> tuple[int, int]:
        arriving = self._uploads.arriving()
        [documents] = self._run("SELECT count(*) FROM documents WHERE serving = 1").fetchone()
        [chunks] = self._run("SELECT count(*) FROM chunks").fetchone()
        return documents + arriving, chunks + arriving

    def put_source(self, collection: str, name: str, *, source: SourceFile) -> None:
        values = (collection, name, source.signature, json.dumps(source.documents), source.base)
        self.forget_source(collection, name)
        self._run("INSERT INTO sources VALUES (?, ?, ?, ?, ?)", values)

    def forget_source(self, collection: str, name: str) -> None:
        self._run("DELETE FROM sources WHERE collection = ? AND name = ?", (collection, name))

    def put_limit(self, collection: str, limit: Limit | None, *, model: str) -> None:
        self._run("DELETE FROM limits WHERE collection = ? AND model = ?", (collection, model))
        if limit is not None:
            self._run("INSERT INTO limits VALUES (?, ?, ?, ?)", (collection, model, limit.terms, limit.nbytes))

    def forget_uploads(self, before: float) -> int:
        return self._uploads.forget(before)

    def swept(self, row: int) -> None:
        self._run("UPDATE facts SET value = ?1 WHERE name = 'swept' AND value < ?1", (row,))

    def _delete(self, which: str, value: str) -> Removal:
        found = self._run(
            f"SELECT d.row FROM documents d JOIN labels l ON l.row = d.label WHERE {which} ORDER BY d.row", (value,)
        ).fetchall()
        return _together([self._remove(version) for (version,) in found])

    def _stage(self, document: Document, collection: str, *, digest: bytes) -> int:
        try:
            return self._kept(document, collection, digest=digest)
        except UnicodeEncodeError as error:
            at = f"{error.object[error.start]!r} at {error.start}"
            raise DocumentError(
                f"document {document.id!a} has half a character, {at}, which no UTF-8 can say: take it out"
            ) from error

    def _kept(self, document: Document, collection: str, *, digest: bytes) -> int:
        label, now = self._label(collection, document.metadata), time.time()
        [version] = self._run(
            "INSERT INTO documents (id, serving, label, title, digest, parts, created, updated) "
            "VALUES (?, 0, ?, ?, ?, ?, ?, ?) RETURNING row",
            (document.id, label, document.title, digest, len(document.parts), now, now),
        ).fetchone()
        chunks = self._used(document.parts)
        self._connection.executemany(
            "INSERT INTO passages (document, place, chunk, label, name, start, page, own) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    *(version, place, chunks[place]),
                    self._label(collection, {**document.metadata, **part.metadata}) if part.metadata else label,
                    *(part.name, part.start, part.page, dumps(part.metadata) if part.metadata else None),
                )
                for place, part in enumerate(document.parts)
            ),
        )
        return version

    def _used(self, parts: Sequence[DocumentPart]) -> list[int]:
        """The rows of these parts' chunks, each of which is used once more, and has its text even if it was damaged."""
        found: list[int] = []
        for part, mark in zip(parts, marks([part.text for part in parts]), strict=True):
            [row] = self._run(
                "INSERT INTO chunks (id, uses, text, head, tail, nbytes) VALUES (?, 1, CAST(? AS TEXT), ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET uses = chunks.uses + 1, text = excluded.text, head = excluded.head, "
                "tail = excluded.tail, nbytes = excluded.nbytes RETURNING row",
                (part.id, part.text.encode(), *((mark.head, mark.tail, mark.nbytes) if mark else (None, None, None))),
            ).fetchone()
            found.append(row)
        return found

    def _label(self, collection: str, metadata: Json) -> int:
        [label] = self._run(
            "INSERT INTO labels (collection, metadata) VALUES (?, ?) RETURNING row", (collection, dumps(metadata))
        ).fetchone()
        self._faceted(label, metadata)
        return label

    def _relabel(self, label: int, metadata: Json) -> None:
        self._run("UPDATE labels SET metadata = ? WHERE row = ?", (dumps(metadata), label))
        self._run("DELETE FROM facets WHERE label = ?", (label,))
        self._faceted(label, metadata)

    def _faceted(self, label: int, metadata: Json) -> None:
        found = [(field, value, label) for field, value in facets(metadata)]
        self._connection.executemany("INSERT INTO facets VALUES (?, ?, ?) ON CONFLICT DO NOTHING", found)

    def _index(self, version: int, title: str) -> None:
        found = self._bodies(version, title)
        self._count(len(found), words=index(self._connection, found, table=self._words))

    def _bodies(self, version: int, title: str) -> list[tuple[int, list[str]]]:
        found = self._run(
            "SELECT p.row, c.id, CAST(c.text AS BLOB) FROM passages p JOIN chunks c ON c.row = p.chunk "
            "WHERE p.document = ?",
            (version,),
        )
        texts = {row: sound_text(chunk, data) for row, chunk, data in found}
        if None in texts.values():  # nobody knows any more which words the index has of it
            self._run("UPDATE facts SET value = 0 WHERE name = 'analysis'")
        return [(row, body(title, text or "")) for row, text in texts.items()]

    def _count(self, passages: int, *, words: int) -> None:
        self._run("UPDATE facts SET value = value + ? WHERE name = 'passages'", (passages,))
        self._run("UPDATE facts SET value = value + ? WHERE name = 'words'", (words,))

    def _remove(self, version: int) -> Removal:
        """Removes all of a version; chunks that nothing else uses go too."""
        title, serving = self._run("SELECT title, serving FROM documents WHERE row = ?", (version,)).fetchone()
        if serving:
            bodies = self._bodies(version, title)
            self._words.remove(self._connection, bodies)
            self._count(-len(bodies), words=-sum(len(found) for _, found in bodies))
        self._run("UPDATE facts SET value = 1 WHERE name = 'dropped'")
        used = self._run(
            "SELECT chunk, count(*) FROM passages WHERE document = ? GROUP BY chunk", (version,)
        ).fetchall()
        places = self._contexts.leave(version)
        labels = "SELECT label FROM passages WHERE document = ?1 UNION SELECT label FROM documents WHERE row = ?1"
        self._run(f"DELETE FROM facets WHERE label IN ({labels})", (version,))
        self._run(f"DELETE FROM labels WHERE row IN ({labels})", (version,))
        self._run("DELETE FROM passages WHERE document = ?", (version,))
        self._run("DELETE FROM documents WHERE row = ?", (version,))
        removal = self._released(used)
        self._contexts.left(places)
        return removal

    def _released(self, used: Sequence[tuple[int, int]]) -> Removal:
        self._connection.executemany(
            "UPDATE chunks SET uses = uses - ? WHERE row = ?", [(times, chunk) for chunk, times in used]
        )
        rows = listed([chunk for chunk, _ in used])
        found = self._run(f"SELECT row, id, uses FROM chunks WHERE row IN {LISTED}", (rows,)).fetchall()
        gone = [(row, chunk) for row, chunk, uses in found if not uses]
        self._connection.executemany("INSERT INTO removed (chunk, id) VALUES (?, ?)", gone)
        self._run(f"DELETE FROM vectors WHERE chunk IN {LISTED}", (listed([row for row, _ in gone]),))
        self._run(f"DELETE FROM chunks WHERE row IN {LISTED}", (listed([row for row, _ in gone]),))
        return Removal(tuple(chunk for _, chunk in gone), tuple(chunk for _, chunk, uses in found if uses))


def _together(removals: Iterable[Removal]) -> Removal:
    """Joins removals in their order: what one lets go and a later one still held is gone, and the other way round."""
    gone: dict[str, None] = {}
    kept: dict[str, None] = {}
    for removal in removals:
        for chunk in removal.gone:
            gone[chunk] = None
            kept.pop(chunk, None)
        for chunk in removal.kept:
            kept[chunk] = None
    return Removal(tuple(gone), tuple(kept))
