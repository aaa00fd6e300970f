"""What is special to tiers: copies upwards, shared reads, healing, and deletes that other machines made."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.blob import Blob, Buffer, Head
from store.blob_store import BlobStore, FoundBlob, Put
from store.errors import BadBlob, Miss, MissReason, StoreUnavailable
from store.key import CacheKey, Scope
from store.reader import BlobReader, read
from store.tiers.background_queue import BackgroundQueue
from store.tiers.budget import TierBudget
from store.tiers.memory_store import MemoryCache, MemoryStore
from store.tiers.tiered_store import TieredStore
from store.url import open_store
from tests.store.contract import flipped, opened, stored, why
from tests.store.samples import blob, key, plain_bytes


class Slow(MemoryStore):
    """A lowest tier whose frames wait for `gate`, that counts what it is asked, and that can be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.finds = 0
        self.frames_read = 0
        self.is_down = False
        self.asked: Callable[[], object] = lambda: None
        self.meanwhile: Callable[[], object] = lambda: None  # while a blob is replaced

    def _find(self, wanted: CacheKey) -> FoundBlob | None:
        if self.is_down:
            raise StoreUnavailable("out of reach")
        self.finds += 1
        self.asked()
        found = super()._find(wanted)
        return None if found is None else _SlowBlob(self, found)

    def put(self, blob: Blob) -> Put:
        if self.is_down:
            raise StoreUnavailable("out of reach")
        return super().put(blob)

    def replace(self, blob: Blob) -> Put:
        self.meanwhile()
        return super().replace(blob)


class _SlowBlob:
    def __init__(self, store: Slow, found: FoundBlob) -> None:
        self._store = store
        self._found = found
        self.raw_head = found.raw_head

    def reader(self, head: Head) -> BlobReader:
        inner = self._found.reader(head)

        @contextmanager
        def fetch(number: int) -> Generator[Buffer]:
            self._store.gate.wait(30)
            self._store.frames_read += 1
            with inner.frame(number) as data:
                yield data

        return BlobReader(head, self.raw_head, fetch=fetch, source=inner.source)


@pytest.fixture
def lowest() -> Slow:
    return Slow()


@pytest.fixture
def near() -> MemoryCache:
    return MemoryCache(TierBudget(lowest=False))


@pytest.fixture
def store(near: MemoryCache, lowest: Slow) -> Generator[TieredStore]:
    with TieredStore([near, lowest]) as store:
        yield store


def plain(store: BlobStore, wanted: CacheKey) -> list[bytes]:
    """What a store's blob stands for."""
    return plain_bytes(opened(store, wanted))


def test_a_put_goes_to_the_lowest_tier_alone(store: TieredStore, near: MemoryCache, lowest: Slow) -> None:
    store.put(blob())
    assert why(near, key()) is MissReason.ABSENT
    assert why(lowest, key()) is None


def test_prefetch_brings_blobs_up(store: TieredStore, near: MemoryCache, lowest: Slow) -> None:
    lowest.put(blob(1))
    assert store.prefetch([key(1), key(2)]) == 1
    store.flush()
    assert why(near, key(1)) is None


def test_prefetch_asks_for_several_blobs_at_once(store: TieredStore, lowest: Slow) -> None:
    names = range(4)
    for name in names:
        lowest.put(blob(name))
    met = threading.Barrier(len(names))
    lowest.asked = lambda: met.wait(30)
    assert store.prefetch([key(name) for name in names]) == len(names)


def test_a_blob_on_its_way_up_is_not_opened_below_again(store: TieredStore, lowest: Slow) -> None:
    lowest.put(blob())
    lowest.gate.clear()
    readers = [store.open(key()) for _ in range(8)]
    assert lowest.finds == 1
    lowest.gate.set()
    assert {bytes(reader.blob()) for reader in readers if isinstance(reader, BlobReader)} == {bytes(blob())}


def test_a_bad_frame_in_a_cache_is_read_below(tmp_path: Path) -> None:
    with open_store(f"tiered:file://{tmp_path}/near|file://{tmp_path}/low") as store:
        store.put(blob())
        stored(store, key())
        store.flush()
        copy = tmp_path / "near/blobs" / key().text
        copy.write_bytes(flipped(copy.read_bytes(), -1))
        assert bytes(stored(store, key())) == bytes(blob())
        assert not copy.exists()


