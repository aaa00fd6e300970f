"""One chunk's record, in memory or in a blob, read by layers: whether it is exact; bytes, time, failures of reads."""

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, Self

from msgspec.structs import astuple

from store.blob import StoredShape
from store.codec.decode import lies_in, read_rows
from store.codec.spec import LOSSLESS
from store.errors import BadBlob, MissReason, StoreError
from store.fingerprint import Fingerprint, is_alone
from store.key import context_of
from store.reader import BlobReader
from store.record import Record, Shape, Tail
from store.rows import StoredRows, joined, plain_rows

_TIERS = {"object": "s3"}  # a medium's name in reports


class RecordSource(Protocol):
    """One chunk's record, of which several layers or records are read together, by several threads at once.

    It was captured with the `fingerprint`; `is_exact`: it is exactly what the model computed right after the
    fingerprint's prefix. It covers so many `tokens` of the chunk, whose `ids_digest` is empty where an older release
    kept none, and behind it a `tail`. `shapes`: heads and dims of each layer's keys, then of its values; None for one
    without a cache of its own. `is_near`: its rows are there, so that nothing has to be read. `groups`: the layers in
    order, those together that are read together.
    """

    fingerprint: Fingerprint
    is_exact: bool
    tokens: int
    ids_digest: str
    tail: Tail
    shapes: tuple[Shape | None, ...]
    is_near: bool
    groups: tuple[range, ...]

    def rows(self, layers: range, of: Sequence[Self], *, threads: int = 1) -> StoredRows:
        """Reads layers of several records, this one among them, with the tails', by one call and so many threads of its
        own. Raises `BadBlob`, or what the medium raises.
        """
        ...


class HeldRecord:
    """A record in memory that was captured right behind its prefix."""

    is_exact = True
    is_near = False  # for copies are made

    def __init__(self, record: Record, fingerprint: Fingerprint) -> None:
        self._record, self.fingerprint = record, fingerprint
        self.tokens, self.ids_digest, self.tail = record.tokens - record.tail.tokens, record.ids_digest, record.tail
        self.shapes = tuple(
            each and (each.keys.shape[0], each.keys.shape[2], each.values.shape[0], each.values.shape[2])
            for each in record.layers
        )
        self.groups = tuple(range(layer, layer + 1) for layer in range(len(record.layers)))

    def rows(self, layers: range, of: Sequence[Self], *, threads: int = 1) -> StoredRows:
        """Copies of the layers: nothing is read."""
        del threads
        return joined([plain_rows(each._record.layers[layers.start : layers.stop]) for each in of])


class BlobSource:
    """One chunk's record in a blob. Threads may share it; what memory has unpacked is not read.

    `tier` is the medium that answered, as reports call it; of the blob's `nbytes` so many are `read` so far, all but
    its head in `read_s` seconds. `failure`: why a layer could not be read, the blob's fault or the medium's.
    """

    def __init__(self, reader: BlobReader, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        head = reader.head
        self.is_exact = head.codec == LOSSLESS and is_alone(context_of(head.fingerprint))
        self.tokens, self.ids_digest = head.tokens - head.tail_tokens, head.ids_digest
        self.is_near = reader.unpacked is not None
        self.shapes = _shapes(head.shapes)
        self.groups = reader.groups
        self.tail = Tail(head.tail_tokens, head.tail_digest)
        self.tier = _TIERS.get(reader.source, reader.source)
        self.nbytes = len(reader.raw_head) + head.body_bytes
        self.parts = 1 if self.is_near else len(self.groups)  # that arrive one after the other
        self.read = len(reader.raw_head)
        self.read_s = 0.0
        self.failure: MissReason | None = None
        self._reader: BlobReader | None = reader

    def rows(self, layers: range, of: Sequence[Self], *, threads: int = 1) -> StoredRows:
        """Layers of several records. What fails of one record alone is that one's failure."""
        readers = [each._reader for each in of if each._reader is not None]
        assert len(readers) == len(of), "a record was let go of"
        start = time.perf_counter()
        try:
            found = read_rows(readers, layers, threads=threads)
        except StoreError as error:
            if len(of) == 1:
                of[0].failure = error.reason if isinstance(error, BadBlob) else MissReason.UNAVAILABLE
            raise
        seconds = (time.perf_counter() - start) / len(of)
        for each, reader in zip(of, readers, strict=True):
            if not reader.unpacked:
                each.read += sum([frame.nbytes for frame in reader.head.frames if lies_in(frame, layers)])
                each.read_s += seconds
        return found

    def begin(self) -> None:
        """Begin to fetch the record before its layers are read."""
        if self._reader is not None:
            self._reader.begin()

    def let_go(self) -> None:
        """Release the record's memory: no more layers will be read."""
        self._reader = None


@lru_cache  # most chunks' are alike
def _shapes(stored: tuple[StoredShape | None, ...]) -> tuple[Shape | None, ...]:
    """Heads and dims of each layer's keys, then of its values."""
    return tuple([each and astuple(each) for each in stored])
