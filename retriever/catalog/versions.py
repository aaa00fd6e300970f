"""How versions of documents are staged, serve, are patched and removed, and how several removals become one."""

import time
from collections.abc import Iterable, Sequence

from retriever.catalog.contexts import ContextsChange
from retriever.catalog.lexical import body, index
from retriever.catalog.rows import digest_of, dumps, entries, loads, sound_text
from retriever.catalog.soundness import is_same
from retriever.documents import Document, DocumentPart, Json, check_id
from retriever.errors import DocumentError
from retriever.filter_condition import LISTED, facets, listed
from retriever.marks import marks
from retriever.types import DocumentRow, Removal


class VersionsChange(ContextsChange):
    """The changes of documents' versions, as part of one transaction."""

    def put(self, documents: Sequence[Document], *, collection: str) -> Removal:
        """Put documents in and make them serve. One that is there already, just so, is left alone."""
        versions: list[int] = []
        for document in documents:
            check_id(document.id)
            digest = digest_of(document, collection)
            if not is_same(self._connection, document.id, digest=digest):
                versions.append(self._stage(document, collection, digest=digest))
        return together(self._serve(version) for version in versions)

    def stage(self, document: Document, *, collection: str) -> int:
        """Keep a version that does not serve yet; returns its number."""
        check_id(document.id)
        return self._stage(document, collection, digest=digest_of(document, collection))

    def serve(self, version: int) -> Removal:
        """Make a staged version serve in the place of the one that did. Raises DocumentError where it is not there."""
        self._number_anew(version)
        return self._serve(version)

    def drop(self, version: int) -> Removal:
        """Drop a version that never served. One that is not there counts as dropped."""
        found = self._run("SELECT serving, id FROM documents WHERE row = ?", (version,)).fetchone()
        if not found or found[0]:
            return Removal()
        removal = self._remove(version)
        for collection, domain in self._lost_fillers([found[1]]):  # it was to be filler once it serves
            self.keep_filler(collection, domain, passages=())
        return removal

    def patch(self, document: str, *, metadata: Json) -> DocumentRow | None:
        """Lay metadata over a document's; null takes a field away. None where there is no such document."""
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
        columns = "id, title, created, serving, digest"
        found = self._run(f"SELECT {columns} FROM documents WHERE row = ?", (version,)).fetchone()
        if not found:
            raise DocumentError(
                f"version {version} is not there: it was dropped, or its document deleted; put it again"
            )
        document, title, created, serving, digest = found
        if serving:  # indexed already
            return Removal()
        served = "SELECT row, created, digest FROM documents WHERE id = ? AND serving = 1"
        older = self._run(served, (document,)).fetchone()
        if older and older[2] == digest and not is_same(self._connection, document, digest=digest):
            self._doubt_words()
        removal = self._remove(older[0]) if older else Removal()
        self._run(
            "UPDATE documents SET serving = 1, created = ? WHERE row = ?", (older[1] if older else created, version)
        )
        self._index(version, title)
        return removal

    def _stage(self, document: Document, collection: str, *, digest: bytes) -> int:
        try:
            return self._kept_version(document, collection, digest=digest)
        except UnicodeEncodeError as error:
            at = f"{error.object[error.start]!r} at {error.start}"
            raise DocumentError(
                f"document {document.id!a} has half a character, {at}, which no UTF-8 can say: take it out"
            ) from error

    def _kept_version(self, document: Document, collection: str, *, digest: bytes) -> int:
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
        ids = [part.id for part in parts]
        texts = zip(ids, parts, marks([part.text for part in parts]), strict=True)
        self._connection.executemany(
            "INSERT INTO chunks (id, uses, text, head, tail, nbytes) VALUES (?, 1, CAST(? AS TEXT), ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET uses = chunks.uses + 1, text = excluded.text, head = excluded.head, "
            "tail = excluded.tail, nbytes = excluded.nbytes",
            [
                (each, part.text.encode(), *((mark.head, mark.tail, mark.nbytes) if mark else (None, None, None)))
                for each, part, mark in texts
            ],
        )
        rows = dict(self._run(f"SELECT id, row FROM chunks WHERE id IN {LISTED}", (listed(ids),)).fetchall())
        return [rows[each] for each in ids]

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
        self._count(len(found), words=index(self._connection, found))

    def _bodies(self, version: int, title: str) -> list[tuple[int, list[str]]]:
        found = self._run(
            "SELECT p.row, c.id, CAST(c.text AS BLOB) FROM passages p JOIN chunks c ON c.row = p.chunk "
            "WHERE p.document = ?",
            (version,),
        )
        texts = {row: sound_text(chunk, data) for row, chunk, data in found}
        if None in texts.values():
            self._doubt_words()
        return [(row, body(title, text or "")) for row, text in texts.items()]

    def _doubt_words(self) -> None:
        """Nobody knows any more which words the index has of what is damaged: it is made anew with the next purge."""
        self._run("UPDATE facts SET value = 0 WHERE name = 'analysis'")

    def _count(self, passages: int, *, words: int) -> None:
        self._run("UPDATE facts SET value = value + ? WHERE name = 'passages'", (passages,))
        self._run("UPDATE facts SET value = value + ? WHERE name = 'words'", (words,))

    def _remove(self, version: int) -> Removal:
        """Removes all of a version; chunks that nothing else uses go too."""
        title, serving = self._run("SELECT title, serving FROM documents WHERE row = ?", (version,)).fetchone()
        if serving:
            bodies = self._bodies(version, title)
            self._connection.remove_words(bodies)
            self._count(-len(bodies), words=-sum(len(found) for _, found in bodies))
        self._run("UPDATE facts SET value = 1 WHERE name = 'dropped'")
        used = "SELECT chunk, count(*) AS times FROM passages WHERE document = ? GROUP BY chunk"
        chunks = self._run(
            f"UPDATE chunks SET uses = chunks.uses - used.times FROM ({used}) AS used WHERE chunks.row = used.chunk "
            "RETURNING chunks.row, chunks.id, chunks.uses",
            (version,),
        ).fetchall()
        places = self._leave(version)
        labels = "SELECT label FROM passages WHERE document = ?1 UNION SELECT label FROM documents WHERE row = ?1"
        self._run(f"DELETE FROM facets WHERE label IN ({labels})", (version,))
        self._run(f"DELETE FROM labels WHERE row IN ({labels})", (version,))
        self._run("DELETE FROM passages WHERE document = ?", (version,))
        self._run("DELETE FROM documents WHERE row = ?", (version,))
        gone = listed([row for row, _, uses in chunks if not uses])
        self._run(f"INSERT INTO removed (chunk, id) SELECT row, id FROM chunks WHERE row IN {LISTED}", (gone,))
        self._run(f"DELETE FROM vectors WHERE chunk IN {LISTED}", (gone,))
        self._run(f"DELETE FROM chunks WHERE row IN {LISTED}", (gone,))
        self._left(places)
        kept = tuple(chunk for _, chunk, uses in chunks if uses)
        return Removal(tuple(chunk for _, chunk, uses in chunks if not uses), kept)


def together(removals: Iterable[Removal]) -> Removal:
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
