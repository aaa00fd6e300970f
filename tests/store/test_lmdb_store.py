"""What LMDB alone promises: flags, budgets and growth, compaction and forks, inside one process."""

import multiprocessing
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

import lmdb
import pytest

from store.blob_store import Put
from store.errors import BadBlob, StoreBusy, StoreClosed
from store.key import Scope
from store.lmdb.lmdb_store import LmdbStore
from store.lmdb.rows import Rows, file_bytes
from store.reader import BlobReader, read
from store.tiers.budget import TierBudget
from store.tiers.eviction import Evictor
from tests.store.crash_writer import bulk
from tests.store.samples import key


def opened(store: LmdbStore, name: object) -> BlobReader:
    reader = store.open(key(name))
    assert isinstance(reader, BlobReader), reader
    return reader


def lmdb_of(store: LmdbStore) -> lmdb.Environment:
    """LMDB's own environment, behind the store's back."""
    return vars(store.environment)["_env"]


def counted(evictor: Evictor[str], names: range) -> dict[str, tuple[bool, int]]:
    """Of each key whether it is there, and its uses."""
    known = {key(name).text: evictor.memory(key(name).text) for name in names}
    lives = {name: (memory.resident is not None, memory.resident or memory.past) for name, memory in known.items()}
    return {name: (there, life.uses if life else 0) for name, (there, life) in lives.items()}


def listed(store: LmdbStore) -> set[str]:
    return {entry.key.chunk.removeprefix("chunk-") for entry in store.entries()}


def totals_match(store: LmdbStore) -> bool:
    """Whether the totals are the sums of the rows."""
    rows = Rows(store.environment)
    with store.environment.read() as txn:
        found = {raw: row.nbytes for raw, row in rows.scan(txn)}
        totals = rows.totals(txn)
    sums: dict[bytes, tuple[int, int]] = {}
    for raw, nbytes in found.items():
        tenant = raw.partition(b"/")[0]
        blobs, before = sums.get(tenant, (0, 0))
        sums[tenant] = (blobs + 1, before + nbytes)
    return sums == {tenant: (total.blobs, total.nbytes) for tenant, total in totals.items()}


def body_bytes(store: LmdbStore) -> int:
    return sum(opened(store, name).head.body_bytes for name in listed(store))


def test_what_is_committed_is_synced(tmp_path: Path) -> None:
    with LmdbStore(tmp_path) as store:
        flags = lmdb_of(store).flags()
    assert (flags["sync"], flags["metasync"], flags["writemap"], flags["map_async"]) == (True, True, False, False)


