"""What every place of keys and catalogs promises, of a folder. See `TruthContract`."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from service.truth.folder_truth import FolderTruth
from service.truth.truth import Truth
from tests.service.truth.folders import catalog_file
from tests.service.truth.truths import Damage, Opened, TruthContract


class TestFolderTruth(TruthContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opened:
        return lambda machine: FolderTruth(tmp_path / "data")

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Damage:
        def run(truth: Truth, statement: str) -> None:
            with closing(sqlite3.connect(catalog_file(tmp_path / "data", "a"))) as connection, connection:
                connection.execute(statement)

        return run
