"""Borrows a store: what is written for measuring is removed however that ends; measures how fast each tier reads."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from statistics import median

from service.documents.chunk_capture import CaptureItem, ChunkCapture, Purpose
from service.errors import Unavailable
from service.model.capture_context import ChunkIds
from service.model.served_model import ServedModel
from store.blob_store import BlobStore, Put
from store.codec.decode import read_rows
from store.errors import Miss
from store.fingerprint import digest_ids
from store.key import CacheKey, Scope
from store.reader import BlobReader

TENANT = "kvweave.bench."  # no tenant of a service has a dot in its name
STALE_S = 3600.0  # what is older was left by a run that was killed


@dataclass(frozen=True, slots=True)
class TierSpeed:
    """The stored bytes that one thread reads in a second, digests checked and codes unpacked."""

    tier: str
    bytes_per_s: float


class ScratchStore:
    """Part of a store, under a tenant of its own. `keys`: of all that is ever written."""

    def __init__(self, store: BlobStore, tenant: str) -> None:
        self.keys: list[CacheKey] = []
        self._store = store
        self._tenant = tenant

    def items(self, model: ServedModel, chunks: Sequence[ChunkIds]) -> list[CaptureItem]:
        """Chunks that are to be written; from now on they are taken away at the end."""
        fingerprint = model.fingerprint.behind(model.prefix({})).digest
        keys = [CacheKey(self._tenant, digest_ids(each.all), fingerprint, model.codec) for each in chunks]
        self.keys += keys
        return [CaptureItem(key, ids) for key, ids in zip(keys, chunks, strict=True)]

    def write(self, model: ServedModel, items: Sequence[CaptureItem]) -> float:
        """Writes chunks as a job does. Returns how many seconds it took to compute, pack and store all.

        Raises Unavailable where one cannot be computed, or has no room.
        """
        start = time.perf_counter()
        for outcome in ChunkCapture(model, self._store, purpose=Purpose.JOB).run(items):
            if outcome.put is None:
                raise Unavailable(f"a chunk cannot be computed and stored: {outcome.reason}")
            if outcome.put is not Put.STORED:
                raise Unavailable(f"the store does not take a chunk ({outcome.put.value}): raise its budget")
        self._store.flush()
        return time.perf_counter() - start

    def open(self, item: CaptureItem) -> BlobReader:
        """Opens a chunk's blob. Raises Unavailable where it is gone."""
        found = self._store.open(item.key)
        if isinstance(found, Miss):
            raise Unavailable(f"a chunk that was stored a moment ago is {found.reason.value}: raise the store's budget")
        return found

    def settle(self) -> None:
        """Waits until the copies into nearer tiers are there."""
        self._store.flush()

    def speeds(self, items: Sequence[CaptureItem], *, repeats: int) -> list[TierSpeed]:
        """The speed of each tier that has all of the chunks, nearest first."""
        found: list[TierSpeed] = []
        for tier in self._store.tiers:
            if all(isinstance(tier.open(item.key), BlobReader) for item in items):
                found.append(TierSpeed(tier.name, median(_read(tier, items) for _ in range(repeats))))
        return found


@contextmanager
def scratch_store(opened: Callable[[], BlobStore]) -> Generator[ScratchStore]:
    """A part of the store that is opened. What a killed run left behind goes first.

    At the end the store is closed before it is cleaned: some write on threads of their own, even behind an interrupt.
    """
    part: ScratchStore | None = None
    try:
        with opened() as store:
            for key in list(_stale(store)):
                store.discard(key)
            part = ScratchStore(store, TENANT + token_hex(4))
            yield part
    finally:
        if part and part.keys:
            with opened() as store:
                for key in part.keys:
                    store.discard(key)


def _stale(store: BlobStore) -> Iterator[CacheKey]:
    before = time.time() - STALE_S
    for tenant in store.tenants():
        if tenant.startswith(TENANT):
            yield from (entry.key for entry in store.entries(Scope(tenant)) if entry.stored_at < before)


def _read(tier: BlobStore, items: Sequence[CaptureItem]) -> float:
    """The bytes a second that a tier reads. A blob that went meanwhile is no longer counted."""
    start, nbytes = time.perf_counter(), 0
    for item in items:
        reader = tier.open(item.key)
        if isinstance(reader, BlobReader):
            for group in reader.groups:
                read_rows([reader], group)
            nbytes += reader.head.body_bytes
    return nbytes / (time.perf_counter() - start)