@pytest.mark.parametrize(
    ("sizes", "budget", "usable"),
    [
        ((100_000, 1_000_000), 16_000_000, 0.6),
        ((1_500_000, 2_000_000), 16_000_000, 0.5),
        ((2_000, 8_000), 4_000_000, 0.1),
    ],
    ids=["chunks", "long documents", "tiny ones, which waste pages"],
)
def test_a_file_never_outgrows_its_budget_and_much_of_it_is_usable(
    tmp_path: Path, *, sizes: tuple[int, int], budget: int, usable: float
) -> None:
    chance = random.Random(1)
    shares: list[float] = []
    with LmdbStore(tmp_path, TierBudget(budget)) as store:
        for name in range(400 if sizes[1] < 10_000 else 60):
            assert store.put(bulk(name, chance.randrange(*sizes))) is Put.STORED
            assert store.environment.file_bytes() <= budget
            if name % 20 == 19:
                shares.append(body_bytes(store) / budget)
        assert totals_match(store)
    assert min(shares[-2:]) > usable


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(100_000, 2_000_000), (100_000, 100_001), (1_000_000, 1_000_001)])
def test_three_quarters_of_a_larger_budget_are_usable(sizes: tuple[int, int], tmp_path: Path) -> None:
    budget = 64_000_000
    chance = random.Random(1)
    shares: list[float] = []
    with LmdbStore(tmp_path, TierBudget(budget)) as store:
        for name in range(4 * budget // sizes[0] if sizes[0] > 500_000 else 800):
            assert store.put(bulk(name, chance.randrange(*sizes))) is Put.STORED
            if name > 650 or (sizes[0] > 500_000 and name > 100):
                shares.append(body_bytes(store) / budget)
        assert store.environment.file_bytes() <= budget
    assert fmean(shares) > 0.75
    assert min(shares) > 0.6  # how much it is for a while varies with the hash seed of the run


def test_a_put_larger_than_the_budget_is_over_budget(tmp_path: Path) -> None:
    with LmdbStore(tmp_path, TierBudget(1_000_000)) as store:
        assert store.put(bulk("small", 100_000)) is Put.STORED
        assert store.put(bulk("large", 1_100_000)) is Put.OVER_BUDGET
        assert listed(store) == {"small"}


@pytest.mark.parametrize(("lowest", "outcome"), [(True, Put.OVER_BUDGET), (False, Put.STORED)])
def test_what_was_precomputed_is_given_up_by_a_cache_alone(tmp_path: Path, *, lowest: bool, outcome: Put) -> None:
    with LmdbStore(tmp_path, TierBudget(1_000_000, lowest=lowest)) as store:
        outcomes = [store.put(bulk(name, 200_000, precomputed=True)) for name in range(6)]
        assert (outcomes[0], outcomes[-1]) == (Put.STORED, outcome)
        assert ("0" in listed(store)) is lowest


@pytest.mark.parametrize("lowest", [True, False])
def test_pins_are_kept_by_every_tier_until_they_are_taken_back(tmp_path: Path, *, lowest: bool) -> None:
    with LmdbStore(tmp_path, TierBudget(1_000_000, lowest=lowest)) as store:
        store.put(bulk("pinned", 200_000))
        assert store.pin(Scope("acme", "chunk-pinned")) == 1
        for name in range(20):
            assert store.put(bulk(name, 200_000)) is Put.STORED
        assert "pinned" in listed(store)
        assert store.unpin(Scope("acme", "chunk-pinned")) == 1
        for name in range(20, 40):
            assert store.put(bulk(name, 200_000)) is Put.STORED
        assert "pinned" not in listed(store)


def test_fills_make_room_for_what_is_precomputed(tmp_path: Path) -> None:
    with LmdbStore(tmp_path, TierBudget(1_000_000)) as store:
        for name in range(6):
            store.put(bulk(f"fill-{name}", 200_000))
        outcomes = [store.put(bulk(name, 200_000, precomputed=True)) for name in range(3)]
        assert outcomes == [Put.STORED] * 3
        assert {"0", "1", "2"} <= listed(store)


@pytest.mark.parametrize("batch", [1, 3])
def test_attempts_to_make_room_that_come_to_nothing_count_as_no_use(tmp_path: Path, batch: int) -> None:
    chance = random.Random(batch)
    model = Evictor[str]()
    attempts = 0
    names = range(14)  # so few that none is forgotten
    with LmdbStore(tmp_path, TierBudget(1_500_000)) as store:
        evictor: Evictor[str] = vars(vars(vars(store)["_ledger"])["_ledger"])["_everyone"]

        def write(change: Callable[[lmdb.Transaction], object]) -> object:
            nonlocal attempts
            attempts += 1
            return environment_write(change)

        environment_write, vars(store.environment)["write"] = store.environment.write, write
        for _ in range(80):
            before = listed(store)
            for name in chance.sample(sorted(before), len(before) // 2):
                opened(store, name)
                model.used(key(name).text)
            new = chance.sample(sorted({*map(str, names)} - before), batch)
            blobs = [bulk(name, chance.randrange(150_000, 250_000)) for name in new]
            assert set(store.put_all(blobs)) == {Put.STORED}
            for blob in blobs:
                model.inserted(blob.head.key.text, file_bytes(blob), cost=1.0)
            for name in sorted({*before, *new} - listed(store)):
                model.evicted(key(name).text)
            assert counted(evictor, names) == counted(model, names)
    assert attempts > 2 * 80 // batch  # room was looked for in vain


def test_a_small_map_grows_with_what_is_stored(tmp_path: Path) -> None:
    with LmdbStore(tmp_path, map_bytes=1) as store:
        first = lmdb_of(store).info()["map_size"]
        for name in range(12):
            assert store.put(bulk(name, 300_000, precomputed=True)) is Put.STORED
        assert lmdb_of(store).info()["map_size"] > 3_600_000 > first
        assert len(listed(store)) == 12


def test_room_that_a_delete_made_is_there_for_the_next_put(tmp_path: Path) -> None:
    with LmdbStore(tmp_path, TierBudget(2_000_000)) as store:
        names = [name for name in range(12) if store.put(bulk(name, 200_000, precomputed=True)) is Put.STORED]
        for again in range(20):
            assert store.discard(key(names[again % len(names)]))
            outcome = store.put(bulk(names[again % len(names)], 200_000, seed=again, precomputed=True))
            assert outcome is Put.STORED
        assert len(listed(store)) == len(names)


def test_compacting_gives_bytes_back_and_keeps_every_blob(tmp_path: Path) -> None:
    with LmdbStore(tmp_path) as store:
        for name in range(20):
            store.put(bulk(name, 200_000))
        for name in range(15):
            store.discard(key(name))
        before = store.environment.file_bytes()
        given_back = store.environment.compact()
        assert store.environment.file_bytes() == before - given_back < 6 * 200_000
        for name in range(15, 20):
            assert bytes(opened(store, name).blob()) == bytes(bulk(name, 200_000))
        assert store.put(bulk("next", 200_000)) is Put.STORED
        assert store.delete(Scope("acme", "chunk-15")) == 1
        assert totals_match(store)
    with LmdbStore(tmp_path) as store:
        assert listed(store) == {"16", "17", "18", "19", "next"}


def test_a_budget_is_kept_after_compacting(tmp_path: Path) -> None:
    with LmdbStore(tmp_path, TierBudget(1_000_000)) as store, LmdbStore(tmp_path, TierBudget(1_000_000)) as second:
        for name in range(10):
            store.put(bulk(name, 150_000))
        store.environment.compact()
        for name in range(10, 30):
            assert (store, second)[name % 2].put(bulk(name, 150_000)) is Put.STORED
        assert store.environment.file_bytes() <= 1_000_000
        assert totals_match(store)


def test_compacting_goes_well_beside_readers(tmp_path: Path) -> None:
    done = threading.Event()
    failed: list[BaseException] = []

    def read(store: LmdbStore) -> None:
        try:
            while not done.is_set():
                for name in range(8):
                    opened(store, name).blob()
        except (BadBlob, AssertionError, OSError, ValueError) as error:
            failed.append(error)

    with LmdbStore(tmp_path) as store:
        for name in range(8):
            store.put(bulk(name, 100_000))
        threads = [threading.Thread(target=read, args=(store,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            store.environment.compact()
        done.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_thread_that_reads_a_frame_is_refused_what_would_wait_for_itself(tmp_path: Path) -> None:
    with LmdbStore(tmp_path) as store:
        store.put(bulk(1, 9000))
        with opened(store, 1).frame(0):
            with pytest.raises(StoreBusy, match="reading a frame"):
                store.environment.compact()
            with pytest.raises(StoreBusy, match="reading a frame"):
                store.close()
        store.environment.compact()
        assert listed(store) == {"1"}


def test_a_view_is_dead_after_its_block(tmp_path: Path) -> None:
    with LmdbStore(tmp_path) as store:
        store.put(bulk(1, 9000))
        with opened(store, 1).frame(0) as view:
            assert len(view) == 9000 // 4
        with pytest.raises(ValueError, match="released"):
            len(bytes(view))


def test_a_long_read_does_not_keep_pages_from_being_used_again(tmp_path: Path) -> None:
    with LmdbStore(tmp_path) as store:
        store.put(bulk("read", 400_000))
        reader = opened(store, "read")
        for round_ in range(5):
            store.replace(bulk("other", 400_000, seed=round_))
        before = store.environment.file_bytes()
        for number in range(len(reader.head.frames)):
            with reader.frame(number):
                pass
            for round_ in range(5):
                store.replace(bulk("other", 400_000, seed=round_))
        assert store.environment.file_bytes() == before


def test_several_frames_are_of_one_snapshot_whatever_goes_meanwhile(tmp_path: Path) -> None:
    with LmdbStore(tmp_path) as store:
        blobs = [bulk(name, 9000) for name in range(3)]
        store.put_all(blobs)
        readers = [opened(store, name) for name in range(3)]
        wanted = [(reader, number) for reader in readers for number in (0, 1)]
        with ThreadPoolExecutor(1) as other, readers[0].several(wanted) as views:
            other.submit(store.delete, Scope("acme")).result()
            assert [*map(bytes, views)] == [frame for blob in blobs for frame in blob.frames[:2]]
        with pytest.raises(ValueError, match="released"):
            len(bytes(views[0]))
        with pytest.raises(BadBlob, match="went away"), readers[1].several(wanted):
            pass
        assert store.environment.compact() > 0


def test_several_frames_may_be_of_any_media(tmp_path: Path) -> None:
    with LmdbStore(tmp_path / "one") as one, LmdbStore(tmp_path / "two") as two:
        for store, name in ((one, 1), (two, 2)):
            store.put(bulk(name, 9000))
        there = read(bulk(3, 9000))
        wanted = [(opened(two, 2), 0), (opened(one, 1), 1), (there, 2)]
        with wanted[0][0].several(wanted) as frames:
            assert [*map(bytes, frames)] == [
                bulk(name, 9000).frames[number] for name, number in ((2, 0), (1, 1), (3, 2))
            ]


def in_a_fork(change: Callable[[], None]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=change)
    process.start()
    process.join()
    return process.exitcode


def test_a_store_that_was_opened_before_a_fork_is_closed_in_the_child(tmp_path: Path) -> None:
    def child() -> None:
        with pytest.raises(StoreClosed, match="fork"):
            store.open(key(1))
        with pytest.raises(StoreClosed, match="fork"):
            store.put(bulk(2, 9000))
        with LmdbStore(tmp_path) as mine:
            store.close()
            assert bytes(opened(mine, 1).blob()) == bytes(bulk(1, 9000))
            assert mine.put(bulk(2, 9000)) is Put.STORED
        with LmdbStore(tmp_path) as mine:
            assert listed(mine) == {"1", "2"}

    with LmdbStore(tmp_path) as store:
        store.put(bulk(1, 9000))
        assert in_a_fork(child) == 0
        assert listed(store) == {"1", "2"}
        assert store.put(bulk(3, 9000)) is Put.STORED


def test_two_stores_on_one_path_share_the_environment(tmp_path: Path) -> None:
    first = LmdbStore(tmp_path)
    with LmdbStore(tmp_path) as second:
        assert first.environment is second.environment
        first.put(bulk(1, 9000))
        first.close()
        first.close()
        assert bytes(opened(second, 1).blob()) == bytes(bulk(1, 9000))
    with pytest.raises(StoreClosed):
        second.open(key(1))


def test_a_budget_too_small_for_an_empty_store_says_so(tmp_path: Path) -> None:
    with LmdbStore(tmp_path, TierBudget(1)) as store:
        assert store.put(bulk(1, 9000)) is Put.OVER_BUDGET
