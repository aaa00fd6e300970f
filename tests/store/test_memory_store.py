"""A tier of memory above others: layers that are ready for use, what they take, and the frames that are read below."""

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from weakref import finalize

import numpy as np
import pytest

from store.blob import Blob, Terms
from store.blob_store import Put
from store.codec.decode import decode
from store.codec.encode import encode
from store.codec.unpacked import Memory, allocate
from store.errors import BadBlob, MissReason
from store.key import Scope
from store.reader import read
from store.tiers.budget import TierBudget
from store.tiers.memory_store import MemoryCache, MemoryStore
from store.url import open_store
from tests.store.contract import flipped, opened, stored
from tests.store.media import sized
from tests.store.samples import blob, key, plain_bytes, record

GOLDEN = sorted(Path(__file__).parent.glob("golden/*.blob"))
UNREADABLE = {"v1-table"}
ABOVE = TierBudget(lowest=False)


@pytest.mark.parametrize("path", [path for path in GOLDEN if path.stem not in UNREADABLE], ids=lambda path: path.stem)
def test_blobs_of_every_form_are_the_same_unpacked(path: Path) -> None:
    wanted, cache = Blob.parse(path.read_bytes()), MemoryCache(ABOVE)
    assert cache.put(wanted) is Put.STORED
    found, below = opened(cache, wanted.head.key), read(wanted)
    assert plain_bytes(found) == plain_bytes(below) and plain_bytes(found)
    memory = found.unpacked and found.unpacked.memory
    assert isinstance(memory, np.ndarray) and not memory.flags.writeable
    assert decode(found).ids_digest == decode(below).ids_digest


def test_a_second_hit_is_ready_and_asks_nobody_below(tmp_path: Path) -> None:
    with open_store(f"tiered:mem://|file://{tmp_path}/low") as store:
        store.put(blob())
        wanted = plain_bytes(read(stored(store, key())))
        store.flush()
        (tmp_path / "low/blobs" / key().text).unlink()
        reader = opened(store, key())
        assert reader.unpacked and reader.source == "ram"
        assert plain_bytes(reader) == wanted
        with pytest.raises(BadBlob, match="read these below"):
            reader.blob()


@pytest.mark.parametrize("codec", ["q4", "k4v2", "lossless"])
def test_a_budget_counts_what_layers_take(codec: str) -> None:
    blobs = [encode(record(n, tokens=30 + n), key(n, codec=codec), terms=Terms(0, precomputed=True)) for n in range(60)]
    for_once = MemoryCache(ABOVE)  # layouts of frames are remembered, once for all
    for each in blobs:
        for_once.put(each)
    del for_once
    cache = MemoryCache(ABOVE)
    gc.collect()
    tracemalloc.start()
    for each in blobs:
        cache.put(each)
    gc.collect()
    held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/store/*")])
    tracemalloc.stop()
    taken = sum(trace.size for trace in held.traces)
    assert taken * 0.9 < cache.usage()[0].nbytes < taken * 1.25


def evicted_for_a_while(store: MemoryStore, each: Blob) -> None:
    store.put(blob("larger", tokens=3200, precomputed=False))
    assert [row.key for row in store.entries()] == [key("larger")]
    store.put(each)


@pytest.mark.parametrize("change", [MemoryStore.replace, evicted_for_a_while])
def test_uses_of_a_blob_count_after_it_was_stored_anew(change: Callable[[MemoryStore, Blob], object]) -> None:
    often, lately = (blob(name, tokens=500, precomputed=False) for name in ("often", "lately"))
    large = blob("large", tokens=3000, precomputed=False)
    store = MemoryStore(TierBudget(max(often.nbytes, lately.nbytes) + large.nbytes))
    store.put(often)
    for _ in range(12):
        store.open(key("often"))
    change(store, often)
    store.put(lately)
    store.open(key("lately"))
    store.put(large)
    assert [row.key for row in store.entries()] == [key("large"), key("often")]


def test_memory_comes_from_whoever_opens_the_store_and_goes_back(tmp_path: Path) -> None:
    lent: list[int] = []

    def lend(nbytes: int) -> Memory:
        memory = allocate(nbytes)
        lent.append(memory.data.nbytes)
        finalize(memory.data, lent.remove, memory.data.nbytes)
        return memory

    with open_store(f"tiered:mem://?budget=25kB|file://{tmp_path}/low", lend) as store:
        for name in range(8):
            store.put(blob(name, tokens=40 + name))
            stored(store, key(name))
            store.flush()
        assert 0 < sum(lent) <= 25_000 and len(lent) < 8
        store.delete(Scope("acme"))
        gc.collect()
        assert lent == []


def test_what_is_no_record_of_its_head_is_not_kept(tmp_path: Path) -> None:
    """Every digest is right, and yet the frames are noise."""
    cache = MemoryCache(ABOVE)
    with pytest.raises(BadBlob):
        cache.put(sized([100, 200]))
    assert list(cache.entries()) == []
    with open_store(f"tiered:mem://|file://{tmp_path}/low") as store:
        store.put(sized([100, 200]))
        assert bytes(stored(store, key("sized"))) == bytes(sized([100, 200]))
        store.flush()
        assert [len(list(tier.entries())) for tier in store.tiers] == [0, 1]


def test_a_frame_that_is_bad_below_never_comes_up(tmp_path: Path) -> None:
    with open_store(f"tiered:mem://|file://{tmp_path}/low") as store:
        store.put(blob())
        path = tmp_path / "low/blobs" / key().text
        path.write_bytes(flipped(path.read_bytes(), -1))
        for _ in range(2):
            reader = opened(store, key())
            assert reader.unpacked is None
            with pytest.raises(BadBlob) as raised:
                decode(reader)
            assert raised.value.reason is MissReason.CORRUPT
            store.flush()
