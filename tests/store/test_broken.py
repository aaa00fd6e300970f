"""An LMDB folder left in disorder is looked through before it is opened; one that is broken begins anew."""

import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.blob_store import Put
from store.key import Scope
from store.lmdb import broken, environment
from store.lmdb.lmdb_store import LmdbStore
from store.lmdb.pages import Pages
from store.tiers.budget import TierBudget
from tests.store.crash_writer import TENANT, bulk
from tests.store.samples import key
from tests.store.test_disk_faults import in_another_process, served

NAMES = range(20)
BYTES = 20_000
PAGE = 4096
BRANCH, LEAF = 1, 2
BROKEN = "data.mdb.broken"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store that was closed in order."""
    with LmdbStore(tmp_path / "store") as store:
        for name in NAMES:
            store.put(bulk(name, BYTES))
        store.compact()
        store.discard(key(NAMES[-1]))
    return tmp_path / "store"


def leave_in_disorder(folder: Path) -> None:
    """As a process that is killed leaves it."""
    (folder / "kvweave.lock").write_bytes(b"in use")


def tree_pages(folder: Path) -> Iterator[int]:
    """Where the branches and leaves of the trees begin."""
    data = (folder / "data.mdb").read_bytes()
    for start in range(2 * PAGE, len(data), PAGE):
        number, _, flags = struct.unpack_from("<QHH", data, start)
        if number == start // PAGE and flags in (BRANCH, LEAF):
            yield start


def spoil(folder: Path, start: int, *, seed: int) -> None:
    with (folder / "data.mdb").open("r+b") as file:
        file.seek(start + 16)
        file.write(random.Random(seed).randbytes(PAGE - 16))


def live_through(folder: str) -> None:
    """Whatever became of the file: it serves nothing wrong, and takes what is put in."""
    for each in sorted(Path(folder).iterdir()):
        with LmdbStore(each) as store:
            assert all(served(store, name) in (None, bytes(bulk(name, BYTES))) for name in NAMES)
            assert list(store.entries()) is not None
            store.delete(Scope(TENANT, key(0).chunk))
            for name in range(3):
                assert store.put(bulk(f"new {name}", BYTES)) is Put.STORED


def test_noise_in_any_tree_costs_what_was_stored_and_no_process(folder: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt"
    for start in tree_pages(folder):
        copied = spoilt / f"{start:08}"
        shutil.copytree(folder, copied)
        spoil(copied, start, seed=start)
        leave_in_disorder(copied)
    assert len(list(spoilt.iterdir())) > 10
    in_another_process(live_through, spoilt)


def flip(folder: Path, start: int, *, seed: int) -> None:
    """Damage a few bytes of a page."""
    chance = random.Random(seed)
    with (folder / "data.mdb").open("r+b") as file:
        file.seek(start + chance.choice([0, 8, 10, 12, 14, chance.randrange(16, 64), chance.randrange(PAGE - 8)]))
        file.write(chance.randbytes(chance.choice([1, 2, 8])))


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.long)])
def test_a_few_wrong_bytes_in_any_tree_cost_no_process(times: int, folder: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt"
    for seed, start in enumerate([0, PAGE, *tree_pages(folder)] * times):
        copied = spoilt / f"{seed:04}"
        shutil.copytree(folder, copied)
        flip(copied, start, seed=seed)
        leave_in_disorder(copied)
    in_another_process(live_through, spoilt)


CHANGES = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 50, 1900, 5000, 70_000])), max_size=40)


@settings(max_examples=30, deadline=None)
@given(changes=CHANGES, more=st.sampled_from([0, 0, 0, 700]), end=st.sampled_from(["as it is", "compacted"]))
def test_all_pages_of_a_sound_file_are_found_as_lmdb_finds_them(
    changes: list[tuple[int, int]], more: int, end: str
) -> None:
    with TemporaryDirectory() as name:
        with LmdbStore(Path(name)) as store:
            store.put_all([bulk(f"more {number}", 50) for number in range(more)])
            for number, nbytes in changes:
                if nbytes:
                    store.replace(bulk(number, nbytes))
                else:
                    store.delete(Scope(TENANT, key(number).chunk))
            if end == "compacted":
                store.compact()
        pages = Pages(memoryview((Path(name) / "data.mdb").read_bytes()))
        found = [(database, entry.key, bytes(entry.value)) for database, entry in pages.entries()]
        assert found == as_lmdb_has_it(name)
        assert pages._seen.count(0) == 2, "pages beside the metas that nothing leads to"  # pyright: ignore[reportPrivateUsage]


def as_lmdb_has_it(folder: str) -> list[tuple[bytes, bytes, bytes]]:
    """All databases' entries."""
    with lmdb.open(folder, max_dbs=20, readonly=True, lock=False, create=False) as env, env.begin() as txn:
        names = [key for key, _ in txn.cursor()]
        return [(name, *each) for name in names for each in txn.cursor(db=env.open_db(name, txn, create=False))]


def test_a_broken_file_is_kept_until_anything_is_deleted(folder: Path) -> None:
    for start in tree_pages(folder):
        spoil(folder, start, seed=start)
    leave_in_disorder(folder)
    with LmdbStore(folder) as store:
        assert list(store.entries()) == []
        assert (folder / BROKEN).is_file()
        store.forget_quarantined(0)
        assert (folder / BROKEN).is_file()
        store.delete(Scope(TENANT, "another"))
        assert not (folder / BROKEN).exists()


def test_a_full_store_keeps_all_after_a_kill(tmp_path: Path) -> None:
    """One that made room has a note beside its databases."""
    budget = TierBudget(4 << 20, lowest=False)
    with LmdbStore(tmp_path, budget) as store:
        for number in range(150):
            assert store.put(bulk(number, 20_000 + number * 977 % 60_000)) is Put.STORED
        kept = {entry.key for entry in store.entries()}
    with lmdb.open(str(tmp_path), max_dbs=20, readonly=True, lock=False) as env, env.begin() as txn:
        assert txn.get(b"touched") == b""
    leave_in_disorder(tmp_path)
    with LmdbStore(tmp_path, budget) as store:
        assert {entry.key for entry in store.entries()} == kept
    assert not (tmp_path / BROKEN).exists()


def test_only_what_was_left_in_disorder_is_looked_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(environment, "is_broken", lambda each: looked.append(each) or False)
    with LmdbStore(folder), LmdbStore(folder):
        pass
    with LmdbStore(folder):
        assert looked == []
        assert (folder / "kvweave.lock").read_bytes() == b"in use"
    leave_in_disorder(folder)
    with LmdbStore(folder):
        assert looked == [folder]


def test_a_folder_that_cannot_be_looked_through_is_not_broken(tmp_path: Path) -> None:
    assert not broken.is_broken(tmp_path / "missing")
