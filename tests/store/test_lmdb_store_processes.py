"""Several processes on one LMDB store: what they see of each other, and two at random work that agree in the end."""

import multiprocessing
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from store.blob import Blob
from store.blob_store import Put
from store.errors import BadBlob, StoreBusy
from store.key import Scope
from store.lmdb.lmdb_store import LmdbStore
from store.lmdb.rows import Rows
from store.reader import BlobReader
from store.scrub import verify
from store.tiers.budget import TierBudget
from tests.store.crash_writer import TENANT, bulk
from tests.store.samples import key
from tests.store.test_lmdb_store import body_bytes, listed, lmdb_of, opened, totals_match

ROOT = Path(__file__).resolve().parents[2]
PRELUDE = """
import sys
from pathlib import Path
from store.tiers.budget import TierBudget
from store.lmdb.lmdb_store import LmdbStore
from store.reader import BlobReader
from tests.store.crash_writer import bulk
from tests.store.samples import key
path = Path(sys.argv[1])
def wait(): print("here", flush=True); sys.stdin.readline()
"""

BUDGET = 4_000_000
SHARED, OWN = 12, 10
VARIANTS = 3
KEPT = 4  # of the own ones, those that are stored as precomputed


def variant(name: str, seed: int, *, epoch: int = 0) -> Blob:
    """One of the equivalent blobs of a name."""
    size = random.Random(name).randrange(20_000, 120_000)
    precomputed = name.startswith("own") and int(name.rpartition("-")[2]) < KEPT
    return bulk(name, size, seed=seed, epoch=epoch, precomputed=precomputed)


@dataclass(slots=True)
class Worker:
    """Shared names belong to everybody. An own one is changed by nobody else, though a fill may be evicted."""

    number: int
    store: LmdbStore
    chance: random.Random
    there: dict[str, int] = field(default_factory=dict[str, int])  # own names that must be there, and which variant
    gone: set[str] = field(default_factory=set[str])
    pinned: set[str] = field(default_factory=set[str])

    def step(self) -> None:
        """Do something random, then look at something random."""
        works = (self.put, self.replace, self.look, self.discard, self.delete, self.pin, self.unpin)
        self.chance.choices(works, (30, 10, 40, 5, 8, 5, 5))[0](self.some_name())
        assert self.store.environment.file_bytes() <= BUDGET

    def some_name(self) -> str:
        if self.chance.random() < 0.5:
            return f"shared-{self.chance.randrange(SHARED)}"
        return f"own-{self.number}-{self.chance.randrange(OWN)}"

    def put(self, name: str) -> None:
        seed = self.chance.randrange(VARIANTS)
        outcome = self.store.put(variant(name, seed, epoch=self.store.epoch(TENANT)))
        if outcome is Put.PRESENT:
            assert name not in self.gone
        if outcome is Put.STORED:
            assert name not in self.there, "what is there was stored again"
            self.know(name, seed)
        assert outcome is not Put.DELETED or name.startswith("shared"), "nobody else deletes own names"

    def replace(self, name: str) -> None:
        seed = self.chance.randrange(VARIANTS)
        if self.store.replace(variant(name, seed, epoch=self.store.epoch(TENANT))) is Put.STORED:
            self.know(name, seed)

    def know(self, name: str, seed: int) -> None:
        self.gone.discard(name)
        is_safe = variant(name, seed).head.terms.precomputed or name in self.pinned
        if name.startswith("own") and is_safe:
            self.there[name] = seed

    def look(self, name: str) -> None:
        reader = self.store.open(key(name))
        if not isinstance(reader, BlobReader):
            assert name not in self.there, f"{name} is lost: {reader}"
            return
        assert name not in self.gone, f"{name} came back"
        try:
            frames = reader.blob().frames
        except BadBlob:  # taken away or replaced by the other one meanwhile
            assert name not in self.there
            return
        seeds = [self.there[name]] if name in self.there else range(VARIANTS)
        assert frames in [variant(name, seed).frames for seed in seeds]

    def discard(self, name: str) -> None:
        there = self.store.discard(key(name))
        assert there or name not in self.there
        assert not there or name not in self.gone
        self.forget(name)

    def delete(self, name: str) -> None:
        before = self.store.epoch(TENANT)
        assert self.store.delete(Scope(TENANT, key(name).chunk)) > before
        assert self.store.put(variant(name, 0, epoch=before)) is Put.DELETED
        self.forget(name)

    def forget(self, name: str) -> None:
        if name.startswith("own"):
            self.gone.add(name)
            self.there.pop(name, None)
            self.pinned.discard(name)

    def pin(self, name: str) -> None:
        if not name.startswith("own") or len(self.pinned) > 3:
            return
        found = self.store.pin(Scope(TENANT, key(name).chunk))
        reader = self.store.open(key(name))
        assert found == isinstance(reader, BlobReader)
        if isinstance(reader, BlobReader):
            frames = reader.blob().frames
            self.there[name] = next(seed for seed in range(VARIANTS) if variant(name, seed).frames == frames)
            self.pinned.add(name)

    def unpin(self, name: str) -> None:
        if name in self.pinned:
            assert self.store.unpin(Scope(TENANT, key(name).chunk)) == 1
            self.pinned.discard(name)
            if not variant(name, 0).head.terms.precomputed:
                self.there.pop(name, None)


