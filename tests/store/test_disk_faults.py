"""Full disks, folders that may not be written, damaged files: typed errors with a remedy, never a wrong value."""

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from store.blob_store import BlobStore, Put
from store.errors import BadBlob, StoreDenied, StoreError, StoreFull, StoreUnavailable
from store.key import Scope
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader
from store.scrub import verify
from store.url import open_store
from tests.store.crash_writer import TENANT, bulk
from tests.store.samples import key

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
BLOB_BYTES = 300_000


def in_another_process(function: Callable[[str], None], argument: object, *, through: tuple[str, ...] = ()) -> None:
    """Call a function of this file where its limits and rights, or its crash, concern nobody else."""
    program = f"import sys; from {function.__module__} import {function.__name__} as f; f(sys.argv[1])"
    command = [*through, sys.executable, "-c", program, str(argument)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr}"


def served(store: BlobStore, name: object) -> bytes | None:
    """The bytes of a blob, every frame verified; None where it is a miss."""
    reader = store.open(key(name))
    try:
        return bytes(reader.blob()) if isinstance(reader, BlobReader) else None
    except BadBlob:
        return None


def fill(store: BlobStore) -> list[int]:
    """Store blobs until the disk is full; returns their names."""
    for name in range(100):
        try:
            assert store.put(bulk(name, BLOB_BYTES)) is Put.STORED
        except StoreFull as full:
            remedy = str(full)
            break
    else:
        pytest.fail("the disk was never full")
    assert "full: free some space" in remedy
    return list(range(name))


def survive_a_full_disk(url: str) -> None:
    """What was stored stays, what does not fit is not seen, and freed room is used again."""
    with open_store(url) as store:
        names = fill(store)
        assert len(names) > 3
        with pytest.raises(StoreFull):
            store.put(bulk("again", BLOB_BYTES))
        assert {entry.key for entry in store.entries()} == {key(name) for name in names}
        assert all(served(store, name) == bytes(bulk(name, BLOB_BYTES)) for name in names)
        for name in names[:3]:
            store.delete(Scope(TENANT, key(name).chunk))
        late = bulk("late", BLOB_BYTES, epoch=store.epoch(TENANT))
        assert store.put(late) is Put.STORED
    with open_store(url) as store:
        assert served(store, "late") == bytes(late)
        assert all(served(store, name) == bytes(bulk(name, BLOB_BYTES)) for name in names[3:])
        reports = [report for _, report in verify(store)]
        assert (reports[-1].bad, reports[-1].strays) == ([], [])


def survive_limited_files(url: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 * BLOB_BYTES, resource.RLIM_INFINITY))
    survive_a_full_disk(url)


