"""The contract of `store.blob_store` as tests. A store's test class inherits it, and says how to reach behind it."""

import threading
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from store.blob import Blob
from store.blob_store import BlobStore, Put
from store.codec.decode import decode
from store.errors import BadBlob, Miss, MissReason
from store.key import CacheKey, Scope
from store.reader import BlobReader, read
from store.scrub import collect, verify
from tests.store.samples import blob, key


def opened(store: BlobStore, wanted: CacheKey) -> BlobReader:
    """A reader of the blob that a store has."""
    reader = store.open(wanted)
    assert isinstance(reader, BlobReader), reader
    return reader


def stored(store: BlobStore, wanted: CacheKey) -> Blob:
    """The blob that a store has, every frame verified."""
    return opened(store, wanted).blob()


def why(store: BlobStore, wanted: CacheKey) -> MissReason | None:
    """Why a blob cannot be had; None where it can."""
    answer = store.open(wanted)
    return answer.reason if isinstance(answer, Miss) else None


class BlobStoreContract:
    """Inherit, and give `store` and the two ways behind its back."""

    @pytest.fixture
    def store(self) -> Iterator[BlobStore]:
        raise NotImplementedError

    @abstractmethod
    def raw(self, store: BlobStore, wanted: CacheKey) -> bytes | None:
        """The blob's bytes as the medium holds them, read without the store."""

    @abstractmethod
    def overwrite(self, store: BlobStore, wanted: CacheKey, data: bytes) -> None:
        """Put other bytes of the same length into the medium, without the store."""

    def test_what_was_put_is_read_back(self, store: BlobStore) -> None:
        wanted = blob(seed=1)
        assert store.put(wanted) is Put.STORED
        assert bytes(stored(store, key())) == bytes(wanted)
        assert self.raw(store, key()) == bytes(wanted)
        assert np.array_equal(keys_of(opened(store, key())), keys_of(read(wanted)))

    def test_what_was_not_put_is_absent(self, store: BlobStore) -> None:
        store.put(blob(1))
        assert why(store, key(2)) is MissReason.ABSENT
        assert why(store, key(1, tenant="other")) is MissReason.ABSENT
        assert why(store, key(1, codec="q8")) is MissReason.ABSENT

    def test_what_is_put_together_fares_as_if_put_alone(self, store: BlobStore) -> None:
        store.put(blob(0))
        store.delete(Scope("acme", key(1).chunk))
        puts = store.put_all([blob(0), blob(1), blob(2), blob(2), blob(3)])
        assert [put for put in puts if put is Put.STORED] == [Put.STORED] * 2
        assert (puts[0], puts[1], sorted(puts[2:4])) == (Put.PRESENT, Put.DELETED, [Put.PRESENT, Put.STORED])
        assert {entry.key for entry in store.entries()} == {key(0), key(2), key(3)}
        assert store.put_all([]) == []

    def test_a_frame_can_be_read_alone(self, store: BlobStore) -> None:
        wanted = blob(tokens=400, codec="lossless")
        store.put(wanted)
        last = len(wanted.frames) - 1
        with opened(store, key(codec="lossless")).frame(last) as data:
            assert bytes(data) == wanted.frames[last]

    def test_a_corrupt_head_is_a_miss(self, store: BlobStore) -> None:
        store.put(blob())
        self.overwrite(store, key(), flipped(bytes(blob()), 40))
        assert why(store, key()) is MissReason.CORRUPT

    def test_a_corrupt_frame_is_never_handed_out_and_can_be_replaced(self, store: BlobStore) -> None:
        store.put(blob())
        self.overwrite(store, key(), flipped(bytes(blob()), -1))
        with pytest.raises(BadBlob) as raised:
            stored(store, key())
        assert raised.value.reason is MissReason.CORRUPT
        store.replace(blob())
        assert bytes(stored(store, key())) == bytes(blob())

    def test_a_blob_under_somebody_elses_key_is_a_miss(self, store: BlobStore) -> None:
        store.put(blob(1))
        store.put(blob(2))
        self.overwrite(store, key(1), bytes(blob(2)))
        assert why(store, key(1)) is MissReason.FOREIGN
        assert why(store, key(2)) is None

    def test_a_blob_that_leans_on_a_fitted_table_is_a_miss_that_names_its_codec(self, store: BlobStore) -> None:
        old = Blob.parse((Path(__file__).parent / "golden/v1-table.blob").read_bytes())
        assert store.put(old) is Put.STORED
        found = store.open(old.head.key)
        assert isinstance(found, Miss)
        assert found.reason is MissReason.NEWER_FORMAT and repr(old.head.codec) in found.detail
        *_, (_, report) = verify(store)
        assert {(row.key, row.reason) for row in report.bad} == {(old.head.key, MissReason.NEWER_FORMAT)}
        assert self.raw(store, old.head.key) == bytes(old)

    def test_delete_takes_its_scope_and_nothing_else(self, store: BlobStore) -> None:
        chunks = ["1", "10", "1/0", "2"]
        blobs = {(t, c, s): blob(c, tenant=t, codec=s) for t in ("acme", "acme2") for c in chunks for s in ("q4", "q8")}
        for each in blobs.values():
            store.put(each)
        store.delete(Scope("acme", "chunk-1"))
        store.delete(Scope("acme", "chunk-2", "fp"))
        gone = {("acme", chunk, codec) for chunk in ("1", "2") for codec in ("q4", "q8")}
        assert {name for name, each in blobs.items() if why(store, each.head.key)} == gone
        assert {name for name, each in blobs.items() if self.raw(store, each.head.key) is None} == gone

    def test_several_deletes_are_as_one_after_the_other(self, store: BlobStore) -> None:
        for number in range(1, 6):
            store.put(blob(number))
        epoch = store.epoch("acme")
        scopes = [
            Scope("acme", "chunk-1"),
            Scope("acme", "chunk-2", "fp"),
            Scope("acme", "chunk-4"),
            Scope("acme", "no"),
        ]
        assert store.delete_all(scopes) == [epoch + each for each in range(1, 5)]
        assert [each.scope for each in store.deletions("acme", after=epoch)] == scopes
        assert {entry.key.chunk for entry in store.entries(Scope("acme"))} == {"chunk-3", "chunk-5"}
        assert store.put(blob(4, epoch=epoch)) is Put.DELETED

    def test_a_put_begun_before_a_delete_is_dropped(self, store: BlobStore) -> None:
        before = store.epoch("acme")
        assert store.delete(Scope("acme", "chunk-0")) == store.epoch("acme") > before
        assert store.put(blob(epoch=before)) is Put.DELETED
        assert store.replace(blob(epoch=before)) is Put.DELETED
        assert self.raw(store, key()) is None
        assert store.put(blob(1, epoch=before)) is Put.STORED
        assert store.put(blob(epoch=store.epoch("acme"))) is Put.STORED

    def test_a_delete_under_a_given_number_is_logged_under_it(self, store: BlobStore) -> None:
        assert store.delete(Scope("acme", "chunk-1"), epoch=7) == 7
        assert store.put(blob(1, epoch=6)) is Put.DELETED
        assert store.delete(Scope("acme", "chunk-2")) == 8
        assert [row.epoch for row in store.deletions("acme")] == [7, 8]
        assert [row.scope for row in store.deletions("acme", after=7)] == [Scope("acme", "chunk-2")]

    def test_trimming_keeps_the_newest_deletion(self, store: BlobStore) -> None:
        for name in range(3):
            store.delete(Scope("acme", f"chunk-{name}"))
        assert [store.trim("acme", before) for before in (0.0, 9e9, 9e9)] == [0, 2, 0]
        assert [row.epoch for row in store.deletions("acme")] == [3]
        assert store.delete(Scope("acme", "chunk-9")) == 4

    def test_prefetch_of_anything_is_safe(self, store: BlobStore) -> None:
        store.put(blob(1))
        store.prefetch([key(1), key(2)])
        store.flush()
        assert bytes(stored(store, key(1))) == bytes(blob(1))

    def test_discard_forgets_without_an_epoch(self, store: BlobStore) -> None:
        store.put(blob())
        assert store.discard(key())
        assert not store.discard(key())
        assert self.raw(store, key()) is None
        assert store.put(blob()) is Put.STORED

    def test_entries_are_what_is_there_in_order(self, store: BlobStore) -> None:
        names = ["b", "a", "c", "A", "a/b"]
        for name in names:
            store.put(blob(name))
        assert [row.key for row in store.entries()] == sorted((key(name) for name in names), key=lambda k: k.text)
        assert [row.key for row in store.entries(Scope("acme", "chunk-a"))] == [key("a")]
        assert [row.key for row in store.entries(Scope("acme", "chunk-a", "fp"))] == [key("a")]
        assert list(store.entries(Scope("nobody"))) == []
        assert store.tenants() == ["acme"]
        assert store.usage()[-1].blobs == len(names)

    def test_pins_count_blobs_and_can_be_taken_back(self, store: BlobStore) -> None:
        store.put(blob(1, precomputed=False))
        store.put(blob(2))
        for _ in range(2):
            assert store.pin(Scope("acme")) == 2
        assert store.unpin(Scope("acme", "chunk-1")) == 1
        assert store.pin(Scope("acme", "chunk-3")) == 0

    def test_verify_finds_the_bad_and_puts_them_away(self, store: BlobStore) -> None:
        for name in range(4):
            store.put(blob(name))
        self.overwrite(store, key(1), flipped(bytes(blob(1)), -1))
        self.overwrite(store, key(2), flipped(bytes(blob(2)), 40))
        *_, (checked, report) = verify(store)
        assert checked == 4
        assert {row.key for row in report.bad} == {key(1), key(2)}
        assert [row.key for row in store.entries()] == [key(0), key(3)]
        assert store.put(blob(1)) is Put.STORED
        assert store.forget_quarantined(before=9e9) == self.quarantined

    quarantined = 2  # blobs that the medium keeps for inspection

    def test_deleting_a_document_takes_its_quarantined_blobs_too(self, store: BlobStore) -> None:
        store.put(blob())
        store.quarantine(key())
        store.delete(Scope("acme", "chunk-0"))
        assert store.forget_quarantined(before=9e9) == 0

    def test_collection_takes_the_fingerprint_that_is_named_and_nothing_else(self, store: BlobStore) -> None:
        store.put(blob(1))
        assert collect(store).fingerprint == collect(store, "another").fingerprint == 0
        assert [row.key for row in store.entries()] == [key(1)]
        assert collect(store, "fp").fingerprint == 1
        assert list(store.entries()) == []

    def test_eight_threads_see_whole_blobs_only(self, store: BlobStore) -> None:
        blobs = {name: [blob(name, seed=seed) for seed in (1, 2)] for name in range(4)}
        wrong: list[str] = []

        def work(number: int) -> None:
            random = np.random.default_rng(number)
            for _ in range(25):
                name = int(random.integers(4))
                action = random.integers(4)
                if action == 0:
                    store.put(blobs[name][0])
                elif action == 1:
                    store.replace(blobs[name][1])
                elif action == 2:
                    store.discard(key(name))
                else:
                    look(name)

        def look(name: int) -> None:
            answer = store.open(key(name))
            if isinstance(answer, BlobReader):
                try:
                    found = bytes(answer.blob())
                except BadBlob:  # replaced or discarded while it was read
                    return
                if found not in (bytes(blobs[name][0]), bytes(blobs[name][1])):
                    wrong.append(f"blob {name}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        *_, (_, report) = [(0, None), *verify(store)]
        assert report is None or report.bad == []

    def test_closing_twice_is_safe(self, store: BlobStore) -> None:
        store.put(blob())
        store.close()
        store.close()


def flipped(data: bytes, position: int) -> bytes:
    """The bytes with one of them changed."""
    changed = bytearray(data)
    changed[position] ^= 0x10
    return bytes(changed)


def keys_of(reader: BlobReader) -> np.ndarray:
    """The keys of the first layer, decoded."""
    layer = decode(reader).layers[0]
    assert layer is not None
    return layer.keys
