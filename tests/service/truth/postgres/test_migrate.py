"""Keys and catalogs that move from a folder into PostgreSQL and back: nothing is lost, and nothing comes by halves."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from retriever.catalog.catalog import Catalog
from retriever.catalog.view import CatalogView
from retriever.errors import DocumentError
from retriever.filter_condition import EVERYTHING
from retriever.types import Limit, SourceFile
from retriever.upload_types import NewUpload, UploadState
from service.access.principal import Role
from service.errors import AccessError
from service.truth import databases
from service.truth.control import BlendingSwitch, KeyEntry, Quota
from service.truth.databases import STAGING
from service.truth.folder_truth import FolderTruth
from service.truth.migrate import MigrationReport, migrate
from service.truth.postgres import gathered
from service.truth.postgres.postgres_truth import PostgresTruth
from service.truth.truth import Truth
from tests.retriever.catalogs import document, put
from tests.retriever.test_postgres import change_alike, drawn, shown
from tests.servers.postgres import SECRET, PostgresServer
from tests.service.serving import Json, ask, good, in_process, kvweave_ended, put_in, settings_in
from tests.service.truth.folders import catalog_file

TENANTS = ("default", "a-" + "b" * 60)
_MADE_ANEW = ("terms", "sqlite_")  # tables whose pages are no rows of ours


Place = Path | str  # a folder, or the address of a database


@contextmanager
def opened(place: Place) -> Iterator[Truth]:
    """Opened as a process opens it."""
    with (
        TemporaryDirectory() as scratch,
        closing(
            FolderTruth(place) if isinstance(place, Path) else PostgresTruth(place, Path(scratch, "here"))
        ) as truth,
    ):
        yield truth


def move(source: Place, target: Place) -> MigrationReport:
    with opened(source) as given, opened(target) as taken:
        return migrate(given, taken)


def tenants_and_keys(place: Place) -> tuple[list[str], list[KeyEntry]]:
    with opened(place) as truth, closing(truth.control()) as control:
        return truth.tenants(), control.keys()


def change_more(catalog: Catalog, chance: Random) -> None:
    """A random change of what is no document: uploads that wait, fail or are cancelled, corpora, limits, prefixes."""
    with catalog.change() as change:
        match chance.randint(0, 6):
            case 0 | 1:
                name = chance.choice(["", "d1", "ü\x01d"])
                new = [
                    NewUpload(name, "c\0ß", chance.choice(["", "f\0.pdf"]), chance.randbytes(chance.randint(0, 9000)))
                ]
                change.accept(f"j{chance.randint(0, 9)}\0", new)
            case 2:
                change.cancel(f"j{chance.randint(0, 9)}\0")
            case 3:
                with catalog.view() as view:
                    live = view.live(9)
                for upload in live[:2]:
                    version = change.stage(drawn(chance), collection="a")
                    state = chance.choice([UploadState.COMPUTING, UploadState.FAILED])
                    change.advance(replace(upload, state=state, version=version, detail="no\0 \ud800", chunks=3))
            case 4:
                change.put_source("a", f"s{chance.randint(0, 3)}\0", source=SourceFile("x", ("d1", "ü"), "/b"))
            case 5:
                change.put_limit("a", Limit("terms\x01", 2**40), model="m")
                change.keep_prefix("a", model="m", ids=[1, 2**31])
            case _:
                change.forget_uploads(1.0)


def fill(data: Path, chance: Random) -> None:
    """A folder that was used for long: tenants, keys that are revoked too, quotas, the switch, points."""
    truth = FolderTruth(data)
    with closing(truth.control()) as control:
        for tenant in TENANTS:
            control.create_key(tenant, Role.READ, bound={"team": "ü\0"}, per_minute=7, note="für Anna")
            entry, _ = control.create_key(tenant, Role.ADMIN)
        control.revoke_key(entry.id)
        control.set_quota("other", Quota(None, 2**40))
        control.set_switch(BlendingSwitch(enabled=False, share=0.1))
        control.remember_fingerprint("f" * 8, {"dtype": "ü\0"})
    (data / "points").mkdir()
    (data / "points/w.toml").write_bytes("# ü\r\nratio = 0.3\n".encode())
    for tenant in TENANTS:
        with closing(truth.catalog(tenant)) as catalog:
            with catalog.change() as change:
                change.add_embedder("e", dim=3)
            for _ in range(25):
                change_alike([catalog], chance.randint(0, 1 << 30))
                change_more(catalog, chance)


def held(file: Path) -> dict[str, object]:
    """All rows of a database, as SQLite itself reads them, and where each word stands."""
    with closing(sqlite3.connect(file)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        tables = [name for name in names if not name.startswith(_MADE_ANEW)]
        found: dict[str, object] = {
            name: sorted(map(repr, connection.execute(f"SELECT * FROM {name}"))) for name in tables if name != "facts"
        }
        if "facts" in tables:
            found["facts"] = sorted(connection.execute("SELECT * FROM facts WHERE name <> 'catalog'"))
            found["numbers"] = sorted(connection.execute("SELECT * FROM sqlite_sequence WHERE seq > 0"))
            connection.execute("CREATE VIRTUAL TABLE temp.held USING fts5vocab('main', 'terms', 'instance')")
            found["words"] = sorted(connection.execute("SELECT term, doc, offset FROM temp.held"))
    return found


def everything(data: Path) -> dict[str, object]:
    files = [data / "control.sqlite", *(catalog_file(data, tenant) for tenant in TENANTS)]
    points = {each.name: each.read_bytes() for each in (data / "points").glob("*.toml")}
    return {"points": points, **{str(file.relative_to(data)): held(file) for file in files}}


def seen(catalog: Catalog) -> tuple[list[object], list[Any]]:
    with catalog.view() as view:
        return shown(view), numbered(view)


def numbered(view: CatalogView) -> list[Any]:
    """What `shown` leaves out, but for times: numbers of rows, which go on, and uploads with their bytes."""
    jobs = view.jobs(limit=999)
    uploads = [upload for job in jobs for upload in view.uploads(job.id, limit=999)]
    return [
        astuple(replace(view.state(), catalog="")), view.chunks_of(EVERYTHING).tolist(),
        [replace(each, created=0, updated=0) for each in uploads],
        [view.content(each.number) for each in uploads],
        [(each.row, each.chunk, each.place) for name in view.documents(EVERYTHING, limit=999)
         for each in view.passages(name.id)],
        view.embedded_after(0, embedder="e", limit=999).rows.tolist(),
        view.marked_after(0).rows.tolist(), view.removed_after(0).tolist(), view.sources("a"),
        view.limit("a", model="m"), view.prefix("a", model="m"),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3, 6))
def test_what_moved_there_and_back_is_what_it_was_and_goes_on_alike(
    seed: int, postgres: PostgresServer, tmp_path: Path
) -> None:
    chance = Random(seed)
    one, back = tmp_path / "one", tmp_path / "back"
    fill(one, chance)
    before = everything(one)
    places = one, postgres.database(), back
    report = move(*places[:2])
    assert report.tenants == tuple(sorted(TENANTS)) and report == move(*places[1:])
    assert everything(one) == everything(back) == before
    with ExitStack() as stack:
        truths = [stack.enter_context(opened(place)) for place in places]
        controls = [stack.enter_context(closing(truth.control())) for truth in truths]
        first, *others = [(each.keys(), each.switch(), each.quota("other"), each.fingerprints()) for each in controls]
        assert others == [first, first]
        for tenant in TENANTS:
            catalogs = [stack.enter_context(closing(truth.catalog(tenant))) for truth in truths]
            (text, rows), *others = [seen(catalog) for catalog in catalogs]
            assert others == [(text, rows), (text, rows)]
            last = rows[0][2]
            for _ in range(8):
                change_alike(catalogs, chance.randint(0, 1 << 30))
                seed = chance.randint(0, 1 << 30)
                for catalog in catalogs:
                    change_more(catalog, Random(seed))
            first, other, third = [seen(catalog) for catalog in catalogs]
            assert first == third and first[0] == other[0]
            assert {*other[1][1]} - {*rows[1]} <= {*range(last + 1, last + 10_000)}  # where it leaves numbers out


class Killed(BaseException):
    pass


@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_of_one_that_was_killed_nothing_is_there_and_the_next_does_it(
    after: int, way: str, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or behind a tenant's rows, or among the keys. The killed process removes nothing."""
    one, there, back = tmp_path / "one", postgres.database(), tmp_path / "back"
    fill(one, Random(after))
    before = everything(one)
    if way == "back":
        move(one, there)
    source, target = (one, there) if way == "there" else (there, back)
    steps = iter(range(99))

    def killed(*_: object) -> None:
        if next(steps) == after:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(gathered, "drop_staged", lambda _: None)  # pyright: ignore
        patch.setattr(databases, "rmtree", lambda *_, **given: None)  # pyright: ignore
        patch.setattr(gathered, "unlike", killed)
        patch.setattr(gathered, "is_same_table", lambda *given, **_: not killed(*given))  # pyright: ignore
        with pytest.raises(Killed):
            move(source, target)
    assert tenants_and_keys(target) == ([], [])
    if way == "back":
        (back / "control.sqlite").unlink()  # which looking made
    move(source, target)
    if way == "there":
        move(there, back)
    assert everything(one) == everything(back) == before
    assert not (back / STAGING).exists()


