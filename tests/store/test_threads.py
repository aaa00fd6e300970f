"""Eight threads on one store, each with tenants of its own and a dict that says what must be there."""

import threading
import uuid
from collections.abc import Generator
from pathlib import Path
from random import Random

import pytest

from store.blob import Blob
from store.blob_store import BlobStore, Put
from store.errors import BadBlob
from store.key import CacheKey, Scope
from store.reader import BlobReader
from store.url import open_store
from tests.servers.s3 import S3Server
from tests.store.samples import blob

THREADS, CHUNKS = 8, 6
URLS = {
    "ram": "mem://",
    "small ram": "mem://?budget=150kB",
    "lmdb": "lmdb://{folder}/a",
    "small lmdb": "lmdb://{folder}/a?budget=1MB&tenant_budget=90kB",
    "folder": "file://{folder}/a",
    "s3": "{s3}",
    "tiers": "tiered:mem://?budget=60kB|lmdb://{folder}/a?budget=1MB|file://{folder}/b",
    "tiers over s3": "tiered:mem://?budget=60kB|lmdb://{folder}/a?budget=1MB|{s3}",
}


@pytest.fixture(params=URLS)
def store(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path) -> Generator[BlobStore]:
    url = URLS[request.param].format(folder=tmp_path, s3=server.url(uuid.uuid4().hex))
    with open_store(url) as store:
        yield store


class Tenant:
    """One thread's view: its keys are nobody else's, so what its dict says must hold whatever the others do."""

    def __init__(self, store: BlobStore, number: int) -> None:
        self.store = store
        self.name = f"tenant-{number}"
        self.random = Random(number)
        self.held: dict[CacheKey, Blob] = {}
        self.late: list[Blob] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice([self.put, self.put, self.replace, self.discard, self.delete, self.begin, self.arrive])()
            self.look()

    def _made(self) -> Blob:
        name, seed = self.random.randrange(CHUNKS), self.random.randrange(3)
        fill = self.random.random() < 0.7
        return blob(name, tenant=self.name, seed=seed, epoch=self.store.epoch(self.name), precomputed=not fill)

    def put(self) -> None:
        made = self._made()
        outcome = self.store.put(made)
        assert outcome is not Put.DELETED
        if outcome is Put.STORED:
            self.held[made.head.key] = made
        elif outcome is Put.PRESENT:
            assert made.head.key in self.held

    def replace(self) -> None:
        made = self._made()
        if self.store.replace(made) is Put.STORED:
            self.held[made.head.key] = made

    def discard(self) -> None:
        if self.held:
            key = self.random.choice(sorted(self.held))
            self.store.discard(key)
            del self.held[key]

    def delete(self) -> None:
        scope = Scope(self.name, f"chunk-{self.random.randrange(CHUNKS)}")
        self.store.delete(scope)
        self.held = {key: made for key, made in self.held.items() if key not in scope}

    def begin(self) -> None:
        self.late.append(self._made())

    def arrive(self) -> None:
        """What was begun before a delete of its chunk must not come back."""
        if not self.late:
            return
        made = self.late.pop()
        key, epoch = made.head.key, made.head.terms.epoch
        dead = any(deletion.kills(key, epoch) for deletion in self.store.deletions(self.name))
        outcome = self.store.put(made)
        assert (outcome is Put.DELETED) == dead or outcome is Put.OVER_BUDGET
        if outcome is Put.STORED:
            self.held[key] = made

    def look(self) -> None:
        """A key holds what the dict says or, where there is a budget, nothing; never anything else."""
        key = CacheKey(self.name, f"chunk-{self.random.randrange(CHUNKS)}", "fp", "q4")
        reader = self.store.open(key)
        if not isinstance(reader, BlobReader):
            assert key not in self.held or self._may_forget(key)
            return
        try:
            data = bytes(reader.blob())
        except BadBlob:
            assert self._may_forget(key)  # evicted while it was read
            return
        assert key in self.held
        assert data == bytes(self.held[key])

    def _may_forget(self, key: CacheKey) -> bool:
        budget = self.store.usage()[-1].budget
        return budget is not None and not self.held[key].head.terms.precomputed


def work(tenants: list[Tenant], steps: int) -> list[BaseException]:
    failures: list[BaseException] = []

    def run(tenant: Tenant) -> None:
        try:
            tenant.run(steps)
        except (AssertionError, ValueError, OSError, KeyError) as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(tenant,)) for tenant in tenants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.parametrize("steps", [20, pytest.param(400, marks=pytest.mark.long)])
def test_each_thread_finds_what_its_dict_says(store: BlobStore, steps: int) -> None:
    assert work([Tenant(store, number) for number in range(THREADS)], steps) == []
    store.flush()
