"""A stored blob read by several threads at once, and several read together."""

import ctypes
import weakref
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from blend.errors import UnreadableRecord
from blend.fingerprint import Fingerprint
from service.model.blob_source import BlobSource
from store.blob import Blob, Buffer, Terms
from store.codec.decode import read_group
from store.codec.encode import encode
from store.errors import MissReason
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader, read
from store.record import ADDRESS, NBYTES, LayerKV, PackedLayer, Record
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


def test_layers_of_several_records_are_read_by_one_call_or_each_says_why_not(tmp_path: Path) -> None:
    random = np.random.default_rng(2)

    def blob(name: int, spec: str, tokens: int, layers: int = 3) -> Blob:
        shape = (4, tokens, 256)  # so that a layer of some hundred tokens has a frame for itself
        each = [random.standard_normal(shape, dtype=np.float32) for _ in range(layers)]
        record = Record("float32", tuple(LayerKV(one, one + 1) for one in each))
        return encode(record, samples.key(name, codec=spec), terms=Terms(0, precomputed=True))

    long = blob(5, "q4", 900)  # a layer of it takes several frames
    alike = [blob(0, "q4", 250), blob(1, "q8", 150), long, blob(2, "k4v8@1-q2.9", 190)]
    small = [blob(4, "q4", 20), blob(6, "k4v8@1-q2.9", 9)]
    others = [blob(3, "lossless", 60), small[0]]  # no codes, other groups
    with LmdbStore(tmp_path) as store:
        store.put_all([*alike, *small, *others])

        def opened(blobs: list[Blob]) -> list[BlobSource]:
            readers = [store.open(each.head.key) for each in blobs]
            there = [each for each in readers if isinstance(each, BlobReader)]
            return [BlobSource(each, Fingerprint("", "", "", "", "", "", "")) for each in there]

        for blobs, calls in ((alike, [[0], [1], [2]]), (alike, [[0], [1, 2]]), (small, [[0, 1, 2]])):
            sources = opened(blobs)
            assert all(each.parts == (3 if blobs is alike else 1) for each in sources)
            for layers in calls:
                found = sources[0].frames(layers, sources, threads=1 + len(layers))
                assert found is not None and {*found.shapes} == {(4, 256, 4, 256)}
                assert [*found.tokens] == [each.head.tokens for each in blobs]
                for layer, rows in zip(layers, found.rows, strict=True):
                    stored = [each.layer(layer) for each in opened(blobs)]
                    parts = [part for each in stored if isinstance(each, PackedLayer) for part in each.framed]
                    assert len(parts) == sum(len(each.head.frames) for each in blobs) // sources[0].parts
                    for row, part in zip(rows, parts, strict=True):
                        there = ctypes.string_at(int(row[ADDRESS]), int(row[NBYTES]))
                        assert there == part.data.tobytes() and row[NBYTES:].tolist() == part.row[NBYTES:].tolist()
            assert [each.read for each in sources] == [each.nbytes for each in sources]
        sources = opened(small)
        assert sources[0].frames([1], sources) is None and sources[0].frames([0, 1], sources) is None
        for other in others:
            mixed = opened([alike[0], other])
            assert mixed[0].frames([1], mixed) is None and mixed[0].read < 1000
        sources = opened(alike)
        sources[1].layer(0)
        store.discard(alike[1].head.key)
        assert sources[0].frames([1], sources) is None
    with pytest.raises(UnreadableRecord, match="is closed"):
        sources[0].layer(1)
    assert sources[0].failure is MissReason.UNAVAILABLE