def test_what_holds_something_is_refused_and_keeps_it(postgres: PostgresServer, tmp_path: Path) -> None:
    one, there, other = tmp_path / "one", postgres.database(), tmp_path / "other"
    for data in (one, other):
        fill(data, Random(1))
    before = everything(other)
    for source in (one, there):
        with pytest.raises(AccessError, match="sqlite already: name an empty folder"):
            move(source, other)
    assert everything(other) == before
    with opened(there) as truth, closing(truth.control()) as control:
        control.create_key("x", Role.READ)
    with pytest.raises(AccessError, match="the database holds something already, the keys"):
        move(one, there)


def test_nothing_is_not_moved(postgres: PostgresServer, tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="holds neither keys nor catalogs"):
        move(postgres.database(), tmp_path / "back")
    assert not (tmp_path / "back/control.sqlite").exists()


def test_what_the_target_cannot_keep_is_said_and_nothing_is_there(postgres: PostgresServer, tmp_path: Path) -> None:
    """An id that no index of PostgreSQL takes."""
    one, there = tmp_path / "one", postgres.database()
    with opened(one) as truth, closing(truth.catalog("a")) as catalog:
        put(catalog, document("".join(chr(0x4E00 + 7919 * at % 20_000) for at in range(1100)), "x"))
    with pytest.raises(DocumentError, match="shorten it"):
        move(one, there)
    assert tenants_and_keys(there) == ([], [])


