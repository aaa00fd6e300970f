"""Deletions and evictions in object storage: what concurrent, late and killed operations leave behind."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import pytest

from store import scrub
from store.blob_store import Deletion, Put
from store.errors import MissReason, StoreDenied
from store.key import CacheKey, Scope
from store.objects import object_store
from tests.servers.faults import Answer, Fault
from tests.servers.faulty import FaultyProxy, Request
from tests.store.media import Medium, is_blob, read
from tests.store.samples import blob, key

SIZE = blob().nbytes
TWO_FIT = f"budget={SIZE * 5 // 2}"
ACME = Scope("acme")


@pytest.fixture(params=["s3", "folder"])
def medium(request: pytest.FixtureRequest) -> Medium:
    return request.getfixturevalue(request.param)


def chunk(name: object) -> Scope:
    return Scope("acme", f"chunk-{name}")


def fingerprint_of(key: CacheKey) -> Scope:
    return Scope(key.tenant, key.chunk, key.fingerprint)


def fill(name: object, epoch: int = 0) -> object_store.Blob:
    return blob(name, precomputed=False, epoch=epoch)


def after(act: Callable[[], object]) -> Fault:
    """Something else happens once the server has done its work and before its answer arrives."""

    def change(answer: Answer) -> Answer:
        act()
        return answer

    return Fault(change)


def writes_blob(request: Request) -> bool:
    return is_blob(request) and request.method == "PUT"


class TestMarkers:
    def test_a_fill_makes_room_for_the_next(self, medium: Medium) -> None:
        store = medium.open(TWO_FIT)
        assert [store.put(fill(name)) for name in "abc"] == [Put.STORED] * 3
        assert len(list(store.entries())) == 2
        assert medium.paths("fills") == medium.paths("blobs")

    def test_a_precomputed_blob_makes_no_room(self, medium: Medium) -> None:
        store = medium.open(TWO_FIT)
        assert [store.put(blob(name)) for name in "abc"] == [Put.STORED, Put.STORED, Put.OVER_BUDGET]
        assert medium.open(TWO_FIT).put(fill("c")) is Put.OVER_BUDGET
        assert [entry.key for entry in store.entries()] == [key("a"), key("b")]

    def test_a_tenants_budget_spares_the_others(self, medium: Medium) -> None:
        store = medium.open(f"tenant_budget={SIZE * 3 // 2}")
        store.put(blob("theirs", tenant="bree", precomputed=False))
        store.put(fill("a"))
        assert store.put(fill("b")) is Put.STORED
        assert [entry.key for entry in store.entries()] == [key("b"), key("theirs", tenant="bree")]

    def test_a_put_of_what_is_there_evicts_nobody(self, medium: Medium) -> None:
        store = medium.open(TWO_FIT)
        store.put(fill("a"))
        store.put(blob("b"))
        assert [store.put(blob("b")), store.put(fill("a"))] == [Put.PRESENT] * 2
        assert len(list(store.entries())) == 2

    def test_a_jobs_put_promotes_a_fill(self, medium: Medium) -> None:
        store = medium.open(TWO_FIT)
        store.put(fill("a"))
        assert store.put(blob("a")) is Put.PRESENT
        store.put(fill("b"))
        assert store.put(fill("c")) is Put.STORED
        assert [entry.key for entry in store.entries()] == [key("a"), key("c")]

    @pytest.mark.parametrize("save", ["pin", "promote"])
    def test_what_another_machine_saved_is_not_evicted_by_an_old_listing(self, medium: Medium, save: str) -> None:
        here, there = medium.open(TWO_FIT), medium.open()
        here.put(fill("a"))
        here.put(fill("b"))
        assert there.pin(chunk("a")) == 1 if save == "pin" else there.put(blob("a")) is Put.PRESENT
        assert here.put(fill("c")) is Put.STORED
        assert [entry.key for entry in here.entries()] == [key("a"), key("c")]

    @pytest.mark.parametrize(
        "scope", [ACME, chunk("a"), fingerprint_of(key("a"))], ids=["tenant", "chunk", "fingerprint"]
    )
    def test_a_pin_holds_until_it_is_taken_back(self, medium: Medium, scope: Scope) -> None:
        store = medium.open(TWO_FIT)
        store.put(fill("a"))
        assert [store.pin(scope), store.pin(scope)] == [1, 1]
        assert store.put(fill("b")) is Put.STORED
        assert store.replace(fill("a")) is Put.STORED
        assert store.put(fill("c")) is Put.STORED
        assert [entry.key for entry in store.entries()] == [key("a"), key("c")]
        assert store.unpin(scope) == store.unpin(scope) == (2 if scope == ACME else 1)
        store.put(fill("d"))
        store.put(fill("e"))
        assert key("a") not in [entry.key for entry in store.entries()]

    @pytest.mark.parametrize("scope", [ACME, fingerprint_of(key("a"))], ids=["tenant", "fingerprint"])
    def test_unpinning_makes_no_fill_of_what_was_precomputed_or_promoted(self, medium: Medium, scope: Scope) -> None:
        store = medium.open(TWO_FIT)
        store.put(fill("a"))
        store.put(blob("a"))
        store.pin(scope)
        store.unpin(scope)
        assert medium.paths("fills") == medium.paths("pins") == []

    def test_a_marker_that_a_killed_eviction_left_endangers_nobody(self, medium: Medium) -> None:
        medium.open().put(blob("a"))
        medium.open().put(fill("b"))
        medium.overwrite(f"fills/{key('a').text}", b"")
        medium.overwrite(f"fills/{key('gone').text}", b"")
        store = medium.open(f"budget={SIZE * 3 // 2}")
        assert store.put(blob("c")) is Put.OVER_BUDGET
        assert read(store, key("a")) == blob("a")


class TestDeletions:
    def test_concurrent_deletions_have_different_numbers(self, medium: Medium) -> None:
        stores = [medium.open() for _ in range(8)]
        together = Barrier(8)

        def delete(number: int) -> int:
            together.wait()
            return stores[number].delete(chunk(number))

        with ThreadPoolExecutor(8) as pool:
            numbers = list(pool.map(delete, range(8)))
        assert sorted(numbers) == list(range(1, 9))
        told = {deletion.epoch: deletion.scope for deletion in medium.open().deletions("acme")}
        assert [told[number] for number in numbers] == [chunk(number) for number in range(8)]

    @pytest.mark.parametrize(
        "fault", [Fault.status(503), Fault.reset(), Fault.drop_etag()], ids=["503", "reset", "etag"]
    )
    def test_a_deletion_whose_answer_is_lost_is_one_deletion(
        self, s3: Medium, proxy: FaultyProxy, fault: Fault
    ) -> None:
        proxy.script([fault.after_apply()], where=lambda request: "/deletions/" in request.path)
        assert s3.open().delete(ACME) == 1
        assert s3.open().deletions("acme") == [Deletion(1, ACME)]

    def test_a_deletion_between_the_write_and_the_check_wins(self, s3: Medium, proxy: FaultyProxy) -> None:
        store, other = s3.open(), s3.open()
        proxy.script([after(lambda: other.delete(chunk(1)))], where=writes_blob)
        assert store.put(blob(1)) is Put.DELETED
        proxy.script([after(lambda: other.delete(chunk(1)))], where=writes_blob)
        assert store.replace(blob(1, epoch=1)) is Put.DELETED
        assert s3.paths("blobs") == []

    def test_a_late_put_whose_answer_is_lost_is_dropped_too(self, s3: Medium, proxy: FaultyProxy) -> None:
        store = s3.open()
        store.delete(chunk(1))
        proxy.script([Fault.status(503).after_apply()], where=writes_blob)
        assert store.put(blob(1)) is Put.DELETED
        assert s3.paths("blobs") == []

    def test_deletions_beside_puts_leave_no_dead_blob(self, medium: Medium) -> None:
        store, other = medium.open(), medium.open()
        deleter = Thread(target=lambda: [other.delete(ACME) for _ in range(5)])
        deleter.start()
        while deleter.is_alive():
            for name in range(5):
                store.put(blob(name, epoch=store.epoch("acme")))
        deleter.join()
        last = store.epoch("acme")
        for entry in store.entries():
            found = read(store, entry.key)
            assert isinstance(found, object_store.Blob) and found.head.terms.epoch == last == 5

    def test_many_blobs_are_deleted_in_batches(self, medium: Medium, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(object_store, "_BATCH", 2)
        store = medium.open()
        for name in range(5):
            store.put(blob(name))
        store.delete(ACME)
        assert medium.paths("blobs") == []

    @pytest.mark.parametrize("what", ["delete", "burying"])
    def test_a_killed_deletion_is_finished_by_the_next_collection(
        self, s3: Medium, proxy: FaultyProxy, what: str
    ) -> None:
        store = s3.open()
        store.put(blob(1))
        proxy.always(Fault.status(403), where=lambda request: what in request.query or f"/{what}/" in request.path)
        with pytest.raises(StoreDenied):
            store.delete(chunk(1))
        proxy.clear()
        assert read(store, key(1)) == blob(1)
        scrub.collect(store)
        assert read(store, key(1)) is MissReason.ABSENT
        assert [s3.paths("burying"), store.deletions("acme")] == [[], [Deletion(1, chunk(1))]]

    def test_what_a_killed_put_left_is_collected(self, medium: Medium) -> None:
        store = medium.open()
        store.delete(chunk(1))
        medium.overwrite(f"blobs/{key(1).text}", bytes(blob(1)))
        medium.overwrite(f"blobs/{key(2).text}", bytes(blob(2)))
        scrub.collect(store)
        assert [entry.key for entry in store.entries()] == [key(2)]

    def test_a_put_replaces_what_a_deletion_has_not_come_to(self, medium: Medium) -> None:
        store = medium.open()
        store.put(blob(1))
        for folder in ("deletions", "burying"):
            medium.overwrite(f"{folder}/acme/{1:020d}", chunk(1).text.encode())
        assert store.put(blob(1, epoch=1)) is Put.STORED
        store.finish_deletes()
        assert read(store, key(1)) == blob(1, epoch=1)
