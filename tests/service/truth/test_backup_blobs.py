"""Keys and values that travel in a backup: which do, and what a store makes of them when they come back."""

from contextlib import closing
from pathlib import Path

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import chunk_id
from service.truth.archive import writing
from service.truth.backup import BackupReport, back_up
from service.truth.databases import CONTROL
from service.truth.restore import RestoreReport, restore
from store.blob import Blob, Terms
from store.blob_store import BlobStore, Put
from store.codec.encode import encode
from store.key import CacheKey, Scope
from store.reader import BlobReader
from store.url import open_store
from tests.service.truth.folders import catalog_file, opened, put, text
from tests.store.samples import record


def key_of(tenant: str, name: str, codec: str = "q4") -> CacheKey:
    return CacheKey(tenant, chunk_id(text(name)), "f" * 64, codec)


def blob_of(tenant: str, name: str, *, epoch: int = 0, codec: str = "q4") -> Blob:
    return encode(record(), key_of(tenant, name, codec), terms=Terms(epoch, precomputed=True))


def found(store: BlobStore, key: CacheKey) -> bytes | None:
    reader = store.open(key)
    return bytes(reader.blob()) if isinstance(reader, BlobReader) else None


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    opened(data).close()
    put(data, "acme", "a", "b", "c")
    put(data, "beta", "a")
    return data


@pytest.fixture(params=["file", "lmdb", "tiered"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of stores, which a number tells apart."""
    kind = {"file": "file://{}/store", "lmdb": "lmdb://{}/store", "tiered": "tiered:mem://?budget=1GB|lmdb://{}/store"}
    return kind[request.param].format(tmp_path)


def saved(data: Path, store: BlobStore) -> BackupReport:
    return back_up(data.parent / "backup", data, store=store, force=True)


def put_back(data: Path, url: str) -> RestoreReport:
    return restore(data.parent / "backup", data, force=True, open_store=lambda: open_store(url))


def test_a_lost_store_has_every_blob_again(data: Path, place: str) -> None:
    with open_store(place) as store:
        blobs = [blob_of("acme", "a"), blob_of("acme", "b", codec="lossless"), blob_of("beta", "a")]
        assert [store.put(blob) for blob in blobs] == [Put.STORED] * 3
        assert (saved(data, store).blobs, saved(data, store).left_out) == (3, 0)
    assert put_back(data, f"{place}2").blobs == {"stored": 3}
    with open_store(f"{place}2") as store:
        assert [found(store, blob.head.key) for blob in blobs] == [bytes(blob) for blob in blobs]


def test_a_backup_that_holds_fitted_tables_is_restored_without_them(data: Path, tmp_path: Path) -> None:
    blob = blob_of("acme", "a")
    with (tmp_path / "backup").open("w+b") as out, writing(out) as older:
        older.database(CONTROL, data / CONTROL)
        older.packed(f"tables/acme/{'0' * 32}", b"what blobs were packed with")
        older.packed(f"blobs/{blob.head.key.text}", bytes(blob))
        older.finish({})
    assert put_back(data, f"file://{tmp_path}/store").blobs == {"stored": 1}
    with open_store(f"file://{tmp_path}/store") as store:
        assert found(store, blob.head.key) == bytes(blob)
    assert not (tmp_path / "store/tables").exists()


def test_blobs_of_no_chunk_and_of_no_tenant_are_not_taken_along(data: Path, place: str) -> None:
    with open_store(place) as store:
        for tenant, name in (("acme", "a"), ("acme", "unknown"), ("nobody", "a")):
            store.put(blob_of(tenant, name))
        catalog = SqliteCatalog(catalog_file(data, "acme"))
        with catalog.change() as change:
            change.delete(["b"])  # and the store is not told yet
        catalog.close()
        store.put(blob_of("acme", "b"))
        assert saved(data, store).blobs == 1
        assert back_up(data.parent / "bare", data).blobs == 0


def test_what_was_deleted_since_stays_deleted_and_what_is_there_stays(data: Path, place: str) -> None:
    with open_store(place) as store:
        blobs = {name: blob_of("acme", name) for name in "abc"}
        for blob in blobs.values():
            store.put(blob)
        saved(data, store)
        store.delete(Scope("acme", chunk_id(text("a"))))
        store.discard(key_of("acme", "b"))
    assert put_back(data, place).blobs == {"deleted since": 1, "stored": 1, "present": 1}
    with open_store(place) as store:
        assert [found(store, key_of("acme", name)) for name in "abc"] == [None, bytes(blobs["b"]), bytes(blobs["c"])]
        assert store.epoch("acme") == 1
        again = blob_of("acme", "a", epoch=1)
        assert store.put(again) is Put.STORED and found(store, again.head.key) == bytes(again)


def test_a_younger_store_counts_on_where_the_old_one_was_so_that_the_next_delete_reaches_every_blob(
    data: Path, place: str
) -> None:
    with open_store(place) as store:
        for _ in range(4):
            epoch = store.delete(Scope("acme", "gone"))
        blob = blob_of("acme", "a", epoch=epoch)
        store.put(blob)
        saved(data, store)
    assert put_back(data, f"{place}2").blobs == {"stored": 1}
    with open_store(f"{place}2") as store:
        assert store.epoch("acme") == 4 and store.epoch("beta") == 0 and found(store, blob.head.key)
        assert store.delete(Scope("acme", chunk_id(text("a")))) == 5
        assert found(store, blob.head.key) is None
    assert put_back(data, f"{place}2").blobs == {"deleted since": 1}


def test_a_blob_that_cannot_be_read_is_left_out_and_counted(data: Path, tmp_path: Path) -> None:
    with open_store(f"file://{tmp_path}/store") as store:
        for name in "ab":
            store.put(blob_of("acme", name))
        path = tmp_path / "store/blobs" / key_of("acme", "a").text
        path.write_bytes(path.read_bytes()[:-1] + b"\x77")
        report = saved(data, store)
        assert (report.blobs, report.left_out) == (1, 1)
        with closing(opened(data)) as control:
            assert control.tenants() == ["default"]
