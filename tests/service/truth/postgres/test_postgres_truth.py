"""What every place of keys and catalogs promises, of a database; see `TruthContract`. Dumps of earlier releases too."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from retriever.catalog.check import CatalogReport
from retriever.postgres.schemas import schema_of
from service import cli
from service.app.operating_point import OperatingPoint, operating_point
from service.truth.folder_truth import FolderTruth
from service.truth.migrate import migrate
from service.truth.peers import Follower
from service.truth.postgres.postgres_truth import PostgresTruth
from service.truth.truth import Truth
from tests.retriever.catalogs import document, names, put
from tests.servers.postgres import PostgresServer
from tests.service.serving import settings_in
from tests.service.truth.postgres.golden import make
from tests.service.truth.truths import Damage, Opened, TruthContract, filled


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.database()


class TestPostgresTruth(TruthContract):
    @pytest.fixture
    def opened(self, tmp_path: Path, url: str) -> Iterator[Opened]:
        with ExitStack() as stack:

            def truth(machine: str) -> PostgresTruth:
                made = PostgresTruth(url, tmp_path / machine)
                stack.callback(made.close)
                return made

            yield truth

    @pytest.fixture
    def damage(self, url: str) -> Damage:
        def run(truth: Truth, statement: str) -> None:
            with psycopg.connect(url) as connection:
                connection.execute(f"SET search_path TO {schema_of('a')}")  # pyright: ignore
                connection.execute(statement)  # pyright: ignore

        return run

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM terms WHERE passage = 1",
            "INSERT INTO terms VALUES (77, array_to_tsvector(ARRAY['lamp']))",
            "UPDATE terms SET words = array_to_tsvector(ARRAY['x']) WHERE passage = 2",
        ],
    )
    def test_words_that_are_not_those_of_the_texts_are_told(
        self, statement: str, opened: Opened, damage: Damage
    ) -> None:
        truth = filled(opened("one"))
        damage(truth, statement)
        assert truth.check("a") == CatalogReport(2, (), ("words of the index",))

    def test_the_command_looks_at_every_catalog(
        self, opened: Opened, damage: Damage, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damage(filled(opened("one")), "UPDATE documents SET title = 'u' WHERE id = 'd1'")
        monkeypatch.setenv("KVWEAVE_DATA", f"{url}#{tmp_path}/one")
        result = CliRunner().invoke(cli.app, ["verify", "--store", f"file://{tmp_path}/store", "--json"])
        bad = "bad: document 'd1' of tenant 'a' is damaged: put it in again"
        assert (result.exit_code, json.loads(result.stdout)["catalogs"]["a"][0]) == (1, bad)


def test_one_that_begins_to_serve_keeps_its_lease(tmp_path: Path, url: str) -> None:
    """What is asked meanwhile is done, and would be refused afterwards. All that was deleted before is learned."""
    learned = list[object]()
    with closing(PostgresTruth(url, tmp_path)) as truth, truth.serve(print):
        lease = truth.peers.lease()
        assert lease is not None
        truth.peers.follow(Follower(learned.append, print, nullcontext, print))
        assert truth.peers.lease() == lease
        assert learned[0] is None


@pytest.mark.parametrize("name", sorted(each.stem for each in make.FOLDER.glob("*.sql")))
def test_an_earlier_dump_is_what_it_was_goes_on_and_moves(name: str, postgres: PostgresServer, tmp_path: Path) -> None:
    expected = json.loads((make.FOLDER / f"{name}.json").read_bytes())
    url, moved = postgres.database(), FolderTruth(tmp_path / "data")
    postgres.run("psql", url, "-qX", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", f"--file={make.FOLDER / name}.sql")
    with closing(PostgresTruth(url, tmp_path / "here")) as truth:
        assert truth.check(make.TENANT) == CatalogReport(2)
        assert make.told(truth, tmp_path / "points") == expected
    with closing(PostgresTruth(url, tmp_path / "here")) as truth:
        assert migrate(truth, moved).documents == 2
    assert make.told(moved, tmp_path / "data/points") == expected
    assert operating_point(settings_in(tmp_path), "w1") == OperatingPoint("ask", 0.3, "q4")
    with closing(PostgresTruth(url, tmp_path / "here")) as truth:
        for place in (truth, moved):
            with closing(place.catalog(make.TENANT)) as catalog:
                put(catalog, document("d", "Dorano keeps an otter", metadata={"n": 3}))
                assert names(catalog, {"n": {"$gte": 2}}) == ["b", "d"]
