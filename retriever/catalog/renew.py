"""Makes a catalog's words and filter values anew where other rules than today's made them. Changes no document."""

from collections.abc import Iterator
from contextlib import suppress

from retriever.catalog.connection import Bodies, CatalogConnection
from retriever.catalog.lexical import body, index
from retriever.catalog.rows import fact, loads, sound_text
from retriever.catalog.schema import transaction
from retriever.catalog.sqlite_connection import SqliteConnection
from retriever.errors import CatalogError, FilterError
from retriever.filter_condition import Value, facets

_BATCH = 1000
_SERVING = """
SELECT p.row, d.title, c.id, CAST(c.text AS BLOB), p.words
FROM passages p JOIN documents d ON d.row = p.document JOIN chunks c ON c.row = p.chunk WHERE d.serving = 1
"""


def renew(connection: SqliteConnection) -> None:
    """Makes the index anew, in one transaction, where its rules differ. To delete from it, its own words are needed."""
    if is_current(connection):
        return
    with transaction(connection):
        if not is_current(connection):  # another process may have been sooner
            index_anew(connection)


def is_current(connection: CatalogConnection) -> bool:
    """Whether the words in the index, and what filters look at, are what today's rules make."""
    return str(fact(connection, "analysis")) == str(connection.analysis)


def is_index_sound(connection: CatalogConnection) -> bool:
    """Whether the index has the words of what serves and no others, and all are counted."""
    words, is_counted = 0, True

    def bodies() -> Iterator[Bodies]:
        nonlocal words, is_counted
        for found in _serving(connection):
            is_counted &= all(count == len(told) for _, told, count in found)
            words += sum(len(told) for _, told, _ in found)
            yield [(row, told) for row, told, _ in found]

    return connection.holds_words(bodies()) and is_counted and words == fact(connection, "words")


def index_anew(connection: CatalogConnection) -> None:
    """Makes the index anew, within the caller's transaction, and filter values. A damaged text has no words."""
    _facet_anew(connection)
    connection.clear_words()
    words = sum(index(connection, [(row, told) for row, told, _ in found]) for found in _serving(connection))
    connection.execute("UPDATE facts SET value = ? WHERE name = 'words'", (words,))
    connection.execute("UPDATE facts SET value = ? WHERE name = 'analysis'", (connection.analysis,))


def _facet_anew(connection: CatalogConnection) -> None:
    """Adds the values that filters look at and that are not there. Damaged metadata keep theirs."""
    last = 0
    some = "SELECT row, metadata FROM labels WHERE row > ? ORDER BY row LIMIT ?"
    while found := connection.execute(some, (last, _BATCH)).fetchall():
        told: list[tuple[str, Value, int]] = []
        for label, text in found:
            with suppress(CatalogError, FilterError):
                told += [(field, value, label) for field, value in facets(loads(text))]
        connection.executemany("INSERT INTO facets VALUES (?, ?, ?) ON CONFLICT DO NOTHING", told)
        last = found[-1][0]


def _serving(connection: CatalogConnection) -> Iterator[list[tuple[int, list[str], int]]]:
    """Yields the passages that serve, by their numbers: their words, and how many are counted."""
    last = 0
    while found := connection.execute(f"{_SERVING} AND p.row > ? ORDER BY p.row LIMIT ?", (last, _BATCH)).fetchall():
        yield [(row, body(title, sound_text(*each) or ""), count) for row, title, *each, count in found]
        last = found[-1][0]