def survive_limited_objects(url: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOB_BYTES, resource.RLIM_INFINITY))
    with open_store(url) as store:
        assert store.put(bulk("small", BLOB_BYTES // 2)) is Put.STORED
        with pytest.raises(StoreFull, match="full: free some space"):
            store.put(bulk("large", 2 * BLOB_BYTES))
        assert (served(store, "small"), served(store, "large")) == (bytes(bulk("small", BLOB_BYTES // 2)), None)
        assert [entry.key for entry in store.entries()] == [key("small")]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert store.put(bulk("large", 2 * BLOB_BYTES)) is Put.STORED
        assert served(store, "large") == bytes(bulk("large", 2 * BLOB_BYTES))


def compact_on_a_full_disk(url: str) -> None:
    with LmdbStore(Path(url.removeprefix("lmdb://"))) as store:
        names = fill(store)
        with pytest.raises(StoreFull, match="full: free some space"):
            store.environment.compact()
        assert all(served(store, name) == bytes(bulk(name, BLOB_BYTES)) for name in names)
        assert store.discard(key(names[0]))
        assert store.put(bulk("next", BLOB_BYTES)) is Put.STORED


def begin_on_a_full_disk(url: str) -> None:
    """Says so, where the table of readers is not there yet and where it has holes, as LMDB makes it."""
    folder = Path(url.removeprefix("lmdb://"))
    with LmdbStore(folder) as store:
        assert store.put(bulk("old", BLOB_BYTES)) is Put.STORED
    table, ballast = folder / "lock.mdb", folder.parent / "ballast"
    for holes in (0, table.stat().st_size):
        table.unlink()
        with table.open("wb") as file:
            file.truncate(holes)
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        with pytest.raises(StoreFull, match="full: free some space"):
            LmdbStore(folder)
        ballast.unlink()
        with LmdbStore(folder) as store:
            assert served(store, "old") == bytes(bulk("old", BLOB_BYTES))


@pytest.fixture
def small_disk(tmp_path: Path) -> tuple[str, ...]:
    """A command that runs another one with a disk of 6 MB at `tmp_path`, seen by that one alone."""
    script = 'mount -t tmpfs -o size=6m none "$0" && cd . && exec "$@"'
    command = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(tmp_path))
    if shutil.which("unshare") is None:
        pytest.skip("needs the command unshare")
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
    return command


@pytest.mark.parametrize("scheme", ["lmdb", "file"])
def test_a_full_disk_is_said_and_nothing_is_lost(scheme: str, tmp_path: Path, small_disk: tuple[str, ...]) -> None:
    in_another_process(survive_a_full_disk, f"{scheme}://{tmp_path}/store", through=small_disk)


def test_a_start_on_a_full_disk_is_refused_and_not_killed(tmp_path: Path, small_disk: tuple[str, ...]) -> None:
    in_another_process(begin_on_a_full_disk, f"lmdb://{tmp_path}/store", through=small_disk)


def test_a_compaction_that_finds_no_room_changes_nothing(tmp_path: Path, small_disk: tuple[str, ...]) -> None:
    in_another_process(compact_on_a_full_disk, f"lmdb://{tmp_path}/store", through=small_disk)


def test_an_lmdb_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    in_another_process(survive_limited_files, f"lmdb://{tmp_path}/store")


def test_an_object_that_may_not_be_so_large_is_a_full_disk(tmp_path: Path) -> None:
    in_another_process(survive_limited_objects, f"file://{tmp_path}/store")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user of the machine may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def lose_rights() -> None:
    """Where permissions do not bind because we are root, be nobody."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def be_denied_to_open(url: str) -> None:
    lose_rights()
    with pytest.raises(StoreDenied, match="check its owner and mode") as caught:
        open_store(url)
    assert url.partition("://")[2] in str(caught.value)


def be_denied_to_put(url: str) -> None:
    lose_rights()
    with open_store(url) as store:
        assert served(store, 1) == bytes(bulk(1, 9000))
        with pytest.raises(StoreDenied, match="check") as caught:
            store.put(bulk(2, 9000))
        assert url in str(caught.value)


@pytest.mark.parametrize("scheme", ["lmdb", "file"])
def test_a_store_that_cannot_be_made_is_denied(scheme: str, open_folder: Path) -> None:
    open_folder.chmod(0o555)
    in_another_process(be_denied_to_open, f"{scheme}://{open_folder}/store")


@pytest.mark.parametrize("unwritable", ["kvweave.lock", "lock.mdb", "data.mdb"])
def test_an_lmdb_file_that_may_not_be_written_is_denied(unwritable: str, open_folder: Path) -> None:
    with LmdbStore(open_folder) as store:
        store.put(bulk(1, 9000))
    open_folder.chmod(0o777)
    for file in open_folder.iterdir():
        file.chmod(0o444 if file.name == unwritable else 0o666)
    in_another_process(be_denied_to_open, f"lmdb://{open_folder}")


def test_a_folder_that_may_not_be_written_is_read_and_puts_are_denied(open_folder: Path) -> None:
    with open_store(f"file://{open_folder}") as store:
        store.put(bulk(1, 9000))
    for place in [open_folder, *open_folder.rglob("*")]:
        place.chmod(0o555 if place.is_dir() else 0o444)
    try:
        in_another_process(be_denied_to_put, f"file://{open_folder}")
    finally:
        for place in [open_folder, *open_folder.rglob("*")]:
            place.chmod(0o755)


NAMES = range(20)


def use_a_damaged_file(folder: str) -> None:
    """Nothing wrong is served. Where LMDB itself notices, the remedy is told."""
    told = f"{folder} remove the folder"
    try:
        with LmdbStore(Path(folder)) as store:
            assert all(served(store, name) in (None, bytes(bulk(name, 100_000))) for name in NAMES)
            for _, report in verify(store):
                assert all(bad.reason in ("corrupt", "foreign") for bad in report.bad)
            store.put(bulk("next", 100_000))
    except StoreUnavailable as error:
        told = str(error)
    assert folder in told and "remove the folder" in told


def must_not_open(folder: str) -> None:
    with pytest.raises(StoreUnavailable, match="if its file is damaged, remove the folder"):
        LmdbStore(Path(folder))


@pytest.fixture
def closed_store(tmp_path: Path) -> Path:
    """The file of a store with some blobs that nobody has open."""
    with LmdbStore(tmp_path) as store:
        for name in NAMES:
            store.put(bulk(name, 100_000))
    return tmp_path / "data.mdb"


@pytest.mark.parametrize("left", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off_serves_nothing_wrong(left: float, closed_store: Path) -> None:
    os.truncate(closed_store, int(closed_store.stat().st_size * left))
    in_another_process(use_a_damaged_file, closed_store.parent)


@pytest.mark.parametrize("left", [100, 4096, 8192])
def test_a_file_of_which_hardly_anything_is_left_is_not_opened(left: int, closed_store: Path) -> None:
    os.truncate(closed_store, left)
    in_another_process(must_not_open, closed_store.parent)


@pytest.mark.parametrize("first", [0, 4096, 8192])
def test_noise_in_place_of_a_file_is_not_opened(first: int, closed_store: Path) -> None:
    size = closed_store.stat().st_size
    with closed_store.open("r+b") as file:
        file.seek(first)
        file.write(random.Random(first).randbytes(size - first))
    in_another_process(must_not_open, closed_store.parent)


def test_noise_in_one_blob_costs_that_blob(closed_store: Path) -> None:
    sound = bytes(bulk(7, 100_000).frames[2])
    place = closed_store.read_bytes().index(sound)
    with closed_store.open("r+b") as file:
        file.seek(place)
        file.write(random.Random(1).randbytes(len(sound)))
    with LmdbStore(closed_store.parent) as store:
        assert served(store, 7) is None
        assert all(served(store, name) == bytes(bulk(name, 100_000)) for name in NAMES if name != 7)
        assert store.replace(bulk(7, 100_000)) is Put.STORED
        assert served(store, 7) == bytes(bulk(7, 100_000))


def test_a_file_in_place_of_the_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder", encoding="utf-8")
    with pytest.raises(StoreError, match=str(tmp_path)):
        LmdbStore(tmp_path / "store")