def work(path: Path, number: int, *, steps: int, barrier: Barrier, answer: Connection) -> None:
    """One of the two processes: some steps, then what it sees once both are done."""
    with LmdbStore(path, TierBudget(BUDGET)) as store:
        worker = Worker(number, store, random.Random(f"{number} {steps}"))
        barrier.wait(60)
        for _ in range(steps):
            worker.step()
        barrier.wait(300)
        for name in (*worker.there, *worker.gone):
            worker.look(name)
        answer.send(([entry.key.text for entry in store.entries()], store.usage()[0].blobs, worker.there))


@pytest.mark.parametrize("steps", [300, pytest.param(6000, marks=pytest.mark.long)])
def test_two_processes_at_work_agree(tmp_path: Path, steps: int) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    processes = [
        context.Process(
            target=work, args=(tmp_path, number), kwargs={"steps": steps, "barrier": barrier, "answer": end}
        )
        for number, (_, end) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, end in pipes:
        end.close()
    seen = [pipe.recv() for pipe, _ in pipes if pipe.poll(600)]  # an early end of one is an EOFError here
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    (listed, blobs, first), (listed_too, blobs_too, second) = seen
    assert listed == listed_too and blobs == blobs_too == len(listed)
    for pipe, _ in pipes:
        pipe.close()
    check_after_the_end(tmp_path, listed, own=first | second)


def check_after_the_end(path: Path, listed: list[str], *, own: dict[str, int]) -> None:
    with LmdbStore(path, TierBudget(BUDGET)) as store:
        assert [entry.key.text for entry in store.entries()] == listed
        assert {key(name).text for name in own} <= set(listed)
        reports = [report for _, report in verify(store)]
        assert (reports[-1].checked, reports[-1].bad) == (len(listed), [])
        rows = Rows(store.environment)
        with store.environment.read() as txn:
            sizes = [row.nbytes for _, row in rows.scan(txn)]
            total = rows.total(txn, TENANT.encode())
        assert (total.blobs, total.nbytes) == (len(sizes), sum(sizes))


@contextmanager
def other_process(path: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs a program on this path, as far as its first `wait()`."""
    command = [sys.executable, "-c", PRELUDE + program, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "here\n"
        try:
            yield process
        finally:
            if not process.stdin.closed:
                process.stdin.close()  # it ends when nobody speaks to it
            assert process.wait() in (0, -9)


def test_growth_by_another_process_is_adopted(tmp_path: Path) -> None:
    program = """
store = LmdbStore(path, map_bytes=1)
for name in range(12): store.put(bulk(name, 300_000))
wait(); store.close()
"""
    with LmdbStore(tmp_path, map_bytes=1) as store:
        before = lmdb_of(store).info()["map_size"]
        with other_process(tmp_path, program):
            assert bytes(opened(store, 11).blob()) == bytes(bulk(11, 300_000))
            assert store.put(bulk("mine", 100_000)) is Put.STORED
            assert lmdb_of(store).info()["map_size"] > before
        assert len(listed(store)) == 13


def test_two_processes_with_one_budget_keep_one_account(tmp_path: Path) -> None:
    program = """
store = LmdbStore(path, TierBudget(2_000_000))
wait()
for name in range(60): store.put(bulk(f"theirs-{name}", 150_000))
wait(); store.close()
"""
    with LmdbStore(tmp_path, TierBudget(2_000_000)) as store, other_process(tmp_path, program) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdin.write("\n")
        other.stdin.flush()
        for name in range(60):
            assert store.put(bulk(name, 150_000)) is Put.STORED
            assert store.environment.file_bytes() <= 2_000_000
        assert other.stdout.readline() == "here\n"
        assert totals_match(store)
        assert store.put(bulk("last", 150_000)) is Put.STORED
        assert totals_match(store)
        assert 1_000_000 < body_bytes(store) < 2_000_000
        for name in listed(store):
            opened(store, name).blob()


def test_discarding_what_is_absent_does_not_hide_what_others_write(tmp_path: Path) -> None:
    program = """
store = LmdbStore(path, TierBudget(2_000_000))
wait(); store.put(bulk("theirs", 900_000)); wait(); store.close()
"""
    with LmdbStore(tmp_path, TierBudget(2_000_000)) as store, other_process(tmp_path, program) as other:
        assert other.stdin is not None and other.stdout is not None
        store.put(bulk("mine", 300_000, precomputed=True))
        assert not store.discard(key("nobody's"))
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "here\n"
        assert store.put(bulk("more", 900_000)) is Put.STORED
        assert listed(store) == {"mine", "more"}


def test_deletes_succeed_on_a_map_that_is_full(tmp_path: Path) -> None:
    """A frame that another process reads keeps all pages freed since, so that the map fills up for good."""
    program = """
store = LmdbStore(path, TierBudget(8_000_000))
with store.open(key("read")).frame(0): wait()
"""
    with LmdbStore(tmp_path, TierBudget(8_000_000)) as store:
        store.put(bulk("read", 10_000, precomputed=True))
        with other_process(tmp_path, program):
            full = [store.put(bulk(name, 200_000)) for name in range(100)]
            assert full[-1] is Put.OVER_BUDGET
            assert store.discard(key("read"))
            assert store.put(bulk("read", 200_000)) is Put.OVER_BUDGET
            assert store.delete(Scope("acme")) == 1
            assert listed(store) == set()
            assert store.environment.file_bytes() <= 8_000_000
        assert [store.put(bulk(name, 200_000, epoch=1)) for name in range(8)] == [Put.STORED] * 8


def test_compacting_is_refused_while_another_process_has_the_store(tmp_path: Path) -> None:
    program = """
from store.errors import StoreBusy
store = LmdbStore(path)
wait()
try: store.environment.compact()
except StoreBusy: print("busy", flush=True)
wait(); store.close()
"""
    with LmdbStore(tmp_path) as store:
        store.put(bulk(1, 100_000))
        with other_process(tmp_path, program) as other:
            assert other.stdin is not None and other.stdout is not None
            with pytest.raises(StoreBusy, match="another process"):
                store.environment.compact()
            opened(store, 1).blob()
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == "busy\n", "a refused compaction holds the folder no longer"
            assert store.put(bulk(2, 100_000)) is Put.STORED
        store.environment.compact()
        assert listed(store) == {"1", "2"}


def test_what_a_killed_process_was_reading_is_free_again(tmp_path: Path) -> None:
    program = """
store = LmdbStore(path)
with store.open(key("read")).frame(0): wait()
"""
    with LmdbStore(tmp_path) as store:
        store.put(bulk("read", 100_000))
        with other_process(tmp_path, program) as other:
            for seed in range(8):
                store.replace(bulk("other", 100_000, seed=seed))
            held = store.environment.file_bytes()
            assert held > 8 * 100_000, "the reader holds every page since"
            other.kill()
            other.wait()
            for seed in range(40):
                store.replace(bulk("other", 100_000, seed=seed))
            assert store.environment.file_bytes() < held + 300_000
