"""Databases that are opened on a disk with next to no room: what is wrong is said, and nothing kills the process."""

import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.errors import CatalogError
from service.access.principal import Role
from service.errors import Unavailable
from tests.service.small_disk import small_disk
from tests.service.truth.folders import change_all, opened


def tried(data: Path, number: int) -> list[str]:
    """Opens both kinds of databases and changes them; what stood in the way."""
    said: list[str] = []
    try:
        with closing(opened(data)) as control:
            control.create_key("acme", Role.READ)
    except Unavailable as error:
        said.append(str(error))
    try:
        with closing(SqliteCatalog(data / "catalog.sqlite")) as catalog:
            change_all(catalog, number)
    except CatalogError as error:
        said.append(str(error))
    return said


@pytest.mark.parametrize("block_bytes", [1024, 4096])
def test_a_disk_with_little_room_is_said(block_bytes: int, tmp_path: Path) -> None:
    with (
        small_disk(tmp_path, block_bytes=block_bytes) as disk,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
    ):
        data = disk.path / "data"
        assert process.submit(tried, data, 0).result() == []
        for left in range(0, 160, 8):
            disk.fill(but=left << 10)
            os.sync()
            for said in process.submit(tried, data, left).result():
                assert "free some space" in said or "look after the disk" in said
        disk.free()
        assert process.submit(tried, data, 1).result() == []