def test_a_bad_head_in_a_cache_is_read_below(tmp_path: Path) -> None:
    with open_store(f"tiered:file://{tmp_path}/near|file://{tmp_path}/low") as store:
        store.put(blob())
        stored(store, key())
        store.flush()
        copy = tmp_path / "near/blobs" / key().text
        copy.write_bytes(b"")
        assert bytes(stored(store, key())) == bytes(blob())


def test_replace_makes_caches_forget_their_copy(store: TieredStore, lowest: Slow) -> None:
    lowest.put(blob(seed=1))
    stored(store, key())
    store.flush()
    store.replace(blob(seed=2))
    assert bytes(stored(store, key())) == bytes(blob(seed=2))


def test_what_is_opened_while_it_is_replaced_does_not_come_up(
    store: TieredStore, near: MemoryCache, lowest: Slow
) -> None:
    lowest.put(blob(seed=1))
    lowest.gate.clear()
    opened: list[BlobReader | Miss] = []
    lowest.meanwhile = lambda: opened.append(store.open(key()))
    store.replace(blob(seed=2))
    lowest.gate.set()
    store.flush()
    assert isinstance(opened[0], BlobReader) and why(near, key()) is MissReason.ABSENT
    assert bytes(stored(store, key())) == bytes(blob(seed=2))


def test_a_copy_of_what_is_packed_otherwise_below_goes_when_its_frames_are_asked_for(
    store: TieredStore, near: MemoryCache, lowest: Slow
) -> None:
    lowest.put(blob(seed=2))
    near.put(blob(seed=1))
    with pytest.raises(BadBlob):
        stored(store, key())
    assert bytes(stored(store, key())) == bytes(blob(seed=2))


def test_caches_answer_while_the_lowest_tier_is_out_of_reach(store: TieredStore, lowest: Slow) -> None:
    lowest.put(blob(1))
    stored(store, key(1))
    store.flush()
    lowest.is_down = True
    assert plain(store, key(1)) == plain_bytes(read(blob(1)))
    with pytest.raises(StoreUnavailable):
        store.open(key(2))


def test_a_copy_that_was_read_before_a_delete_does_not_come_back(store: TieredStore, lowest: Slow) -> None:
    lowest.put(blob())
    lowest.gate.clear()
    assert isinstance(store.open(key()), BlobReader)
    deleting = threading.Thread(target=store.delete, args=(Scope("acme", "chunk-0"),))
    deleting.start()
    lowest.gate.set()
    deleting.join()
    store.flush()
    assert all(isinstance(tier.open(key()), Miss) for tier in store.tiers)


def test_a_delete_by_another_machine_reaches_this_ones_caches(tmp_path: Path) -> None:
    def machine(name: str) -> BlobStore:
        return open_store(f"tiered:mem://|lmdb://{tmp_path}/{name}|file://{tmp_path}/shared")

    with machine("here") as here, machine("there") as there:
        assert isinstance(here, TieredStore)
        here._sync_s = 0.0
        here.put(blob())
        stored(here, key())
        here.flush()
        there.delete(Scope("acme", "chunk-0"))
        assert why(here, key()) is MissReason.ABSENT
        assert [why(tier, key()) for tier in here.tiers] == [MissReason.ABSENT] * 3


def test_a_restarted_cache_learns_what_was_deleted_meanwhile(tmp_path: Path) -> None:
    url = f"tiered:lmdb://{tmp_path}/cache|file://{tmp_path}/shared"
    with open_store(url) as store:
        store.delete(Scope("acme", "chunk-9"))
        store.put(blob(epoch=1))
        stored(store, key())
        store.flush()
    with open_store(f"file://{tmp_path}/shared") as lowest:
        lowest.delete(Scope("acme", "chunk-0"))
    with open_store(url) as store:
        assert why(store, key()) is MissReason.ABSENT
        assert why(store.tiers[0], key()) is MissReason.ABSENT


def test_a_full_queue_refuses_and_never_waits() -> None:
    gate = threading.Event()

    def work() -> None:
        gate.wait()

    behind = BackgroundQueue("test", limit_bytes=100)
    assert behind.submit(1000, work)
    assert not behind.submit(1, work)
    gate.set()
    behind.wait()
    assert behind.submit(1, work)
    behind.close()


def test_a_failing_task_does_not_stop_the_queue() -> None:
    behind = BackgroundQueue("test", limit_bytes=100)
    done: list[int] = []
    behind.submit(1, lambda: done.append(1 // 0))
    behind.submit(1, lambda: done.append(2))
    behind.wait()
    behind.close()
    assert done == [2]
