"""The file of a catalog: newer, older, damaged, foreign, opened by several at once, cut short, or on a full disk."""

import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from retriever.catalog import query_terms, schema
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart, chunk_id
from retriever.errors import CatalogError
from retriever.filter_condition import EVERYTHING
from retriever.types import Collection, SourceFile
from tests.retriever.catalogs import observed

ROOT = Path(__file__).parents[2]


def filled(path: Path, *, documents: int = 3) -> None:
    catalog = SqliteCatalog(path)
    with catalog.change() as change:
        change.put_collection(Collection("c", {"size": 1}))
        change.add_embedder("e", dim=2)
        for number in range(documents):
            part = DocumentPart(f"text {number} of the catalog", metadata={"own": number})
            change.put([Document(f"{number:05}", (part,), "Title", {"n": number})], collection="c")
            change.put_vectors([part.id], np.array([[number, 1]], np.float32), embedder="e")
        change.stage(Document("staged", (DocumentPart("staged text"),)), collection="c")
    catalog.close()


@contextmanager
def at_version(number: int) -> Iterator[None]:
    """As it was when catalogs had this version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "STEPS", schema.STEPS[:number])
        patch.setattr(schema, "VERSION", number)
        yield


def state(path: Path) -> list[object]:
    catalog = SqliteCatalog(path)
    try:
        return observed(catalog)
    finally:
        catalog.close()


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [found] = connection.execute("PRAGMA user_version").fetchone()
    return found


def is_locked(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
        return False


# Versions


def test_a_newer_catalog_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    filled(path)
    before = state(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(CatalogError, match="use the newer kvweave"):
        SqliteCatalog(path)
    assert version(path) == schema.VERSION + 1 and not is_locked(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION}")
    assert state(path) == before


def test_an_older_catalog_is_brought_forward_with_all_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog"
    filled(path)
    before = state(path)
    steps = (*schema.STEPS, "CREATE TABLE extra (n ANY) STRICT;\nINSERT INTO extra SELECT id FROM chunks;\n")
    monkeypatch.setattr(schema, "STEPS", (*steps, "ALTER TABLE documents ADD COLUMN owner TEXT NOT NULL DEFAULT '';\n"))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 2)
    for _ in range(2):
        assert state(path) == before
    assert version(path) == schema.VERSION
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT count(*) FROM extra").fetchone()
        assert found == connection.execute("SELECT count(*) FROM chunks").fetchone()
    fresh = tmp_path / "fresh"
    filled(fresh)
    assert version(fresh) == schema.VERSION


def test_an_older_catalog_loses_the_ids_of_deleted_documents(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    with at_version(5):
        filled(path)
        before = state(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO tombstones (document, collection, deleted) VALUES ('idneedle', 'c', 1)")
    assert b"idneedle" in path.read_bytes()
    assert state(path) == before and version(path) == schema.VERSION
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema WHERE name = 'tombstones'").fetchall() == []
    assert b"idneedle" not in path.read_bytes()


def test_an_older_catalog_keeps_its_files(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    with at_version(6):
        filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO sources VALUES ('c', 'docs/a.md', '12 34 256', '[\"docs/a.md\"]')")
    catalog = SqliteCatalog(path)
    with catalog.view() as view:
        assert view.sources("c") == {"docs/a.md": SourceFile("12 34 256", ("docs/a.md",))}
    with catalog.change() as change:
        change.put_source("c", "docs/a.md", source=SourceFile("", (), "/home/me"))
    with catalog.view() as view:
        assert view.sources("c") == {"docs/a.md": SourceFile("", (), "/home/me")}
    catalog.close()


def test_a_step_that_fails_leaves_the_older_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog"
    filled(path)
    before = state(path)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "STEPS", (*schema.STEPS, "DELETE FROM documents;\nDELETE FROM nothing;\n"))
        patch.setattr(schema, "VERSION", schema.VERSION + 1)
        with pytest.raises(CatalogError, match="restore it from a backup"):
            SqliteCatalog(path)
        assert version(path) == schema.VERSION - 1 and not is_locked(path)
    assert state(path) == before


def test_words_are_made_anew_where_their_rules_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog"
    filled(path)
    before = state(path)
    terms = query_terms.terms
    with monkeypatch.context() as patch:
        patch.setattr(query_terms, "VERSION", "other")
        patch.setattr("retriever.catalog.lexical.terms", lambda text: [f"z{term}" for term in terms(text)])
        catalog = SqliteCatalog(path)
        with catalog.view() as view:
            assert len(view.lexical("ztext", EVERYTHING, limit=9)) == 3
            assert view.lexical("text", EVERYTHING, limit=9) == []
        with catalog.change() as change:
            change.delete(["00000"])
            change.put([Document("00000", (DocumentPart("text 0 of the catalog"),))], collection="c")
        catalog.close()
    again = state(path)
    assert [len(each) for each in before if isinstance(each, list)] != [] and len(again[4]) == len(before[4])  # type: ignore[arg-type]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO terms (terms) VALUES ('integrity-check')")
        connection.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab (main, terms, row)")
        assert connection.execute("SELECT 1 FROM words WHERE term LIKE 'z%'").fetchall() == []


# What is no catalog


@pytest.mark.parametrize("content", [b"hello", b"hello " * 10_000, b"SQLite format 3\0" + b"\xff" * 5000, bytes(8192)])
def test_what_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "catalog"
    path.write_bytes(content)
    with pytest.raises(CatalogError, match="no database"):
        SqliteCatalog(path)
    assert path.read_bytes() == content


def test_a_folder_is_no_catalog(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="name a place"):
        SqliteCatalog(tmp_path)


def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (n)")
    with pytest.raises(CatalogError, match="another program"):
        SqliteCatalog(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]


def test_another_programs_database_of_our_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (n)")
        connection.execute(f"PRAGMA user_version = {schema.VERSION}")
    with pytest.raises(CatalogError, match="restore it"):
        SqliteCatalog(path)


def test_a_damaged_file_is_a_catalog_error_with_the_remedy_or_reads_right(tmp_path: Path) -> None:
    """SQLite has no digests: what a flipped byte in a text says is not found out, a broken page is."""
    path, bad = tmp_path / "catalog", tmp_path / "bad"
    filled(path, documents=60)
    data, chance = path.read_bytes(), random.Random(5)
    pages, refused, others, wrong = len(data) // 4096, 0, 0, 0
    for _ in range(40):
        spoilt, page = bytearray(data), chance.randrange(pages)
        spoilt[page * 4096 : page * 4096 + 512] = chance.randbytes(512)
        bad.write_bytes(bytes(spoilt))
        try:
            catalog = SqliteCatalog(bad)
            try:
                observed(catalog)
                with catalog.change() as change:
                    change.delete([f"{number:05}" for number in range(60)])
            finally:
                catalog.close()
        except CatalogError as error:
            refused += "restore it from a backup" in str(error)
            others += "restore it from a backup" not in str(error)
        except (ValueError, TypeError, sqlite3.OperationalError):  # a text or a number that was not what it was
            wrong += 1
        for rest in tmp_path.glob("bad*"):
            rest.unlink()
    assert refused > 10 and not others and wrong < 10


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    filled(path, documents=60)
    path.write_bytes(path.read_bytes()[: 3 * 4096])
    with pytest.raises(CatalogError, match="restore it from a backup"):
        state(path)


# Several at once


def test_threads_that_open_a_new_catalog_at_once_open_the_same(tmp_path: Path) -> None:
    path, count = tmp_path / "folder" / "catalog", 6
    together = threading.Barrier(count)

    def opened() -> str:
        together.wait()
        catalog = SqliteCatalog(path)
        with catalog.view() as view:
            told = view.state().catalog
        catalog.close()
        return told

    with ThreadPoolExecutor(count) as threads:
        opening = [threads.submit(opened) for _ in range(count)]
    assert len({each.result() for each in opening}) == 1


OPENING = """
import sys
from pathlib import Path
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
for line in sys.stdin:
    catalog = SqliteCatalog(Path(line.strip()))
    with catalog.change() as change:
        change.put([Document(sys.argv[1], (DocumentPart("shared"),))], collection="c")
    catalog.close()
    print("done", flush=True)
