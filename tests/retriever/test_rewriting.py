"""What was deleted from a catalog in PostgreSQL is in none of the files of its database, while others go on."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from random import Random

import psycopg
import pytest

from retriever.catalog.check import check
from retriever.documents import Document, DocumentPart
from retriever.filter_condition import EVERYTHING
from retriever.postgres import rewriting
from retriever.postgres.catalog import VIEW, PostgresCatalog, open_catalog
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import schema_of
from retriever.upload_types import NewUpload
from tests.retriever.catalogs import document, put, texts
from tests.servers.postgres import PostgresServer

WORDS = [f"{Random(number).getrandbits(40):x}" for number in range(2000)]
CANARY = re.compile(rb"[Gg]one\d+[a-z]+")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.database()


@pytest.fixture
def database(url: str) -> Iterator[PostgresDatabase]:
    opened = PostgresDatabase(url, connections=6)
    yield opened
    opened.close()


def marked(mark: str, number: int) -> Document:
    """A document with its mark in all that PostgreSQL keeps of it. It keeps long texts in a table of their own."""
    name, chance = f"{mark}{number}", Random(number)
    long = " ".join(chance.choices(WORDS, k=500))
    parts = (
        DocumentPart(" ".join(chance.choices(WORDS, k=60)) + f" {name}short"),
        DocumentPart(f"{name}begins {long} {name}ends", f"{name}part", metadata={"own": f"{name}own"}),
    )
    return Document(f"{name}id", parts, f"{name}title", {"v": f"{name}value"})


def canaries(postgres: PostgresServer, url: str) -> dict[str, int]:
    """How many marks of deleted documents each file of the database has."""
    found = {file.name: len({*CANARY.findall(file.read_bytes())}) for file in postgres.files(url)}
    return {name: count for name, count in found.items() if count}


@contextmanager
def others_go_on(catalog: PostgresCatalog) -> Iterator[None]:
    """Others search and put meanwhile; what goes wrong there is raised at the end."""
    ended = threading.Event()

    def searches() -> None:
        for number in count():
            with catalog.view() as view:
                assert view.lexical(WORDS[number % len(WORDS)], EVERYTHING, limit=5)
            if ended.wait(0.005):
                return

    def puts() -> None:
        for number in count():
            put(catalog, marked("more", number))
            if ended.wait(0.005):
                return

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(each) for each in (searches, searches, puts)]
        try:
            yield
        finally:
            ended.set()
        for each in others:
            each.result()


@pytest.mark.parametrize("documents", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_what_was_deleted_is_in_no_file_while_others_go_on(
    documents: int, postgres: PostgresServer, database: PostgresDatabase, url: str
) -> None:
    catalog = open_catalog(database, "acme")
    for first in range(0, documents, 100):
        put(catalog, *(marked("gone" if number % 3 == 0 else "kept", number) for number in range(first, first + 100)))
    with catalog.change() as change:
        change.accept("job", [NewUpload("", "c", "file.txt", b"gone1cancelled " * 50)])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE")
    with others_go_on(catalog):
        with catalog.change() as change:
            change.cancel("job")
        for first in range(0, documents, 300):
            with catalog.change() as change:
                change.delete([f"gone{number}id" for number in range(first, first + 300, 3)])
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        assert len(canaries(postgres, url)) > 5  # which a vacuum leaves, in tables and indexes
        with catalog.change() as change:
            change.purge()
        assert catalog.empty_log()
        assert canaries(postgres, url) == {}
    with database.transaction(VIEW, schema=schema_of("acme")) as connection:
        report = check(connection)
    assert report.documents > documents * 2 // 3 and not report.damaged and not report.wrong
    with catalog.view() as view:
        assert [hit.passage.document for hit in view.lexical("kept1short", EVERYTHING, limit=5)] == ["kept1id"]


def test_who_reads_for_long_sees_its_state_and_the_tables_wait(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "TRIES", 1)
    catalog = open_catalog(database, "acme")
    put(catalog, document("a", "cedar"), document("b", "river"))
    with catalog.view() as view:
        assert view.count(EVERYTHING) == 2
        with catalog.change() as change:
            change.delete(["a"])
            change.purge()
        assert not rewriting.rewrite(database, schema_of("acme"))
        assert [each.id for each in view.documents(EVERYTHING)] == ["a", "b"]
        assert len(view.lexical("cedar", EVERYTHING, limit=5)) == 1
    assert rewriting.rewrite(database, schema_of("acme"))
    assert texts(catalog, "b") == ["river"]


def test_what_a_killed_one_left_is_begun_anew(database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    catalog = open_catalog(database, "acme")
    put(catalog, document("a", "cedar"), document("b", "river"))
    with catalog.change() as change:
        change.delete(["a"])
        change.purge()
    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "_is_put_in_place", killed)
        patch.setattr(rewriting, "drop_staged", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            catalog.empty_log()
    with database.connection() as connection:
        staged = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'staged%'"
        assert len(connection.execute(staged).fetchall()) == 1
        assert open_catalog(database, "acme").empty_log()
        assert connection.execute(staged).fetchall() == []
        assert connection.execute("SELECT count(*) FROM schemas").fetchone() == (1,)
    put(catalog, document("c", "lamps"))
    assert texts(catalog, "b") + texts(catalog, "c") == ["river", "lamps"]
