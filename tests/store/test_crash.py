"""Writers are killed at random instants. What they had acknowledged is there, and nothing half-written is seen."""

import logging
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.blob_store import BlobStore
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader
from store.scrub import verify
from store.url import open_store
from tests.nursery import Nursery, nursing
from tests.store.contract import stored
from tests.store.crash_writer import KEPT, NAMES, bulk
from tests.store.samples import key

log = logging.getLogger(__name__)

LMDB = "lmdb://{0}/store?budget=4MB"
TIERED = "tiered:mem://?budget=200kB|lmdb://{0}/cache?budget=2MB|file://{0}/low"
THERE, GONE = "there", "gone"
FORGETTING = ("delete", "wipe", "discard")


class Acknowledged:
    """What writers said of each blob: there, gone, or nothing that binds."""

    def __init__(self, *, evicts: bool) -> None:
        self.names: dict[int, str | None] = dict.fromkeys(range(NAMES), GONE)
        self._evicts = evicts  # whether fills may vanish

    def hear(self, line: str) -> None:
        """One line of a writer, whole."""
        when, work, number, *said = line.split()
        numbers = range(NAMES) if work == "wipe" else [int(number)]
        if when == "begin":
            self._before = {number: self.names[number] for number in numbers}
            self.names |= {number: self._meanwhile(work, number) for number in numbers}
        else:
            self.names |= {number: self._after(work, said[0], number) for number in numbers}

    def _meanwhile(self, work: str, number: int) -> str | None:
        """A put never takes away what is there; whether anything else has happened is open."""
        return THERE if self.names[number] == THERE and work not in FORGETTING else None

    def _after(self, work: str, said: str, number: int) -> str | None:
        if work in FORGETTING:
            return None if said == "REFUSED" else GONE
        if said in ("STORED", "PRESENT"):
            return None if self._evicts and number >= KEPT else THERE
        return self._before[number]  # refused, late or over budget: as if it had not been asked

    def numbers(self, state: str) -> set[int]:
        """The blobs of which a writer said so."""
        return {number for number, known in self.names.items() if known == state}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursing("tests.store.crash_writer") as nursery:
        yield nursery


def run_and_kill(nursery: Nursery, url: str, *, seed: int, said: Acknowledged) -> int:
    """Kill a writer at a random instant; returns the number of changes it finished."""
    chance = random.Random(seed)
    whole = nursery.killed(url, str(seed), "mixed", chance=chance, lines=chance.randrange(60))
    for line in whole:
        said.hear(line)
    return sum(line.startswith("done") for line in whole)


def check(store: BlobStore, said: Acknowledged) -> None:
    """Acknowledged blobs are served, deleted ones are not, every frame verifies, and totals equal listings."""
    served = {number for number in range(NAMES) if isinstance(store.open(key(number)), BlobReader)}
    assert said.numbers(THERE) <= served
    assert not said.numbers(GONE) & served
    for number in served:
        assert stored(store, key(number)).head.key == key(number)
    assert {key(number) for number in said.numbers(THERE)} <= {entry.key for entry in store.entries()}
    store.flush()
    reports = [report for _, report in verify(store)]
    assert not reports or (reports[-1].bad, reports[-1].strays) == ([], [])
    store.finish_deletes()
    assert [sum(usage.blobs for usage in tier.usage()) for tier in store.tiers] == [
        len(list(tier.entries())) for tier in store.tiers
    ]


def kill_often(nursery: Nursery, url: str, *, times: int, evicts: bool) -> Acknowledged:
    """One store, many writers, all of them killed."""
    said = Acknowledged(evicts=evicts)
    finished = 0
    for seed in range(times):
        finished += run_and_kill(nursery, url, seed=seed, said=said)
        with open_store(url) as store:
            check(store, said)
    assert finished > times, "the writers were killed before they did anything"
    log.warning("%d kills, %d changes acknowledged", times, finished)
    return said


@pytest.mark.parametrize("times", [8, pytest.param(300, marks=pytest.mark.long)])
def test_killed_writers_leave_lmdb_whole(times: int, nursery: Nursery, tmp_path: Path) -> None:
    kill_often(nursery, LMDB.format(tmp_path), times=times, evicts=True)


@pytest.mark.parametrize("times", [7, pytest.param(300, marks=pytest.mark.long)])
def test_killed_writers_leave_tiers_whole(times: int, nursery: Nursery, tmp_path: Path) -> None:
    kill_often(nursery, TIERED.format(tmp_path), times=times, evicts=False)


def test_a_cache_tier_that_is_lost_with_its_writer_loses_no_blob(nursery: Nursery, tmp_path: Path) -> None:
    url = TIERED.format(tmp_path)
    said = Acknowledged(evicts=False)
    for seed in (1001, 1002):
        run_and_kill(nursery, url, seed=seed, said=said)
    shutil.rmtree(tmp_path / "cache")
    assert said.numbers(THERE)
    with open_store(url) as store:
        check(store, said)


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_compaction_leaves_the_store_whole(seed: int, nursery: Nursery, tmp_path: Path) -> None:
    with nursery.talking(f"lmdb://{tmp_path}", str(seed), "compact") as (writer, talk):
        assert [talk.readline() for _ in range(2)] == ["ready\n", "begin compact 0\n"]
        threading.Event().wait(random.Random(seed).random() / 50)  # chooses the instant, nothing waits for it
        writer.kill()
    with LmdbStore(tmp_path) as store:
        for number in range(KEPT):
            assert bytes(stored(store, key(number))) == bytes(bulk(number, 50_000, precomputed=True))
        reports = [report for _, report in verify(store)]
        assert reports[-1].bad == []
        assert store.usage()[0].blobs == len(list(store.entries()))
        assert not (tmp_path / "compacting").exists()


def test_what_a_killed_compaction_left_is_removed_at_the_next_open(tmp_path: Path) -> None:
    with LmdbStore(tmp_path) as store:
        store.put(bulk(1, 9000))
    (tmp_path / "compacting").mkdir()
    (tmp_path / "compacting" / "data.mdb").write_bytes(b"half a copy")
    with LmdbStore(tmp_path) as store:
        assert not (tmp_path / "compacting").exists()
        assert isinstance(store.open(key(1)), BlobReader)
