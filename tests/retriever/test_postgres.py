"""PostgreSQL against SQLite: after the same random changes both show the same, to the scores of words."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Thread

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever.catalog.catalog import Catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.view import CatalogView
from retriever.documents import Document, DocumentPart
from retriever.errors import CatalogError, DocumentError
from retriever.filter_condition import EVERYTHING, condition
from retriever.postgres import rewriting
from retriever.postgres.catalog import open_catalog
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import schema_of, tenants_in
from retriever.postgres.statements import facet_key
from retriever.types import Collection, Passage
from tests.retriever.catalogs import document, put, texts
from tests.servers.postgres import SECRET, PostgresServer

WORDS = ("cedar", "river", "the", "lamps", "東京都", "x\0y", "ünder", "1999")
VALUES = (1, 1.0, -2.5, 2**53 + 1, float(2**53), "a", "b\0", True, None, ["a", 3], {"deep": "z"})
QUESTIONS = ("cedar", "the river lamps", "東", "1999 ünder y", "京都 lamp")
WHERES = (
    {"v": 1}, {"v": {"$gt": -3}}, {"v": {"$lt": "b"}}, {"$not": {"v": "a"}}, {"v": {"$in": [2**53 + 1, None]}},
    {"v.deep": {"$exists": True}}, {"v": {"$gte": 2**53, "$lte": 2**53 + 1}}, {"v": {"$gt": "a"}},
    {"v": {"$in": []}}, {"v": {"$nin": []}},
)  # fmt: skip


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> str:
    return postgres.database()


@contextmanager
def database(url: str) -> Iterator[PostgresDatabase]:
    opened = PostgresDatabase(url, connections=4)
    try:
        yield opened
    finally:
        opened.close()


def drawn(chance: Random) -> Document:
    def part() -> DocumentPart:
        text = " ".join(chance.choices(WORDS, k=chance.randint(0, 9)))
        own = {"v": chance.choice(VALUES)} if chance.random() < 0.2 else {}
        return DocumentPart(text, chance.choice(["", "n\0"]), metadata=own)

    metadata = {"v": chance.choice(VALUES)} if chance.random() < 0.8 else {}
    parts = tuple(part() for _ in range(chance.randint(0, 4)))
    return Document(f"d{chance.randint(0, 12)}", parts, chance.choice(["", "Title \0"]), metadata)


def change_alike(catalogs: list[Catalog], seed: int) -> None:
    """One random change of each catalog, the same for all."""
    for catalog in catalogs:
        chance = Random(seed)
        with catalog.change() as change:
            match chance.randint(0, 9):
                case 0:
                    change.delete([f"d{chance.randint(0, 12)}" for _ in range(3)])
                case 1:
                    change.patch(f"d{chance.randint(0, 12)}", metadata={"v": chance.choice(VALUES)})
                case 2:
                    change.delete_collection(chance.choice("ab"))
                case 3:
                    change.put_collection(Collection("a", {"search": chance.random() < 0.5}))
                case 4:
                    change.drop(change.stage(drawn(chance), collection="a"))
                    change.purge()
                case _:
                    documents = {each.id: each for each in (drawn(chance) for _ in range(chance.randint(1, 6)))}
                    change.put(list(documents.values()), collection=chance.choice("ab"))
                    ids = [part.id for each in documents.values() for part in each.parts]
                    change.put_vectors(ids, np.ones((len(ids), 3), np.float32), embedder="e")


def shown(view: CatalogView) -> list[object]:
    """All that can be told, but for numbers of rows and times."""

    def told(passage: Passage) -> Passage:
        return replace(passage, row=0, chunk=0)

    entries = view.documents(EVERYTHING, limit=1000)
    found: list[object] = [replace(each, created=0, updated=0) for each in entries]
    found += [told(passage) for each in entries for passage in view.passages(each.id)]
    found += [view.counts(), view.unsearched(), view.state().changes, view.chunk_ids(1000)]
    found += [
        sorted(chunk for _, chunk in view.unswept(1000)),
        len(view.embedded_after(0, embedder="e", limit=99).rows),
    ]
    for where in WHERES:
        found.append([each.id for each in view.documents(condition(where), limit=1000)])
    for question in QUESTIONS:
        for within in (EVERYTHING, condition(WHERES[1])):
            hits = view.lexical(question, within, limit=50, within=within)
            found.append(sorted((each.score, each.share, each.passage.document, each.passage.id) for each in hits))
    return found


@contextmanager
def both(url: str, folder: Path, *, tenant: str) -> Iterator[list[Catalog]]:
    """A catalog of each database, with the same embedder."""
    with ExitStack() as stack:
        sqlite = SqliteCatalog(folder / "catalog.sqlite")
        stack.callback(sqlite.close)
        catalogs: list[Catalog] = [sqlite, open_catalog(stack.enter_context(database(url)), tenant)]
        for catalog in catalogs:
            with catalog.change() as change:
                change.add_embedder("e", dim=3)
        yield catalogs


@pytest.mark.parametrize("seed", range(2))
def test_tables_that_are_written_anew_have_what_was_changed_meanwhile(
    seed: int, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place = rewriting._is_put_in_place
    steps = iter(range(100_000 + 1000 * seed, 100_000 + 1000 * (seed + 1)))

    def put_in_place(*told: object, **more: object) -> bool:
        for _ in range(12):
            change_alike(catalogs, next(steps))
        return in_place(*told, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(rewriting, "_is_put_in_place", put_in_place)
    with both(url, tmp_path, tenant=f"anew-{seed}") as catalogs, database(url) as opened:
        for _ in range(3):
            for _ in range(8):
                change_alike(catalogs, next(steps))
            for catalog in catalogs:
                with catalog.change() as change:
                    change.put([document("goes", "cedar")], collection="a")
                    change.delete(["goes"])
                    change.purge()
            assert rewriting.rewrite(opened, schema_of(f"anew-{seed}"))
            with catalogs[0].view() as one, catalogs[1].view() as other:
                assert shown(other) == shown(one)


def test_a_query_without_a_condition_sees_one_tenant(url: str) -> None:
    with database(url) as opened:
        for tenant in ("law", "sales"):
            put(open_catalog(opened, tenant), document(f"of-{tenant}", f"the secret of {tenant}"))
        with opened.transaction(" READ ONLY", schema=schema_of("law")) as connection:
            assert connection.execute("SELECT id FROM documents").fetchall() == [("of-law",)]
            assert connection.execute("SELECT convert_from(text, 'UTF8') FROM chunks").fetchall() == [
                ("the secret of law",)
            ]
        with opened.connection() as connection, pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT id FROM documents")
        assert {"law", "sales"} <= set(tenants_in(opened))


def test_long_names_of_tenants_have_schemas_of_their_own() -> None:
    names = ["a" * 63, "a" * 62, "a" * 62 + "b", "a", "a-b", "a_b"]
    schemas = {schema_of(name) for name in names}
    assert len(schemas) == len(names) and max(map(len, schemas)) <= 63


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.integers(2**53 - 4, 2**53 + 4)


@given(numbers, numbers)
def test_numbers_are_ordered_as_their_keys(one: float, other: float) -> None:
    assert (facet_key(one) < facet_key(other)) == (one < other) and (facet_key(one) == facet_key(other)) == (
        one == other
    )


@given(st.text(max_size=20), st.text(max_size=20))
def test_texts_are_ordered_as_their_bytes(one: str, other: str) -> None:
    assert (facet_key(one) < facet_key(other)) == (one.encode() < other.encode())


def test_a_long_value_and_many_words_are_kept(url: str) -> None:
    text = " ".join(f"w{number:x}" for number in range(140_000))
    long = "v" * 100_000
    with database(url) as opened:
        catalog = open_catalog(opened, "long")
        put(catalog, document("a", text, metadata={"v": long}), document("b", "w1", metadata={"v": long + "x"}))
        with catalog.view() as view:
            assert [each.id for each in view.documents(condition({"v": long}))] == ["a"]
            assert [each.passage.document for each in view.lexical("w222df", EVERYTHING, limit=5)] == ["a"]
        with pytest.raises(DocumentError, match="shorten"):
            put(catalog, document("".join(chr(0x4E00 + 7919 * at % 20_000) for at in range(1100)), "x"))
        assert texts(catalog, "b") == ["w1"]


def test_an_address_that_is_none_and_a_server_that_is_not_there_are_told_without_the_password() -> None:
    for url in (f"postgresql://u:{SECRET}@127.0.0.1:1/x", f"postgresql://u:{SECRET}@[::1/x"):
        with pytest.raises(CatalogError) as told:
            PostgresDatabase(url)
        assert SECRET not in str(told.value) and told.value.__cause__ is None


def test_a_restarted_server_is_found_again_and_a_dead_one_is_said(postgres: PostgresServer) -> None:
    with database(postgres.database()) as opened:
        catalog = open_catalog(opened, "a")
        put(catalog, document("kept", "x"))
        postgres.stop()
        with pytest.raises(CatalogError, match="does not answer"):
            texts(catalog, "kept")
        postgres.start()
        assert texts(catalog, "kept") == ["x"]


def test_who_lost_the_lock_changes_nothing_and_the_next_waits_for_what_it_still_changes(url: str) -> None:
    with database(url) as first, database(url) as second, ExitStack() as stack:
        held, taken = stack.enter_context(first.session()), stack.enter_context(second.session())
        assert held.execute("SELECT pg_try_advisory_lock(7, 1)").fetchone() == (True,)
        first.fence(7, held)
        catalog = open_catalog(first, "fenced")
        put(catalog, document("before", "cedar"))
        with catalog.change() as change:
            held.execute("SELECT pg_advisory_unlock(7, 1)")
            assert taken.execute("SELECT pg_try_advisory_lock(7, 1)").fetchone() == (True,)
            next_one = Thread(target=second.fence, args=(7, taken))
            next_one.start()
            next_one.join(0.3)
            assert next_one.is_alive()
            change.put([document("meanwhile", "cedar")], collection="c")
        next_one.join()
        with pytest.raises(CatalogError, match="does not serve"):
            put(catalog, document("behind", "cedar"))
        put(open_catalog(second, "fenced"), document("after", "cedar"))
        with catalog.view() as view:  # who only reads may go on
            assert [each.id for each in view.documents(EVERYTHING, limit=9)] == ["after", "before", "meanwhile"]
