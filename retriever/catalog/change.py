"""Changes of a catalog: deletes documents and collections, keeps prefixes, embedders, vectors, source files, limits."""

import json
import time
from collections.abc import Sequence

import numpy as np

from retriever.catalog.renew import index_anew, is_current
from retriever.catalog.rows import LIVE, dumps, fact
from retriever.catalog.uploads import UploadsChange
from retriever.catalog.versions import together
from retriever.errors import SearchError
from retriever.filter_condition import LISTED, listed
from retriever.types import Collection, Limit, Removal, SourceFile, Vectors


class CatalogChange(UploadsChange):
    """Changes a catalog in one transaction: all of it happens, or nothing."""

    def put_collection(self, collection: Collection, *, only_new: bool = False) -> bool:
        """Make a collection, or give it other rules; its documents stay as they were cut. False, and nothing is done,
        where one is there and only a new one is wanted.
        """
        other = "NOTHING" if only_new else "UPDATE SET rules = excluded.rules"
        put = f"INSERT INTO collections VALUES (?, ?, ?) ON CONFLICT (name) DO {other} RETURNING name"
        told = (collection.name, dumps(collection.rules), time.time())
        return self._run(put, told).fetchone() is not None

    def delete_collection(self, name: str) -> Removal:
        """Delete a collection with all its documents, staged ones too; its live uploads end as deleted."""
        removal = together([self._delete("l.collection = ?", name), *self._delete_uploads_in(name)])
        self._run("DELETE FROM prefixes WHERE collection = ?", (name,))
        self._run("DELETE FROM sources WHERE collection = ?", (name,))
        self._run("DELETE FROM limits WHERE collection = ?", (name,))
        self._run("DELETE FROM fillers WHERE collection = ?", (name,))
        self._run("DELETE FROM collections WHERE name = ?", (name,))
        return removal

    def keep_prefix(self, collection: str, *, model: str, ids: Sequence[int]) -> tuple[int, ...]:
        """Keep a prefix; returns the first that was ever kept for this collection and model, which never changes."""
        kept = np.array(ids, "<u4").tobytes()
        self._run("INSERT INTO prefixes VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (collection, model, kept))
        [kept] = self._run(
            "SELECT ids FROM prefixes WHERE collection = ? AND model = ?", (collection, model)
        ).fetchone()
        return tuple(np.frombuffer(kept, "<u4").tolist())

    def drop_orphans(self) -> Removal:
        """Drop versions that were staged for no live upload: whoever wanted to serve them was killed."""
        wanted = f"SELECT version FROM uploads WHERE {LIVE} AND version IS NOT NULL"
        found = self._run(f"SELECT row FROM documents WHERE serving = 0 AND row NOT IN ({wanted})").fetchall()
        return together([self.drop(version) for (version,) in found])

    def delete(self, documents: Sequence[str]) -> Removal:
        """Delete every version of these documents; their live uploads, in whatever collection, end as deleted.

        So do those that come out of files which are live now, when they are expanded.
        """
        removal = self._delete(f"d.id IN {LISTED}", listed(documents))
        return together([removal, *self._delete_uploads(documents)])

    def purge(self) -> None:
        """Make the index forget the words of what was deleted, which it does by itself only some day. Takes a while."""
        if not is_current(self._connection):
            index_anew(self._connection)
        if fact(self._connection, "dropped") > 0:
            self._connection.purge_words()
            self._run("UPDATE facts SET value = -1 WHERE name = 'dropped'")

    def add_embedder(self, name: str, *, dim: int) -> None:
        """Add an embedder. It serves at once if there is nothing to embed yet."""
        found = "EXISTS (SELECT 1 FROM embedders) OR EXISTS (SELECT 1 FROM chunks)"
        values = f"(?, ?, CASE WHEN {found} THEN 0 ELSE 1 END)"
        self._run(f"INSERT INTO embedders (name, dim, serving) VALUES {values} ON CONFLICT DO NOTHING", (name, dim))

    def serve_embedder(self, name: str) -> None:
        """Make this embedder the one that serves; the vectors of all others are removed."""
        if not self._run("SELECT 1 FROM embedders WHERE name = ?", (name,)).fetchone():
            raise SearchError(f"the catalog knows no embedder {name!r}: add it first")
        self._run("UPDATE embedders SET serving = CASE WHEN name = ? THEN 1 ELSE 0 END", (name,))
        self._run("DELETE FROM vectors WHERE embedder NOT IN (SELECT row FROM embedders WHERE serving = 1)")
        self._run("DELETE FROM embedders WHERE serving = 0")

    def put_vectors(self, ids: Sequence[str], vectors: Vectors, *, embedder: str) -> None:
        """Keep the vectors of chunks that are known and have none; those of other chunks are left out."""
        dim = self._run("SELECT dim FROM embedders WHERE name = ?", (embedder,)).fetchone()
        assert not dim or not len(ids) or vectors.shape[1:] == dim, f"{embedder}: {vectors.shape}, not {dim[0]} wide"
        self._connection.executemany(
            "INSERT INTO vectors (embedder, chunk, vector) SELECT e.row, c.row, ? FROM embedders e, chunks c "
            "WHERE e.name = ? AND c.id = ? ON CONFLICT (chunk, embedder) DO NOTHING",
            [(each.astype("<f2").tobytes(), embedder, chunk) for chunk, each in zip(ids, vectors, strict=True)],
        )

    def put_source(self, collection: str, name: str, *, source: SourceFile) -> None:
        """Remember a file, in the place of what it was before."""
        values = (collection, name, source.signature, json.dumps(source.documents), source.base)
        self.forget_source(collection, name)
        self._run("INSERT INTO sources VALUES (?, ?, ?, ?, ?)", values)

    def forget_source(self, collection: str, name: str) -> None:
        """Forget a file; its documents stay."""
        self._run("DELETE FROM sources WHERE collection = ? AND name = ?", (collection, name))

    def put_limit(self, collection: str, limit: Limit | None, *, model: str) -> None:
        """Remember what stopped a model's caches of a collection, or that nothing does any more."""
        self._run("DELETE FROM limits WHERE collection = ? AND model = ?", (collection, model))
        if limit is not None:
            self._run("INSERT INTO limits VALUES (?, ?, ?, ?)", (collection, model, limit.terms, limit.nbytes))

    def swept(self, row: int) -> None:
        """Note that the caches of all chunks removed up to this row are gone, but for chunks that are again."""
        self._run("UPDATE facts SET value = ?1 WHERE name = 'swept' AND value < ?1", (row,))

    def _delete(self, which: str, value: str) -> Removal:
        found = self._run(
            f"SELECT d.row FROM documents d JOIN labels l ON l.row = d.label WHERE {which} ORDER BY d.row", (value,)
        ).fetchall()
        return together([self._remove(version) for (version,) in found])
