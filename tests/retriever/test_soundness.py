"""Damage in rows that follow from others is told, and nothing is changed by who tells it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from retriever.catalog.check import CatalogReport, check_catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from retriever.embedders.embedding import Embedders
from retriever.library import Library
from tests.retriever.fakes import WordEmbedder
from tests.retriever.libraries import WORDS

NUMBERS = "head", "tail", "nbytes"
TABLES = (
    "SELECT row, id, uses, head, tail, nbytes FROM chunks",
    "SELECT row, id, parts FROM documents",
    "SELECT p.row, p.chunk, p.words, l.collection, l.metadata FROM passages p JOIN labels l ON l.row = p.label",
    "SELECT d.id, f.field, f.value FROM facets f JOIN documents d ON d.label = f.label",
    "SELECT p.row, f.field, f.value FROM facets f JOIN passages p ON p.label = f.label",
    "SELECT count(*) FROM labels UNION ALL SELECT count(*) FROM facets",
    "SELECT name, value FROM facts WHERE name IN ('passages', 'words')",
    "SELECT chunk, vector FROM vectors",
    "SELECT chunk, id FROM removed",
    "SELECT term, doc, offset FROM temp.instances",
)


def written(document: int, chance: Random) -> Document:
    """Two documents in three share a chunk with another one."""
    parts = [
        DocumentPart(
            " ".join(chance.choices(WORDS, k=9)) if chance.random() < 0.8 else "a chunk that many documents have",
            metadata={"own": chance.randrange(3)} if chance.random() < 0.3 else {},
        )
        for _ in range(chance.randrange(1, 4))
    ]
    return Document(
        f"d{document}", tuple(parts), chance.choice(["", "birch"]), {"team": chance.choice(["red", "blue"])}
    )


def filled(folder: Path, chance: Random) -> None:
    """A catalog that was changed in all ways, with a version that is staged."""
    with closing(SqliteCatalog(folder / "catalog.sqlite")) as catalog:
        library = Library(catalog, folder, embedders=Embedders(WordEmbedder()))
        library.put([written(number, chance) for number in range(12)], collection="c")
        library.put([written(number, chance) for number in range(8, 16)], collection="d")
        library.stage_all([written(3, chance), written(20, chance)], collection="c")
        with catalog.change() as change:
            change.patch("d1", metadata={"team": "red", "by": [1, "me"]})
            change.delete(["d2"])


def derived(connection: sqlite3.Connection) -> list[list[tuple[object, ...]]]:
    connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.instances USING fts5vocab (main, terms, instance)")
    return [sorted(connection.execute(query), key=repr) for query in TABLES]


def damage(connection: sqlite3.Connection, chance: Random) -> None:
    """Changes one row, or all of the index."""

    def some(table: str) -> int:
        return chance.choice(connection.execute(f"SELECT row FROM {table}").fetchall())[0]

    number = chance.choice(["NULL", chance.getrandbits(62)])
    match chance.randrange(9):
        case 0:
            connection.execute(f"UPDATE chunks SET uses = {chance.randrange(-1, 4)} WHERE row = {some('chunks')}")
        case 1:
            connection.execute(f"UPDATE chunks SET {chance.choice(NUMBERS)} = {number} WHERE row = {some('chunks')}")
        case 2:
            connection.execute(f"UPDATE documents SET parts = parts + 1 WHERE row = {some('documents')}")
        case 3:
            target = chance.choice([some("labels"), 777])
            connection.execute(f"UPDATE passages SET label = {target} WHERE row = {some('passages')}")
        case 4:
            connection.execute(f"DELETE FROM facets WHERE label = {some('labels')}")
        case 5:
            told = chance.choice(["('team', 'green', ?)", "('own', 1, ?)"])
            connection.execute(f"INSERT OR IGNORE INTO facets VALUES {told}", (chance.choice([some("labels"), 777]),))
        case 6:
            connection.execute(
                "UPDATE facts SET value = value + 1 WHERE name = ?", (chance.choice(["passages", "words"]),)
            )
        case 7:
            cut = chance.choice(["vector = x'0000'", "embedder = 7", "chunk = 777"])
            connection.execute(f"UPDATE vectors SET {cut} WHERE row = {some('vectors')}")
        case _:
            words = chance.choice(
                ["(rowid, body) VALUES (?, 'amber grape')", "(terms) SELECT 'delete-all' WHERE ? > 0"]
            )
            connection.execute(f"INSERT INTO terms {words}", (some("passages"),))


@pytest.mark.parametrize("seed", range(12))
def test_damage_is_told_and_left(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    filled(tmp_path, chance)
    path = tmp_path / "catalog.sqlite"
    sound = check_catalog(path)
    assert sound == CatalogReport(sound.documents)
    with closing(sqlite3.connect(path)) as connection, connection:
        before = derived(connection)
        while derived(connection) == before:
            for _ in range(chance.randrange(1, 5)):
                damage(connection, chance)
        after = derived(connection)
    report = check_catalog(path)
    assert report.damaged or report.wrong
    with closing(sqlite3.connect(path)) as connection:
        assert derived(connection) == after
    assert check_catalog(path) == report
