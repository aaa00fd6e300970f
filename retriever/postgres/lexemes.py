"""The table of words in PostgreSQL: lexemes behind a GIN index, without positions. Cuts no text itself."""

from collections.abc import Iterable, Iterator, Sequence

from blake3 import blake3

from retriever.catalog import query_terms
from retriever.catalog.connection import CatalogConnection, Fetched
from retriever.catalog.word_table import Bodies
from retriever.filter_condition import LISTED, listed

_MOST = 500_000  # bytes of a row's words; PostgreSQL takes a million


class Lexemes:
    """See `WordTable`. A passage of very many words has several rows, none of which shares a word with another."""

    @property
    def version(self) -> int | str:
        return int.from_bytes(blake3(query_terms.VERSION.encode()).digest(7))

    def put(self, connection: CatalogConnection, bodies: Bodies) -> None:
        told = [(row, part) for row, found in bodies for part in _parts(sorted(set(found)))]
        connection.executemany("INSERT INTO terms VALUES (?, array_to_tsvector(?))", told)

    def remove(self, connection: CatalogConnection, bodies: Bodies) -> None:
        connection.execute(f"DELETE FROM terms WHERE passage IN {LISTED}", (listed([row for row, _ in bodies]),))

    def clear(self, connection: CatalogConnection) -> None:
        connection.execute("DELETE FROM terms")

    def purge(self, connection: CatalogConnection) -> None:
        """The words went with their rows; what is left of these the next vacuum takes."""

    def holds(self, connection: CatalogConnection, bodies: Iterable[Bodies]) -> bool:
        last = 0
        some = "SELECT passage, tsvector_to_array(words) FROM terms WHERE passage > ? AND passage <= ?"
        for batch in bodies:
            held: dict[int, set[str]] = {}
            for passage, words in connection.execute(some, (last, batch[-1][0])):
                held.setdefault(passage, set()).update(words)
            if held != {row: set(found) for row, found in batch}:
                return False
            last = batch[-1][0]
        others = "SELECT 1 FROM terms WHERE passage <= 0 OR passage > ? LIMIT 1"
        return connection.execute(others, (last,)).fetchone() is None

    def rows(self, connection: CatalogConnection, term: str, *, after: int, limit: int) -> list[Fetched]:
        quoted = f"'{term[:-1]}':*" if term.endswith("*") else f"'{term}'"
        return connection.execute(
            "SELECT DISTINCT passage FROM terms WHERE words @@ CAST(? AS tsquery) AND passage > ? "
            "ORDER BY passage LIMIT CAST(? AS BIGINT)",
            (quoted, after, None if limit < 0 else limit),
        ).fetchall()


def _parts(words: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    nbytes = 0
    for word in words:
        if nbytes + len(word) > _MOST:
            yield part
            part, nbytes = [], 0
        part.append(word)
        nbytes += len(word)
    yield part
