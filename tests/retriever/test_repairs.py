"""A catalog whose derived rows were damaged is, once checked, what one is that never was."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from retriever.catalog.check import check_catalog, mend_rows
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from retriever.filter_condition import EVERYTHING, condition
from retriever.library import Library
from retriever.search import Query
from retriever.types import Removal
from tests.retriever.fakes import WordEmbedder
from tests.retriever.libraries import MODES, WORDS

FILTERS = [EVERYTHING, condition({"team": "red"}), condition({"own": 1}), condition({"team": {"$ne": "red"}})]
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
        library = Library(catalog, folder, embedders=[WordEmbedder()])
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


def observed(folder: Path) -> tuple[list[object], Removal, list[list[tuple[object, ...]]]]:
    """What searches and recognition find, what deletes let go of, and what is left then."""
    with closing(SqliteCatalog(folder / "catalog.sqlite")) as catalog:
        library = Library(catalog, folder, embedders=[WordEmbedder()])
        while library.advance(100):
            pass
        with catalog.view() as view:
            texts = [text for _, text in sorted(view.texts(view.chunks_of(EVERYTHING).tolist()).items())]
        found: list[object] = [
            [(hit.passage, hit.score) for hit in library.search(Query(word, 100, mode, allowed))]
            for word in ("amber birch", "cedar", "grape")
            for mode in MODES
            for allowed in FILTERS
        ]
        found += [library.recognise("\n".join(texts), allowed=allowed) for allowed in FILTERS]
        with catalog.change() as change:
            removal = change.delete([f"d{number}" for number in range(0, 20, 2)])
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as connection:
        return found, removal, derived(connection)


@pytest.mark.parametrize("seed", range(12))
def test_rows_that_follow_from_others_are_what_they_were(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    sound, mended = tmp_path / "sound", tmp_path / "mended"
    filled(sound, chance)
    shutil.copytree(sound, mended)
    with closing(sqlite3.connect(mended / "catalog.sqlite")) as connection, connection:
        before = derived(connection)
        while derived(connection) == before:
            for _ in range(chance.randrange(1, 5)):
                damage(connection, chance)
    report = mend_rows(mended / "catalog.sqlite") or check_catalog(mended / "catalog.sqlite")
    assert mend_rows(mended / "catalog.sqlite") is None
    assert (report.damaged, report.mended > 0) == ((), True)
    assert check_catalog(mended / "catalog.sqlite").mended == 0
    assert observed(mended) == observed(sound)
