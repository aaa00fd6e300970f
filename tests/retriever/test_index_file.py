"""The file of a vector index: whole or left aside, whatever is wrong with it, and never half written."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.filter_condition import EVERYTHING
from retriever.nearest import Nearest
from retriever.vectors import IndexFile
from tests.retriever.indexed import ALL, DIM, agrees, exact, fill, index_in, opened, saved, units


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqliteCatalog]:
    with opened(tmp_path) as catalog:
        yield catalog


def test_a_flipped_bit_anywhere_in_the_head_is_harmless(catalog: SqliteCatalog, tmp_path: Path) -> None:
    saved(tmp_path, catalog)
    [head] = (tmp_path / "index").glob("*.json")
    data = head.read_bytes()
    with catalog.view() as view:
        query = units(np.random.default_rng(5), 1)[0]
        wanted = [chunk for chunk, _ in exact(view, query, EVERYTHING)]
        for place in range(len(data)):
            for bit in (0, 2, 5):
                head.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
                found = index_in(tmp_path).search(view, query, allowed=EVERYTHING, limit=ALL)
                assert [chunk for chunk, _ in found] == wanted, head.read_bytes()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff", b'{"format": 1, "facts": 3}', b"[" * 100_000])
def test_a_head_that_is_none_is_left_aside(content: bytes, catalog: SqliteCatalog, tmp_path: Path) -> None:
    saved(tmp_path, catalog)
    [head] = (tmp_path / "index").glob("*.json")
    head.write_bytes(content)
    assert agrees(index_in(tmp_path), catalog)


def test_a_flipped_bit_in_the_vectors_is_found(catalog: SqliteCatalog, tmp_path: Path) -> None:
    saved(tmp_path, catalog)
    [file] = (tmp_path / "index").glob("*.faiss")
    data = file.read_bytes()
    for place in range(0, len(data), 97):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        [head] = (tmp_path / "index").glob("*.json")
        assert IndexFile(tmp_path / "index", head.stem).read() is None
    assert agrees(index_in(tmp_path), catalog)


def test_the_file_of_another_catalog_is_left_aside(catalog: SqliteCatalog, tmp_path: Path) -> None:
    saved(tmp_path, catalog)
    with opened(tmp_path / "other") as other:
        fill(other, range(50), seed=9)
        assert agrees(index_in(tmp_path), other)


def test_a_file_that_is_ahead_of_a_restored_catalog_is_left_aside(catalog: SqliteCatalog, tmp_path: Path) -> None:
    fill(catalog, range(20))
    catalog.close()
    shutil.copytree(tmp_path, tmp_path / "backup")
    with opened(tmp_path) as later:
        saved(tmp_path, later)
    for file in tmp_path.glob("catalog.sqlite*"):
        file.unlink()
    shutil.copy(tmp_path / "backup" / "catalog.sqlite", tmp_path / "catalog.sqlite")
    with opened(tmp_path) as restored:
        assert agrees(index_in(tmp_path), restored)


@pytest.mark.parametrize("instant", ["before", "half", "written"])
def test_a_write_that_fails_leaves_the_old_file(
    instant: str, catalog: SqliteCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, catalog)
    write = Nearest.write

    def failing(index: Nearest, path: Path) -> None:
        if instant != "before":
            write(index, path)
        if instant == "half":
            path.write_bytes(path.read_bytes()[:50])
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Nearest, "write", failing)
        with pytest.raises(OSError, match="full"):
            index_in(tmp_path).maintain(catalog)
    [head] = (tmp_path / "index").glob("*.json")
    read = IndexFile(tmp_path / "index", head.stem).read()
    assert read is not None and len(read[0]) == 60
    again = index_in(tmp_path)
    assert agrees(again, catalog)
    again.maintain(catalog)
    assert sorted(file.suffix for file in (tmp_path / "index").iterdir() if file.suffix != ".lock") == [
        ".faiss",
        ".json",
    ]


def test_two_that_write_one_file_at_once_leave_one_of_the_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Nearest.flat(DIM), Nearest.flat(DIM)
    two.add(np.arange(5), units(np.random.default_rng(0), 5))
    write, other = Nearest.write, threading.Thread(target=lambda: IndexFile(tmp_path, "i").write(two, {"whose": "two"}))
    started = threading.Event()

    def meanwhile(index: Nearest, path: Path) -> None:
        write(index, path)
        if not started.is_set():
            started.set()
            other.start()
            other.join(0.2)  # unless it waits for us, it is done now

    monkeypatch.setattr(Nearest, "write", meanwhile)
    IndexFile(tmp_path, "i").write(one, {"whose": "one"})
    other.join()
    read = IndexFile(tmp_path, "i").read()
    assert read is not None
    assert (len(read[0]), read[1]["whose"]) in ((0, "one"), (5, "two"))
