"""The tables of a catalog, and how an older one is migrated; refuses a newer one, and another program's database."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from retriever import filter_condition
from retriever.catalog import query_terms
from retriever.errors import CatalogError

# A label is what a filter sees: a document's collection and metadata, or a passage's own.
# A passage is a chunk where it stands in a document; only passages of serving documents are in `terms`.
_FIRST: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE collections (name TEXT PRIMARY KEY, rules TEXT NOT NULL, created REAL NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE prefixes (
    collection TEXT NOT NULL, model TEXT NOT NULL, ids BLOB NOT NULL, PRIMARY KEY (collection, model)
) STRICT, WITHOUT ROWID;
CREATE TABLE labels (row INTEGER PRIMARY KEY, collection TEXT NOT NULL, metadata TEXT NOT NULL) STRICT;
CREATE INDEX labels_of_collection ON labels (collection);
CREATE TABLE facets (
    field TEXT NOT NULL, value ANY NOT NULL, label INTEGER NOT NULL, PRIMARY KEY (field, value, label)
) STRICT, WITHOUT ROWID;
CREATE INDEX facets_of_label ON facets (label);
CREATE TABLE documents (
    row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, serving INTEGER NOT NULL, label INTEGER NOT NULL,
    title TEXT NOT NULL, digest BLOB NOT NULL, parts INTEGER NOT NULL, created REAL NOT NULL, updated REAL NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_version_serves ON documents (id) WHERE serving = 1;
CREATE INDEX documents_of_id ON documents (id);
CREATE INDEX documents_of_label ON documents (label);
CREATE TABLE chunks (
    row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, uses INTEGER NOT NULL, text TEXT NOT NULL,
    head INTEGER, tail INTEGER, nbytes INTEGER
) STRICT;
CREATE TABLE passages (
    row INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL, place INTEGER NOT NULL, chunk INTEGER NOT NULL,
    label INTEGER NOT NULL, name TEXT NOT NULL, start INTEGER, page INTEGER, own TEXT, words INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX passages_of_document ON passages (document, place);
CREATE INDEX passages_of_chunk ON passages (chunk);
CREATE INDEX passages_of_label ON passages (label);
CREATE VIRTUAL TABLE terms USING fts5 (body, content = '', tokenize = 'ascii');
CREATE TABLE embedders (
    row INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, dim INTEGER NOT NULL, serving INTEGER NOT NULL
) STRICT;
CREATE TABLE vectors (
    row INTEGER PRIMARY KEY AUTOINCREMENT, embedder INTEGER NOT NULL, chunk INTEGER NOT NULL, vector BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX vectors_of_chunk ON vectors (chunk, embedder);
CREATE TABLE removed (row INTEGER PRIMARY KEY AUTOINCREMENT, chunk INTEGER NOT NULL, id TEXT NOT NULL) STRICT;
CREATE TABLE tombstones (
    row INTEGER PRIMARY KEY AUTOINCREMENT, document TEXT NOT NULL, collection TEXT NOT NULL, deleted REAL NOT NULL
) STRICT;
INSERT INTO facts VALUES ('catalog', hex(randomblob(8))), ('changes', 0), ('passages', 0), ('words', 0), ('dropped', 0);
"""

# An upload's content stands apart, so that no listing reads it; it is there as long as the upload is live.
# `origin` is the upload's own row, or that of the file it came out of: it tells which of two was wanted later.
_UPLOADS: Final = """
CREATE TABLE jobs (row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, created REAL NOT NULL) STRICT;
CREATE TABLE uploads (
    row INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL, origin INTEGER NOT NULL, document TEXT NOT NULL,
    collection TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, version INTEGER,
    chunks INTEGER NOT NULL DEFAULT 0, stored INTEGER NOT NULL DEFAULT 0, over_budget INTEGER NOT NULL DEFAULT 0,
    unsupported INTEGER NOT NULL DEFAULT 0, detail TEXT NOT NULL DEFAULT '', created REAL NOT NULL,
    updated REAL NOT NULL
) STRICT;
CREATE INDEX uploads_of_job ON uploads (job);
CREATE INDEX uploads_of_document ON uploads (document, origin) WHERE document <> '';
CREATE INDEX live_uploads ON uploads (row) WHERE state IN ('waiting', 'computing');
CREATE INDEX live_uploads_of_document ON uploads (document) WHERE state IN ('waiting', 'computing');
CREATE TABLE contents (upload INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT;
INSERT INTO facts VALUES ('swept', 0);
"""

