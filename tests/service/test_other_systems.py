"""What differs where the system is not Linux, played: nothing here is another system."""

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from store.reader import BlobReader
from store.url import open_store
from tests.retriever.catalogs import document, put, texts
from tests.store.samples import blob, key


def test_a_store_and_a_catalog_open_where_no_room_can_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, whose pages are larger than blocks of its disks."""
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(mmap, "PAGESIZE", 1 << 24)
    refused = subprocess.CompletedProcess[bytes]([], 1)
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: refused)
    store = open_store(f"lmdb://{tmp_path}/store")
    store.put(blob("one"))
    assert isinstance(store.open(key("one")), BlobReader)
    store.close()
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite")
    put(catalog, document("a", "one"))
    assert texts(catalog, "a") == ["one"]
    catalog.close()
