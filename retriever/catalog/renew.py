"""Makes a catalog's lexical index anew where its words were made by other rules than today's. Changes no document."""

import sqlite3

from retriever.catalog.connection import CatalogConnection
from retriever.catalog.fts5_words import Fts5Words
from retriever.catalog.lexical import body, index
from retriever.catalog.rows import fact, sound_text
from retriever.catalog.schema import transaction
from retriever.catalog.word_table import WordTable

_BATCH = 1000
_SERVING = """
SELECT p.row, d.title, c.id, CAST(c.text AS BLOB), p.words
FROM passages p JOIN documents d ON d.row = p.document JOIN chunks c ON c.row = p.chunk WHERE d.serving = 1
"""


def renew(connection: sqlite3.Connection) -> None:
    """Makes the index anew, in one transaction, where its rules differ. To delete from it, its own words are needed."""
    table = Fts5Words()
    if is_current(connection, table):
        return
    with transaction(connection):
        if not is_current(connection, table):  # another process may have been sooner
            index_anew(connection, table)


def is_current(connection: CatalogConnection, table: WordTable) -> bool:
    """Whether the words in the index are those that today's rules make."""
    return str(fact(connection, "analysis")) == str(table.version)


def is_index_sound(connection: sqlite3.Connection) -> bool:
    """Whether the index has the words of what serves, each where it stands, and no others, and all are counted."""
    wanted = words = 0
    for row, title, chunk, data, counted in connection.execute(_SERVING):
        found = body(title, sound_text(chunk, data) or "")
        if counted != len(found):
            return False
        wanted += hash((row,)) + sum(hash((word, row, at)) for at, word in enumerate(found))
        words += len(found)
    connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.held USING fts5vocab('main', 'terms', 'instance')")
    try:
        held = sum(map(hash, connection.execute("SELECT id FROM terms_docsize")))
        held += sum(map(hash, connection.execute("SELECT term, doc, offset FROM temp.held")))
    except sqlite3.DatabaseError:
        return False
    return words == fact(connection, "words") and wanted == held


def index_anew(connection: CatalogConnection, table: WordTable) -> None:
    """Makes the index anew, within the caller's transaction. A damaged text has no words."""
    table.clear(connection)
    words, last = 0, 0
    while found := connection.execute(f"{_SERVING} AND p.row > ? ORDER BY p.row LIMIT ?", (last, _BATCH)).fetchall():
        bodies = [(row, body(title, sound_text(*each) or "")) for row, title, *each, _ in found]
        words += index(connection, bodies, table=table)
        last = found[-1][0]
    connection.execute("UPDATE facts SET value = ? WHERE name = 'words'", (words,))
    connection.execute("UPDATE facts SET value = ? WHERE name = 'analysis'", (table.version,))
