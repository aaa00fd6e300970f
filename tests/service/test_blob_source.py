"""A stored blob read by several threads at once."""

import weakref
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from blend.errors import UnreadableRecord
from blend.model.fingerprint import Fingerprint
from service.model.blob_source import BlobSource
from store.blob import Buffer, Terms
from store.codec.decode import read_group
from store.codec.encode import encode
from store.errors import MissReason
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader, read
from store.record import LayerKV, PackedLayer, Record
from tests.store import samples

LAYERS, SHAPE = 12, (4, 300, 64)


def same(one: LayerKV | PackedLayer, other: LayerKV | PackedLayer) -> bool:
    assert isinstance(one, PackedLayer) and isinstance(other, PackedLayer)
    return all(
        np.array_equal(a.keys.codes, b.keys.codes) and np.array_equal(a.values.codes, b.values.codes)
        for a, b in zip(one.tiles, other.tiles, strict=True)
    )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_that_take_layers_in_order_read_each_frame_once(threads: int) -> None:
    random = np.random.default_rng(1)
    layers = [random.standard_normal(SHAPE, dtype=np.float32) for _ in range(LAYERS)]
    record = Record("float32", tuple(LayerKV(each, each + 1) for each in layers))
    blob = encode(record, samples.key(codec="q4"), terms=Terms(0, precomputed=True))
    assert 1 < len(blob.head.groups) < LAYERS
    fetched = Counter[int]()

    @contextmanager
    def fetch(number: int) -> Generator[Buffer]:
        fetched[number] += 1
        yield blob.frames[number]

    reader = BlobReader(blob.head, blob.head_bytes, fetch=fetch, source="ram")
    source = BlobSource(reader, Fingerprint("", "", "", "", "", "", ""))
    with ThreadPoolExecutor(threads) as pool:
        found = [*pool.map(source.layer, range(LAYERS))]

    wanted = [layer for group in range(len(blob.head.groups)) for layer in read_group(read(blob), group)]
    assert all(other and same(one, other) for one, other in zip(found, wanted, strict=True))
    assert set(fetched.values()) == {1}
    assert source.read == source.nbytes and source.parts == len(blob.head.groups)


def test_a_record_that_was_let_go_of_holds_no_memory() -> None:
    blob = samples.blob()
    reader = read(blob)
    held, source = weakref.ref(reader), BlobSource(reader, Fingerprint("", "", "", "", "", "", ""))
    source.layer(0)
    del reader
    source.let_go()
    assert held() is None
    source.begin()  # comes to nothing
    assert (source.tokens, source.tier) == (blob.head.tokens, "ram")


def test_where_nothing_can_be_read_together_each_layer_says_why(tmp_path: Path) -> None:
    with LmdbStore(tmp_path) as store:
        store.put(samples.blob())
        reader = store.open(samples.key())
        assert isinstance(reader, BlobReader)
        source = BlobSource(reader, Fingerprint("", "", "", "", "", "", ""))
        with source.together():
            assert source.layer(0).shapes and not source.is_near
        source = BlobSource(reader, Fingerprint("", "", "", "", "", "", ""))
    with source.together(), pytest.raises(UnreadableRecord, match="is closed"):
        source.layer(0)
    assert source.failure is MissReason.UNAVAILABLE
