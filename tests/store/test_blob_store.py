"""The contract, for each of the stores. What is special to one has a file of its own."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from store.blob import Blob
from store.blob_store import BlobStore
from store.key import CacheKey
from store.lmdb.lmdb_store import LmdbStore
from store.tiers.memory_store import MemoryStore
from store.tiers.tiered_store import TieredStore
from store.url import open_store
from tests.servers.s3 import S3Server
from tests.store.contract import BlobStoreContract


class TestMemory(BlobStoreContract):
    quarantined = 0

    @pytest.fixture
    def store(self) -> Iterator[BlobStore]:
        with open_store("mem://") as store:
            yield store

    def raw(self, store: BlobStore, wanted: CacheKey) -> bytes | None:
        assert isinstance(store, MemoryStore)
        kept = store._blobs.get(wanted)
        if kept is None:
            return None
        assert isinstance(kept.blob, Blob)
        return bytes(kept.blob)

    def overwrite(self, store: BlobStore, wanted: CacheKey, data: bytes) -> None:
        assert isinstance(store, MemoryStore)
        kept = store._blobs[wanted]
        old = kept.blob
        assert isinstance(old, Blob)
        pieces, start = [], len(old.head_bytes)
        for frame in old.frames:
            pieces.append(data[start : start + len(frame)])
            start += len(frame)
        store._blobs[wanted] = type(kept)(
            Blob(old.head, data[: len(old.head_bytes)], tuple(pieces)), kept.precomputed, kept.pinned, kept.stored_at
        )


class TestLmdb(BlobStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[BlobStore]:
        with open_store(f"lmdb://{tmp_path}/store") as store:
            yield store

    def raw(self, store: BlobStore, wanted: CacheKey) -> bytes | None:
        return lmdb_raw(store, wanted)

    def overwrite(self, store: BlobStore, wanted: CacheKey, data: bytes) -> None:
        assert isinstance(store, LmdbStore)
        env, name = store.environment, wanted.text.encode()
        heads, frames = env.database(b"heads"), env.database(b"frames")
        with env.read() as txn:
            cursor = txn.cursor(db=frames)
            cursor.set_range(name + b"\0")
            sizes = {bytes(k): len(v) for k, v in cursor if bytes(k).startswith(name + b"\0")}
            start = len(bytes(txn.get(name, db=heads) or b""))

        def change(txn: lmdb.Transaction) -> None:
            position = start
            txn.put(name, data[:start], db=heads)
            for frame, size in sizes.items():
                txn.put(frame, data[position : position + size], db=frames)
                position += size

        env.write(change)


def lmdb_raw(store: BlobStore, wanted: CacheKey) -> bytes | None:
    assert isinstance(store, LmdbStore)
    env, name = store.environment, wanted.text.encode()
    heads, frames = env.database(b"heads"), env.database(b"frames")
    with env.read() as txn:
        head = txn.get(name, db=heads)
        cursor = txn.cursor(db=frames)
        found = cursor.set_range(name + b"\0")
        rows = [bytes(v) for k, v in cursor if bytes(k).startswith(name + b"\0")] if found else []
        assert head is not None or not rows, "frames without a head"
        return None if head is None else b"".join([bytes(head), *rows])


class TestFolder(BlobStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[BlobStore]:
        self.folder = tmp_path / "store"
        with open_store(f"file://{self.folder}") as store:
            yield store

    def raw(self, store: BlobStore, wanted: CacheKey) -> bytes | None:
        path = self.folder / "blobs" / wanted.text
        return path.read_bytes() if path.exists() else None

    def overwrite(self, store: BlobStore, wanted: CacheKey, data: bytes) -> None:
        (self.folder / "blobs" / wanted.text).write_bytes(data)


class TestS3(BlobStoreContract):
    @pytest.fixture
    def store(self, server: S3Server) -> Iterator[BlobStore]:
        prefix = uuid.uuid4().hex
        self.bucket = server.connect(prefix)
        with open_store(server.url(prefix)) as store:
            yield store

    def raw(self, store: BlobStore, wanted: CacheKey) -> bytes | None:
        try:
            return bytes(self.bucket.get(f"blobs/{wanted.text}").bytes())
        except FileNotFoundError:
            return None

    def overwrite(self, store: BlobStore, wanted: CacheKey, data: bytes) -> None:
        self.bucket.put(f"blobs/{wanted.text}", data)


class TestTieredOverLmdb(TestLmdb):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[BlobStore]:
        with open_store(f"tiered:mem://?budget=1MB|lmdb://{tmp_path}/store") as store:
            yield store

    def raw(self, store: BlobStore, wanted: CacheKey) -> bytes | None:
        assert isinstance(store, TieredStore)
        return lmdb_raw(store.lowest, wanted)

    def overwrite(self, store: BlobStore, wanted: CacheKey, data: bytes) -> None:
        assert isinstance(store, TieredStore)
        super().overwrite(store.lowest, wanted, data)


class TestTieredOverFolder(TestFolder):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[BlobStore]:
        self.folder = tmp_path / "store"
        url = f"tiered:mem://?budget=1MB|lmdb://{tmp_path}/cache?budget=8MB|file://{self.folder}"
        with open_store(url) as store:
            yield store
