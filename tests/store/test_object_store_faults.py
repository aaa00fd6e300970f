"""Every operation of a store over S3 under every fault: the right result, a miss, or a typed error; nothing else."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from store.blob_store import BlobStore, Put
from store.errors import BadBlob, Miss, MissReason, StoreDenied, StoreUnavailable
from store.key import Scope
from store.reader import BlobReader
from store.url import open_store
from tests.servers.faults import Fault
from tests.servers.faulty import FaultyProxy
from tests.servers.s3 import S3Server
from tests.store.contract import opened
from tests.store.media import Medium, read, s3_medium, sized
from tests.store.samples import blob, key

PATIENCE_S = 0.25
WATCHDOG_S = 60.0  # a hang fails the test instead of the run
ACME, GONE = Scope("acme"), Scope("acme", "chunk-gone")
LARGE = sized([400_000] * 4)  # two ranges: its last frame is not in the first
PRESENT = [blob("a", precomputed=False), LARGE]


@pytest.fixture
def medium(server: S3Server, proxy: FaultyProxy) -> Iterator[Medium]:
    """A place with a fill, a large blob, and one deletion in its log."""
    with s3_medium(server, proxy, PATIENCE_S) as medium:
        store = medium.open()
        store.delete(GONE)
        for present in PRESENT:
            store.put(present)
        yield medium
        proxy.clear()


@dataclass(frozen=True, slots=True)
class Operation:
    """What a caller does, and whether the outcome and what the medium then holds are right."""

    begin: Callable[[BlobStore], Callable[[], object]]
    is_right: Callable[[object, BlobStore], bool]


def ask(act: Callable[[BlobStore], object]) -> Callable[[BlobStore], Callable[[], object]]:
    return lambda store: lambda: act(store)


def last_frame(store: BlobStore) -> Callable[[], object]:
    reader = opened(store, LARGE.head.key)

    def frame() -> bytes:
        with reader.frame(3) as data:
            return bytes(data)

    return frame


def head_of(outcome: object) -> object:
    return outcome.head if isinstance(outcome, BlobReader) else None


NEW = blob("new", precomputed=False, epoch=1)
OTHER = blob("a", seed=7)
OPERATIONS = {
    "open": Operation(ask(lambda s: s.open(key("a"))), lambda found, _: head_of(found) == PRESENT[0].head),
    "frame": Operation(last_frame, lambda found, _: found == LARGE.frames[3]),
    "put": Operation(
        ask(lambda s: s.put(NEW)), lambda put, s: put in (Put.STORED, Put.PRESENT) and read(s, key("new")) == NEW
    ),
    "replace": Operation(
        ask(lambda s: s.replace(OTHER)), lambda put, s: put is Put.STORED and read(s, key("a")) == OTHER
    ),
    "delete": Operation(
        ask(lambda s: s.delete(ACME)), lambda number, s: s.epoch("acme") == number and list(s.entries(ACME)) == []
    ),
    "entries": Operation(
        ask(lambda s: [entry.key for entry in s.entries()]), lambda keys, _: keys == [b.head.key for b in PRESENT]
    ),
    "pin": Operation(ask(lambda s: s.pin(ACME)), lambda pinned, _: pinned == len(PRESENT)),
    "epoch": Operation(ask(lambda s: s.epoch("acme")), lambda epoch, _: epoch == 1),
}


def in_the_middle(fault: Callable[[int], Fault]) -> Fault:
    """Bodies differ in length: this strikes each of them half-way."""
    return Fault(lambda answer: fault(len(answer.body) // 2).change(answer))


PASSING = {
    "503": Fault.status(503),
    "429": Fault.status(429),
    "hang": Fault.hang(),
    "reset": Fault.reset(),
    "reset after it happened": Fault.reset().after_apply(),
    "503 after it happened": Fault.status(503).after_apply(),
    "cut": in_the_middle(Fault.cut_body),
    "stall": in_the_middle(Fault.stall_body),
}
LASTING = {
    "503": (Fault.status(503), StoreUnavailable),
    "hang": (Fault.hang(), StoreUnavailable),
    "reset": (Fault.reset(), StoreUnavailable),
    "reset after it happened": (Fault.reset().after_apply(), StoreUnavailable),
    "redirect": (Fault.status(301), StoreUnavailable),
    "no bucket": (Fault.status(404, "NoSuchBucket"), StoreUnavailable),
    "401": (Fault.status(401), StoreDenied),
    "403": (Fault.status(403), StoreDenied),
}
DAMAGING = {
    "404": Fault.status(404),
    "cut": in_the_middle(Fault.cut_body),
    "cut early": Fault.cut_body(100),
    "stall": Fault.stall_body(100),
    "flipped byte": in_the_middle(Fault.flip_byte),
    "short": in_the_middle(Fault.shorten_body),
    "empty": Fault.shorten_body(0),
    "no etag": Fault.drop_etag(),
}


def outcome(act: Callable[[], object]) -> object:
    """What it returned, or the exception that it raised, whatever its kind."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as error:  # a panic of the client is none of Exception
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WATCHDOG_S)
    assert not thread.is_alive(), "it hangs"
    return found[0]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
class TestFaults:
    @pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
    def test_what_passes_is_not_noticed(
        self, medium: Medium, proxy: FaultyProxy, operation: Operation, fault: Fault
    ) -> None:
        act = operation.begin(medium.open())
        proxy.script([fault])
        found = outcome(act)
        assert operation.is_right(found, medium.open()), found

    @pytest.mark.parametrize(("fault", "kind"), LASTING.values(), ids=LASTING.keys())
    def test_what_lasts_is_a_typed_error_that_names_the_store(
        self, medium: Medium, proxy: FaultyProxy, operation: Operation, fault: Fault, kind: type[Exception]
    ) -> None:
        act = operation.begin(medium.open())
        proxy.clear()
        proxy.always(fault)
        error = outcome(act)
        assert isinstance(error, kind), error
        assert medium.label in str(error)
        assert len(proxy.requests) <= 4

    @pytest.mark.parametrize("fault", DAMAGING.values(), ids=DAMAGING.keys())
    def test_what_damages_every_answer_is_never_a_wrong_value(
        self, medium: Medium, proxy: FaultyProxy, operation: Operation, fault: Fault
    ) -> None:
        act = operation.begin(medium.open())
        proxy.always(fault)
        found = outcome(act)
        proxy.clear()
        if isinstance(found, Miss | BadBlob):
            assert found.reason in (MissReason.CORRUPT, MissReason.ABSENT)
        elif isinstance(found, StoreUnavailable):
            assert medium.label in str(found)
        else:
            assert operation.is_right(found, medium.open()), found


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "frame"])
def test_a_bucket_that_is_not_there_is_named_at_once(server: S3Server, operation: str) -> None:
    with open_store(server.url("any", bucket="kvweave-absent")) as store:
        error = outcome(OPERATIONS[operation].begin(store))
    assert isinstance(error, StoreUnavailable | StoreDenied)
    assert "s3://kvweave-absent" in str(error)
