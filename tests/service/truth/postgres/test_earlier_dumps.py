"""Dumps of a database that an earlier release made open and restore for ever, with keys, points and a catalog."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from retriever.catalog.check import CatalogReport
from service.app.operating_point import OperatingPoint, operating_point
from service.truth.folder_truth import FolderTruth
from service.truth.migrate import migrate
from service.truth.postgres.postgres_truth import PostgresTruth
from tests.retriever.catalogs import document, names, put
from tests.servers.postgres import PostgresServer
from tests.service.serving import settings_in
from tests.service.truth.postgres.golden import make


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