"""


def test_processes_that_open_a_new_catalog_at_once_open_the_same(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", OPENING, name], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    for turn in range(12):
        for process in running:
            assert process.stdin
            process.stdin.write(f"{tmp_path / str(turn)}\n")
            process.stdin.flush()
        for process in running:
            assert process.stdout and process.stdout.readline() == "done\n"
        catalog = SqliteCatalog(tmp_path / str(turn))
        with catalog.view() as view:
            assert [each.id for each in view.documents(EVERYTHING)] == names and view.state().changes == 3
            assert len(view.chunks_of(EVERYTHING)) == 1
        catalog.close()
    for process in running:
        process.communicate()
        assert process.returncode == 0


DYING = """
import os, sys
from pathlib import Path
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
catalog = SqliteCatalog(Path(sys.argv[1]))
with catalog.change() as change:
    change.put([Document("kept", (DocumentPart("kept"),))], collection="c")
with catalog.change() as change:
    lost = [Document(f"lost{number}", (DocumentPart("lost " * 1000 + str(number)),)) for number in range(2000)]
    change.put(lost, collection="c")
    os._exit(7)
"""


def test_a_process_that_dies_within_a_change_loses_that_change_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    died = subprocess.run([sys.executable, "-c", DYING, str(path)], cwd=ROOT, check=False)
    assert died.returncode == 7
    catalog = SqliteCatalog(path)
    with catalog.view() as view:
        assert [each.id for each in view.documents(EVERYTHING)] == ["kept"]
        assert view.lexical("lost", EVERYTHING, limit=1) == [] and len(view.lexical("kept", EVERYTHING, limit=9)) == 1
    catalog.close()


# The disk


class Small(SqliteCatalog):
    """On a disk that is full soon."""

    pages = 120

    def _open(self) -> sqlite3.Connection:
        connection = super()._open()
        connection.execute(f"PRAGMA max_page_count = {self.pages}")
        return connection


def test_a_full_disk_is_not_taken_for_a_damaged_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Small, "pages", 8)
    with pytest.raises(CatalogError, match="full: free some space"):
        Small(tmp_path / "catalog")


def test_a_full_disk_undoes_the_change_and_says_so(tmp_path: Path) -> None:
    catalog = Small(tmp_path / "catalog")
    with catalog.change() as change:
        change.put([Document("a", (DocumentPart("x"),))], collection="c")
    before = observed(catalog)
    with pytest.raises(CatalogError, match="free some space"), catalog.change() as change:
        change.put([Document(f"b{n}", (DocumentPart(f"{n} text " * 500),)) for n in range(300)], collection="c")
    assert observed(catalog) == before
    with catalog.change() as change:
        assert change.delete(["a"]).gone == (chunk_id("x"),)
    catalog.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_catalog_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    path = tmp_path / "catalog"
    filled(path)
    path.chmod(0o400)
    with pytest.raises(CatalogError, match="write"):  # noqa: PT012
        catalog = SqliteCatalog(path)
        with catalog.change() as change:
            change.delete(["00000"])


def test_what_was_deleted_is_overwritten_in_the_file(tmp_path: Path) -> None:
    """Of the lexical index once it is purged: until then deleted words may stand there by themselves."""
    path = tmp_path / "catalog"
    catalog = SqliteCatalog(path)
    secret = {"id": "idneedle", "title": "titleneedl", "text": "textneedl " * 200, "field": "fieldneedl"}
    with catalog.change() as change:
        part = DocumentPart(secret["text"], "nameneedl", metadata={"own": "ownneedl"})
        change.put([Document(secret["id"], (part,), secret["title"], {secret["field"]: "valueneedl"})], collection="c")
        change.put([Document(f"other {n}", (DocumentPart(f"other {n}"),)) for n in range(50)], collection="c")
    with catalog.change() as change:
        change.delete([secret["id"]])
    with catalog.change() as change:
        change.purge()
    catalog.close()
    data = path.read_bytes()
    assert b"other 7" in data
    for needle in ("idneedle", "titleneedl", "textneedl", "nameneedl", "fieldneedl", "valueneedl", "ownneedl"):
        assert needle.encode() not in data, needle
