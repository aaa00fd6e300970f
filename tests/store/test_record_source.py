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

from store.blob import Blob, Buffer, Terms
from store.blob_store import BlobStore
from store.codec.decode import read_rows
from store.codec.encode import encode
from store.errors import MissReason, StoreError
from store.fingerprint import Fingerprint
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader, read
from store.record import LayerKV, Record
from store.record_source import BlobSource
from store.rows import ADDRESS, NBYTES, TOKENS, StoredRows
from store.tiers.budget import TierBudget
from store.tiers.memory_store import MemoryCache
from tests.store import samples

LAYERS, SHAPE = 12, (4, 300, 64)


def told(stored: StoredRows) -> list[list[tuple[bytes, list[int]]]]:
    """What each layer's parts have, by the bytes where they lie."""
    every = [[row for row in rows if row[TOKENS]] for rows in stored.rows]
    return [
        [(ctypes.string_at(int(row[ADDRESS]), int(row[NBYTES])), row[NBYTES:].tolist()) for row in some]
        for some in every
    ]


def test_a_record_is_read_once_whatever_is_asked_for_together() -> None:
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
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda group: source.rows(group, [source]), source.groups)]

    whole = told(read_rows([read(blob)], range(LAYERS)))
    assert [layer for rows in found for layer in told(rows)] == whole
    assert set(fetched.values()) == {1}
    assert source.read == source.nbytes and source.parts == len(blob.head.groups)
    [some] = told(source.rows(range(3, 4), [source]))
    assert some == whole[3]


def test_a_record_that_was_let_go_of_holds_no_memory() -> None:
    blob = samples.blob()
    reader = read(blob)
    held, source = weakref.ref(reader), BlobSource(reader, Fingerprint("", "", "", "", "", "", ""))
    source.rows(range(1), [source])
    del reader
    source.let_go()
    assert held() is None
    source.begin()  # comes to nothing
    assert (source.tokens, source.tier) == (blob.head.tokens, "ram")


def test_layers_of_several_records_are_read_by_one_call(tmp_path: Path) -> None:
    """Whatever their codecs, and however many frames each has for a layer; or nothing is, and one alone says why."""
    random = np.random.default_rng(2)

    def blob(name: int, spec: str, tokens: int) -> Blob:
        shape = (4, tokens, 256)  # so that a layer of some hundred tokens has a frame for itself
        each = [random.standard_normal(shape, dtype=np.float32) for _ in range(3)]
        record = Record("float32", tuple(LayerKV(one, one + 1) for one in each))
        return encode(record, samples.key(name, codec=spec), terms=Terms(0, precomputed=True))

    long = blob(5, "q4", 900)  # a layer of it takes several frames
    alike = [blob(0, "q4", 250), blob(1, "q8", 150), long, blob(2, "k4v8@1-q2.9", 190)]
    small = [blob(4, "q4", 20), blob(6, "k4v8@1-q2.9", 9)]
    with LmdbStore(tmp_path) as store, MemoryCache(TierBudget(lowest=False)) as near:
        store.put_all([*alike, *small, blob(3, "lossless", 60)])
        near.put(small[1])

        def opened(blobs: list[Blob], at: BlobStore = store) -> list[BlobSource]:
            readers = [at.open(each.head.key) for each in blobs]
            there = [each for each in readers if isinstance(each, BlobReader)]
            return [BlobSource(each, Fingerprint("", "", "", "", "", "", "")) for each in there]

        for blobs, calls in (
            (alike, [range(1), range(1, 2), range(2, 3)]),
            (alike, [range(1), range(1, 3)]),
            (small, [range(3)]),
        ):
            sources = opened(blobs)
            assert all(each.parts == (3 if blobs is alike else 1) for each in sources)
            for layers in calls:
                found = told(sources[0].rows(layers, sources, threads=1 + len(layers)))
                alone = [told(each.rows(layers, [each])) for each in opened(blobs)]
                assert found == [[part for rows in of_layer for part in rows] for of_layer in zip(*alone, strict=True)]
            assert [each.read for each in sources] == [each.nbytes for each in sources]
        mixed = [*opened(small[:1]), *opened(small[1:], near)]
        assert [len(rows) for rows in told(mixed[0].rows(range(1, 3), mixed))] == [2, 2]
        assert mixed[1].read < 1000  # nothing but its head
        sources = opened(alike)
        store.discard(alike[1].head.key)
        with pytest.raises(StoreError):
            sources[0].rows(range(1), sources)
        assert [each.failure for each in sources] == [None] * 4
        with pytest.raises(StoreError):
            sources[1].rows(range(1), sources[1:2])
        assert sources[1].failure is MissReason.ABSENT
    with pytest.raises(StoreError, match="is closed"):
        sources[0].rows(range(1), sources[:1])
    assert sources[0].failure is MissReason.UNAVAILABLE