# A document that was deleted does not come back with a file that was accepted before, up to this upload.
_DELETIONS: Final = """
CREATE TABLE deletions (document TEXT PRIMARY KEY, upload INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX live_files ON uploads (row) WHERE state IN ('waiting', 'computing') AND document = '';
"""

_SOURCES: Final = """
CREATE TABLE sources (
    collection TEXT NOT NULL, name TEXT NOT NULL, signature TEXT NOT NULL, documents TEXT NOT NULL,
    PRIMARY KEY (collection, name)
) STRICT, WITHOUT ROWID;
"""

# Where a corpus's caches stopped, by model: what limited them, and the bytes that they took then.
_LIMITS: Final = """
CREATE TABLE limits (
    collection TEXT NOT NULL, model TEXT NOT NULL, terms TEXT NOT NULL, nbytes INTEGER NOT NULL,
    PRIMARY KEY (collection, model)
) STRICT, WITHOUT ROWID;
"""

# Nobody read them, and the ids of deleted documents stayed in them.
_NO_TOMBSTONES: Final = "DROP TABLE tombstones;\n"

# Where a file of a corpus was, which tells folders of one name apart.
_BASES: Final = "ALTER TABLE sources ADD COLUMN base TEXT NOT NULL DEFAULT '';\n"

# What chunks are captured behind, by whom may see it; and chunks that may have been captured behind something else.
_CONTEXTS: Final = """
CREATE TABLE fillers (
    collection TEXT NOT NULL, domain TEXT NOT NULL, place INTEGER NOT NULL, document TEXT NOT NULL,
    chunk TEXT NOT NULL, title TEXT NOT NULL, excerpt BLOB NOT NULL, PRIMARY KEY (collection, domain, place)
) STRICT, WITHOUT ROWID;
CREATE INDEX fillers_of_document ON fillers (document);
CREATE TABLE moved (
    row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, swept INTEGER NOT NULL DEFAULT 0
) STRICT;
"""

# How much waits, and what of it is large, is told without reading it.
_SIZES: Final = """
ALTER TABLE uploads ADD COLUMN nbytes INTEGER NOT NULL DEFAULT 0;
UPDATE uploads SET nbytes = coalesce((SELECT length(content) FROM contents WHERE upload = uploads.row), 0);
CREATE INDEX live_sizes ON uploads (nbytes) WHERE state IN ('waiting', 'computing');
"""

# Each brings a catalog from its place in this list to the next version. Never changed, only followed by others.
STEPS: Final = (_FIRST, _UPLOADS, _DELETIONS, _SOURCES, _LIMITS, _NO_TOMBSTONES, _BASES, _CONTEXTS, _SIZES)
VERSION = len(STEPS)


def prepare(connection: sqlite3.Connection) -> None:
    """Bring an empty or older catalog to this version, in one transaction."""
    found = _version(connection)
    if found > VERSION:
        raise CatalogError(f"the catalog is of version {found}, this kvweave knows {VERSION}: use the newer kvweave")
    if found == VERSION:
        return
    with transaction(connection):
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not _version(connection) and tables != (0,):
            raise CatalogError("the file is another program's database: name another file for the catalog")
        for number in range(_version(connection), VERSION):  # another process may have been sooner
            _run(connection, STEPS[number])
            connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute("INSERT OR IGNORE INTO facts VALUES ('analysis', ?)", (analysis(),))


def analysis() -> str:
    """What tells by which rules the words of the index and the values that filters compare are made."""
    return f"{query_terms.VERSION} {filter_condition.VERSION}"


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Commits all that is done inside the block, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _version(connection: sqlite3.Connection) -> int:
    [version] = connection.execute("PRAGMA user_version").fetchone()
    return version


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Runs a script statement by statement: executescript would commit."""
    for statement in script.split(";\n"):
        connection.execute(statement)
