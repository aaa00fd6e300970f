"""Nothing but entries is in an LMDB folder, also in one that an older release wrote; and it is for its owner alone."""

import errno
import stat
import struct
from pathlib import Path

import pytest

from store.lmdb import environment
from store.lmdb.lmdb_store import LmdbStore
from tests.store.crash_writer import bulk
from tests.store.samples import key
from tests.store.test_broken import LEAF, PAGE, tree_pages
from tests.store.test_disk_faults import served

CANARY = b"Quaxilor keeps a badger. "
NAMES = range(20)
BYTES = 30_000


def fill_memory() -> None:
    """Leave the words in memory that is free for whoever asks next."""
    small = [(CANARY * 200)[: PAGE - 33 + more] for more in range(-64, 64) for _ in range(30)]
    large = [(CANARY * 2000)[: pages * PAGE - 33] for pages in range(2, 10) for _ in range(20)]
    del small, large


def canaries(folder: Path) -> int:
    return sum(path.read_bytes().count(CANARY) for path in folder.rglob("*") if path.is_file())


def written(folder: Path) -> Path:
    with LmdbStore(folder) as store:
        for name in NAMES:
            fill_memory()
            store.put(bulk(name, BYTES))
    return folder


def as_an_older_release_left_it(folder: Path) -> Path:
    """With the words in what its pages do not use, and without a mark."""
    starts = list(tree_pages(folder))
    data = bytearray((folder / "data.mdb").read_bytes())
    for start in starts:
        flags, lower, upper = struct.unpack_from("<HHH", data, start + 10)
        if flags == LEAF and upper - lower > len(CANARY):
            data[start + upper - len(CANARY) : start + upper] = CANARY
    for name in NAMES:
        for frame in bulk(name, BYTES).frames:
            end = data.index(frame) + len(frame)
            data[end : end + len(CANARY)] = CANARY
    (folder / "data.mdb").write_bytes(data)
    (folder / "kvweave.lock").write_bytes(b"")
    return folder


def test_nothing_of_the_memory_of_the_process_is_written(tmp_path: Path) -> None:
    assert canaries(written(tmp_path)) == 0


def test_the_pages_of_an_older_release_are_rewritten_once(tmp_path: Path) -> None:
    folder = as_an_older_release_left_it(written(tmp_path))
    assert canaries(folder) > len(NAMES)
    with LmdbStore(folder) as store:
        assert canaries(folder) == 0
        assert all(served(store, name) == bytes(bulk(name, BYTES)) for name in NAMES)
        first = (folder / "data.mdb").stat().st_ino
    with LmdbStore(folder):
        assert (folder / "data.mdb").stat().st_ino == first


def test_a_compaction_leaves_nothing_of_what_was_discarded(tmp_path: Path) -> None:
    folder = as_an_older_release_left_it(written(tmp_path))
    gone = bulk(3, BYTES).frames[1]
    with LmdbStore(folder) as store:
        store.discard(key(3))
        assert gone in (folder / "data.mdb").read_bytes()
        store.compact()
        assert gone not in (folder / "data.mdb").read_bytes()
        assert canaries(folder) == 0


def test_pages_that_cannot_be_rewritten_serve_until_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = as_an_older_release_left_it(written(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(environment, "rewrite", fail)
        with LmdbStore(folder) as store:
            assert all(served(store, name) == bytes(bulk(name, BYTES)) for name in NAMES)
    with LmdbStore(folder):
        assert canaries(folder) == 0


def test_files_and_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = written(tmp_path / "store")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {"store": 0o700, "data.mdb": 0o600, "lock.mdb": 0o600, "kvweave.lock": 0o600}
    for place in (folder, *folder.iterdir()):
        place.chmod(0o755 if place.is_dir() else 0o644)
    with LmdbStore(folder) as store:
        store.compact()
        assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())} == modes