def test_damage_in_the_source_is_not_moved(postgres: PostgresServer, tmp_path: Path) -> None:
    one, there = tmp_path / "one", postgres.database()
    fill(one, Random(2))
    with closing(sqlite3.connect(catalog_file(one, "default"))) as connection, connection:
        connection.execute("UPDATE passages SET words = words + 1")
    with pytest.raises(AccessError, match="passages of tenant 'default': not the same in both"):
        move(one, there)
    assert tenants_and_keys(there) == ([], [])


def command(data: object, to: object, *more: str, status: int = 0) -> str:
    run = kvweave_ended("migrate", str(to), *more, status=status, KVWEAVE_DATA=str(data))
    assert SECRET not in run.stdout + run.stderr
    return run.stdout + run.stderr


def test_a_place_that_is_none_is_one_line(tmp_path: Path) -> None:
    for data, to, said in (
        (tmp_path / "none", tmp_path, f"kvweave: there is no folder {tmp_path}/none: is KVWEAVE_DATA right?\n"),
        (tmp_path, "postgresql://[::1/x", "kvweave: the address of the database is none: "),
        (tmp_path, tmp_path, f"kvweave: {tmp_path} is in use by another service: "),
    ):
        line = command(data, to, status=2)
        assert line.startswith(said) and line.count("\n") == 1


def test_a_service_over_what_moved_answers_the_same(postgres: PostgresServer, tmp_path: Path) -> None:
    url, one, back = postgres.database(), tmp_path / "data", tmp_path / "back"
    documents: list[Json] = [
        {"id": f"d{number}", "text": f"The cedar lamps of Aveiro, part {number}: {'tide ' * number}"}
        for number in range(9)
    ]  # fmt: skip
    found: list[list[Json]] = []
    key = ""
    for place in (one, f"{url}#{one}", back):
        with in_process(settings_in(tmp_path, data=place)) as served, served.client(key or None) as client:
            if not found:
                put_in(client, documents)
            key = key or served.key
            queries = ("cedar tide", "part 7 of Aveiro")
            hits = [good(client.post("/v1/search", json={"query": each, "top_k": 9}))["hits"] for each in queries]
            found.append([*hits, ask(client, "What burns?", sampling={"max_tokens": 4})["answer"]])
            if place == back:
                break
            for data, to in ((place, tmp_path / "no"), (tmp_path / "elsewhere", place)):
                (tmp_path / "elsewhere").mkdir(exist_ok=True)
                said = command(data, to, status=2)
                assert "in use by another service" in said or "served by another process" in said
        if place == one:
            assert command(one, url).startswith("Moved 1 catalog with 9 documents, and all keys: ")
            assert "the database holds something already" in command(one, url, status=2)
        else:
            assert json.loads(command(url, back, "--json"))["documents"] == 9
    assert found[0] == found[1] == found[2]
