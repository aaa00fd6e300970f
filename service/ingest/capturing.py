"""Chunks to blobs in a store: computed in batches, one computed while the one before is packed. Knows no documents."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

from service.press import Ids, Press
from store.base import BlobStore, Put
from store.blob import Terms
from store.codec.encode import encode
from store.errors import RecordError
from store.key import CacheKey
from store.record import Record

BATCH_TOKENS = 4096
BATCH_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class Item:
    """A chunk to compute."""

    key: CacheKey
    ids: Ids


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one: a `Put`, or the reason why it cannot be computed."""

    item: Item
    put: Put | None
    reason: str = ""
    nbytes: int = 0
    raw_bytes: int = 0  # of the keys and values before they were packed


@dataclass(frozen=True, slots=True)
class _Flight:
    epoch: int
    batch: Sequence[Item]
    records: Future[list[Record]]


class Purpose(Enum):
    """What a job was asked to store stays, and what is there is kept. A fill may go, and mends what was damaged."""

    JOB = "job"
    FILL = "fill"


class Capturing:
    """Into one store. `wanted` is asked before each batch which of its chunks are still worth computing.

    The epoch is taken before: what is deleted after that is dropped by the store.
    """

    def __init__(
        self,
        press: Press,
        store: BlobStore,
        *,
        purpose: Purpose,
        wanted: Callable[[Sequence[Item]], Sequence[Item]] = lambda items: items,
    ) -> None:
        self._press = press
        self._store = store
        self._purpose = purpose
        self._wanted = wanted

    def run(self, prefix: Ids, items: Sequence[Item]) -> Iterator[Outcome]:
        """As they are stored. Raises StoreError, and Busy when the engine takes no more."""
        flights: deque[_Flight] = deque()
        for batch in batches(items):
            epoch = self._store.epoch(batch[0].key.tenant)
            if still := self._wanted(batch):
                flights.append(self._begun(prefix, still, epoch=epoch))
            if len(flights) > 1:
                yield from self._ended(prefix, flights.popleft())
        while flights:
            yield from self._ended(prefix, flights.popleft())

    def _begun(self, prefix: Ids, batch: Sequence[Item], *, epoch: int) -> _Flight:
        return _Flight(epoch, batch, self._press.capture(prefix, [item.ids for item in batch]))

    def _ended(self, prefix: Ids, flight: _Flight) -> Iterator[Outcome]:
        error = flight.records.exception()
        if error is None:
            for item, record in zip(flight.batch, flight.records.result(), strict=True):
                yield self._kept(item, record, epoch=flight.epoch)
        elif len(flight.batch) > 1:  # one of them may be at fault, or all together too large
            for item in flight.batch:
                yield from self._ended(prefix, self._begun(prefix, [item], epoch=flight.epoch))
        else:
            yield Outcome(flight.batch[0], None, f"{type(error).__name__}: {error}")

    def _kept(self, item: Item, record: Record, *, epoch: int) -> Outcome:
        terms = Terms(epoch, precomputed=self._purpose is Purpose.JOB)
        try:
            blob = encode(record, item.key, terms=terms)
        except RecordError as error:
            return Outcome(item, None, f"{type(error).__name__}: {error}")
        put = self._store.put if self._purpose is Purpose.JOB else self._store.replace
        return Outcome(item, put(blob), nbytes=blob.nbytes, raw_bytes=record.nbytes)


def batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """In order, each within the limits, or one chunk alone."""
    batch: list[Item] = []
    tokens = 0
    for item in items:
        if batch and (tokens + len(item.ids) > BATCH_TOKENS or len(batch) == BATCH_CHUNKS):
            yield batch
            batch, tokens = [], 0
        batch.append(item)
        tokens += len(item.ids)
    if batch:
        yield batch
