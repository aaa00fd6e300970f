"""Chunks to blobs in a store, in batches: one computed while another is packed. Knows no documents."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Protocol

from service.model.capture_context import ChunkIds
from service.model.served_model import ServedModel
from store.blob import Blob, Terms
from store.blob_store import Put
from store.codec.encode import encode
from store.errors import RecordError
from store.fingerprint import digest_ids
from store.key import CacheKey
from store.record import Record, Tail

BATCH_TOKENS = 4096
BATCH_CHUNKS = 64
PACKERS = min(8, max(1, (os.cpu_count() or 1) // 4))  # more would take the interpreter's lock from the model's thread
LOOK_S = 0.5  # between two looks, while a batch is computed, whether it is still wanted
ROUNDS = 3  # of a chunk that an older delete of the same text swept away while it was computed


class Sink(Protocol):
    """What a store must do for blobs to be kept in it."""

    def epoch(self, tenant: str) -> int:
        """See `BlobStore`."""
        ...

    def put_all(self, blobs: Sequence[Blob]) -> list[Put]:
        """See `BlobStore`."""
        ...

    def replace(self, blob: Blob) -> Put:
        """See `BlobStore`."""
        ...


@dataclass(frozen=True, slots=True)
class CaptureItem:
    """A chunk to compute."""

    key: CacheKey
    chunk: ChunkIds


@dataclass(frozen=True, slots=True)
class CaptureOutcome:
    """What became of a chunk: a `Put`, or the reason why it cannot be computed."""

    item: CaptureItem
    put: Put | None
    reason: str = ""
    nbytes: int = 0
    raw_bytes: int = 0  # of the keys and values before they were packed


@dataclass(slots=True)
class Spent:
    """Seconds of the caller's time: waiting for the model, packing, and storing."""

    compute: float = 0.0
    pack: float = 0.0
    store: float = 0.0


@dataclass(frozen=True, slots=True)
class _Flight:
    epoch: int
    batch: Sequence[CaptureItem]
    records: Future[list[Record]]


class Purpose(Enum):
    """Why chunks are stored. A job's stay, and what is there is kept. A fill's may go, and mend what was damaged."""

    JOB = "job"
    FILL = "fill"


class ChunkCapture:
    """Computes chunks into one store. `wanted` is asked before each batch, and now and then while it is computed, which
    of them are still worth it.

    The epoch is taken before: what is deleted after that is dropped by the store.
    """

    def __init__(
        self,
        model: ServedModel,
        store: Sink,
        *,
        purpose: Purpose,
        wanted: Callable[[Sequence[CaptureItem]], Sequence[CaptureItem]] = lambda items: items,
    ) -> None:
        self.spent = Spent()
        self._model = model
        self._store = store
        self._purpose = purpose
        self._wanted = wanted

    def run(self, items: Iterable[CaptureItem]) -> Iterator[CaptureOutcome]:
        """Yields outcomes as chunks are stored, and takes `items` meanwhile. Raises StoreError, and the engine's Busy.

        A chunk that was swept away meanwhile is tried again.
        """
        with ThreadPoolExecutor(PACKERS, "kvweave-pack") as pool:
            for _ in range(ROUNDS - 1):
                swept: list[CaptureItem] = []
                for outcome in self._once(items, pool=pool):
                    if outcome.put is Put.DELETED:
                        swept.append(outcome.item)
                    else:
                        yield outcome
                items = swept
            yield from self._once(items, pool=pool)

    def _once(self, items: Iterable[CaptureItem], *, pool: ThreadPoolExecutor) -> Iterator[CaptureOutcome]:
        flights: deque[_Flight] = deque()
        for batch in batches(items):
            epoch = self._store.epoch(batch[0].key.tenant)
            if still := self._wanted(batch):
                flights.append(self._begun(still, epoch=epoch))
            if len(flights) > 1:
                self._wait(flights)
                yield from self._ended(flights.popleft(), pool=pool)
        while flights:
            self._wait(flights)
            yield from self._ended(flights.popleft(), pool=pool)

    def _wait(self, flights: Sequence[_Flight]) -> None:
        """Waits for the first of them, and cancels those of which nothing is wanted any more."""
        start = time.perf_counter()
        first = flights[0].records
        while not first.done() and wait([first], LOOK_S).not_done:
            for flight in flights:
                if not self._wanted(flight.batch):
                    flight.records.cancel()
        self.spent.compute += time.perf_counter() - start

    def _begun(self, batch: Sequence[CaptureItem], *, epoch: int) -> _Flight:
        return _Flight(epoch, batch, self._model.captured([item.chunk for item in batch], payer=batch[0].key.tenant))

    def _ended(self, flight: _Flight, *, pool: ThreadPoolExecutor) -> Iterator[CaptureOutcome]:
        if flight.records.cancelled():
            return
        error = flight.records.exception()
        if error is None:
            yield from self._kept(flight, pool=pool)
        elif len(flight.batch) > 1:  # one of them may be at fault, or all together too large
            for item in flight.batch:
                yield from self._ended(self._begun([item], epoch=flight.epoch), pool=pool)
        else:
            yield CaptureOutcome(flight.batch[0], None, f"{type(error).__name__}: {error}")

    def _kept(self, flight: _Flight, *, pool: ThreadPoolExecutor) -> Iterator[CaptureOutcome]:
        start = time.perf_counter()
        records = flight.records.result()
        terms = Terms(flight.epoch, precomputed=self._purpose is Purpose.JOB)
        packed = list(pool.map(partial(_packed, terms=terms), flight.batch, records))
        self.spent.pack += time.perf_counter() - start
        start = time.perf_counter()
        blobs = [blob for blob in packed if isinstance(blob, Blob)]
        puts = iter(self._put(blobs))
        self.spent.store += time.perf_counter() - start
        for item, record, blob in zip(flight.batch, records, packed, strict=True):
            if isinstance(blob, Blob):
                yield CaptureOutcome(item, next(puts), nbytes=blob.nbytes, raw_bytes=record.nbytes)
            else:
                yield CaptureOutcome(item, None, blob)

    def _put(self, blobs: Sequence[Blob]) -> list[Put]:
        if self._purpose is Purpose.JOB:
            return self._store.put_all(blobs)
        return [self._store.replace(blob) for blob in blobs]


def _packed(item: CaptureItem, record: Record, *, terms: Terms) -> Blob | str:
    """A blob, or why there can be none."""
    try:
        return encode(tailed(record, item.chunk), item.key, terms=terms)
    except RecordError as error:
        return f"{type(error).__name__}: {error}"


def tailed(record: Record, chunk: ChunkIds) -> Record:
    """The record of a chunk and its tail, as it says so."""
    tail = Tail(len(chunk.tail), digest_ids(chunk.tail)) if chunk.tail else Tail()
    return replace(record, ids_digest=digest_ids(chunk.ids), tail=tail)


def batches(items: Iterable[CaptureItem]) -> Iterator[Sequence[CaptureItem]]:
    """The items in order, in batches within the limits; a chunk that is larger is a batch alone.

    Those of one batch are behind what they share.
    """
    batch: list[CaptureItem] = []
    tokens = 0
    for item in items:
        is_full = tokens + len(item.chunk.all) > BATCH_TOKENS or len(batch) == BATCH_CHUNKS
        if batch and (is_full or batch[0].chunk.shared != item.chunk.shared):
            yield batch
            batch, tokens = [], 0
        batch.append(item)
        tokens += len(item.chunk.all)
    if batch:
        yield batch
