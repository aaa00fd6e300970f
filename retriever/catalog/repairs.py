"""What of a catalog follows from its other rows, and what to run where it does not. Runs nothing itself.

Each step is read when the one before it was run, so that it follows from rows that are right by then.
"""

from collections.abc import Iterator
from contextlib import suppress

from retriever.catalog.catalog_tables import CatalogTables
from retriever.catalog.connection import CatalogConnection
from retriever.catalog.rows import dumps, loads, sound_text
from retriever.documents import Json
from retriever.errors import CatalogError
from retriever.filter_condition import facets
from retriever.marks import marks

Repair = tuple[str, tuple[object, ...]]  # a statement and its values

_BATCH = 1000
_VECTOR = "(SELECT 2 * dim FROM embedders e WHERE e.row = v.embedder)"

# Rows with what should stand in them, and what puts it there.
_COUNTED = (
    (
        "SELECT row FROM passages WHERE document NOT IN (SELECT row FROM documents)",
        "DELETE FROM passages WHERE row = ?",
    ),
    (
        "SELECT d.label, p.row FROM passages p JOIN documents d ON d.row = p.document "
        "WHERE p.own IS NULL AND p.label <> d.label",
        "UPDATE passages SET label = ? WHERE row = ?",
    ),
    (
        "SELECT held, row FROM (SELECT row, uses, (SELECT count(*) FROM passages WHERE chunk = c.row) AS held "
        "FROM chunks c) AS each WHERE uses <> held",
        "UPDATE chunks SET uses = ? WHERE row = ?",
    ),
    (
        "SELECT held, row FROM (SELECT row, parts, (SELECT count(*) FROM passages WHERE document = d.row) AS held "
        "FROM documents d) AS each WHERE parts <> held",
        "UPDATE documents SET parts = ? WHERE row = ?",
    ),
    (
        "SELECT held FROM (SELECT count(*) AS held FROM passages p JOIN documents d ON d.row = p.document "
        "WHERE d.serving = 1) AS each WHERE held <> (SELECT value FROM facts WHERE name = 'passages')",
        "UPDATE facts SET value = ? WHERE name = 'passages'",
    ),
    (
        f"SELECT row FROM vectors v WHERE length(vector) IS NOT {_VECTOR} OR chunk NOT IN (SELECT row FROM chunks)",
        "DELETE FROM vectors WHERE row = ?",
    ),
)

# What no version holds, once each that is there is known to be right.
_LOOSE = (
    ("SELECT row, id FROM chunks WHERE uses = 0", "INSERT INTO removed (chunk, id) VALUES (?, ?)"),
    (
        "SELECT v.row FROM vectors v JOIN chunks c ON c.row = v.chunk WHERE c.uses = 0",
        "DELETE FROM vectors WHERE row = ?",
    ),
    ("SELECT row FROM chunks WHERE uses = 0", "DELETE FROM chunks WHERE row = ?"),
    (
        "SELECT row FROM labels WHERE row NOT IN (SELECT label FROM documents UNION SELECT label FROM passages)",
        "DELETE FROM labels WHERE row = ?",
    ),
    (
        "SELECT field, value, label FROM facets WHERE label NOT IN (SELECT row FROM labels)",
        "DELETE FROM facets WHERE field = ? AND value = ? AND label = ?",
    ),
)


def repairs(tables: CatalogTables) -> Iterator[Repair]:
    """Yields what labels, filters, marks and counts need, whatever documents are damaged."""
    connection = tables.connection
    yield from _labels(connection)
    for found, statement in _COUNTED:
        yield from ((statement, values) for values in connection.execute(found).fetchall())
    yield from _facets(tables)
    yield from _marks(connection)


def loose_ends(tables: CatalogTables) -> Iterator[Repair]:
    """Yields what lets go of texts and metadata that belong to no version. With a damaged one they may be its own."""
    for found, statement in _LOOSE:
        yield from ((statement, values) for values in tables.connection.execute(found).fetchall())


def _labels(connection: CatalogConnection) -> Iterator[Repair]:
    """Passages with metadata of their own have a label each: the document's metadata, and theirs in front."""
    [last] = connection.execute("SELECT coalesce(max(row), 0) FROM labels").fetchone()
    found = connection.execute(
        "SELECT p.row, l.collection, l.metadata, p.own, p.label, o.collection, o.metadata, "
        "EXISTS (SELECT 1 FROM passages WHERE label = p.label AND row < p.row) "
        "OR EXISTS (SELECT 1 FROM documents WHERE label = p.label) "
        "FROM passages p JOIN documents d ON d.row = p.document JOIN labels l ON l.row = d.label "
        "LEFT JOIN labels o ON o.row = p.label WHERE p.own IS NOT NULL"
    ).fetchall()
    for row, collection, metadata, own, has, its_collection, its_metadata, is_shared in found:
        merged, told = _read(metadata), _read(own)
        if merged is None or told is None:
            continue
        wanted = dumps({**merged, **told})
        if is_shared or its_metadata is None:
            last += 1
            yield "INSERT INTO labels VALUES (?, ?, ?)", (last, collection, wanted)
            yield "UPDATE passages SET label = ? WHERE row = ?", (last, row)
        elif (its_collection, its_metadata) != (collection, wanted):
            yield "UPDATE labels SET collection = ?, metadata = ? WHERE row = ?", (collection, wanted, has)


def _facets(tables: CatalogTables) -> Iterator[Repair]:
    """What filters look at is what the metadata say."""
    connection, last = tables.connection, 0
    some = "SELECT row, metadata FROM labels WHERE row > ? ORDER BY row LIMIT ?"
    while labels := connection.execute(some, (last, _BATCH)).fetchall():
        held: dict[int, set[tuple[object, object]]] = {}
        of_some = "SELECT label, field, value FROM facets WHERE label > ? AND label <= ?"
        for label, field, value in connection.execute(of_some, (last, labels[-1][0])):
            held.setdefault(label, set()).add((field, value))
        for label, text in labels:
            metadata = _read(text)
            if metadata is None:
                continue
            wanted = {tables.facet(*facet): facet for facet in facets(metadata)}
            found = held.get(label, set())
            for kept in found - wanted.keys():
                yield "DELETE FROM facets WHERE field = ? AND value = ? AND label = ?", (*kept, label)
            for kept in wanted.keys() - found:
                yield "INSERT INTO facets VALUES (?, ?, ?)", (*wanted[kept], label)
        last = labels[-1][0]


def _marks(connection: CatalogConnection) -> Iterator[Repair]:
    """The marks of sound texts."""
    last = 0
    while found := connection.execute(
        "SELECT row, id, CAST(text AS BLOB), head, tail, nbytes FROM chunks WHERE row > ? ORDER BY row LIMIT ?",
        (last, _BATCH),
    ).fetchall():
        texts = [sound_text(chunk, data) for _, chunk, data, *_ in found]
        for (row, *_, head, tail, nbytes), text, mark in zip(
            found, texts, marks([text or "" for text in texts]), strict=True
        ):
            wanted = (mark.head, mark.tail, mark.nbytes) if mark else (None, None, None)
            if text is not None and wanted != (head, tail, nbytes):
                yield "UPDATE chunks SET head = ?, tail = ?, nbytes = ? WHERE row = ?", (*wanted, row)
        last = found[-1][0]


def _read(text: str) -> Json | None:
    """The metadata of a label, None where nobody can read them any more."""
    with suppress(CatalogError):
        return loads(text)
    return None
