"""A stored blob as a source of keys and values: what the model's side asks for, layer by layer, out of a reader."""

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Self

from msgspec.structs import astuple

from blend.errors import UnreadableRecord
from blend.fingerprint import Fingerprint
from service.model.capture_context import is_alone
from store.blob import StoredShape
from store.codec.decode import lies_in, read_rows
from store.codec.spec import LOSSLESS
from store.errors import BadBlob, MissReason, StoreError
from store.key import context_of
from store.reader import BlobReader
from store.record import Shape, Tail
from store.rows import StoredRows

_TIERS = {"object": "s3"}  # a medium's name in reports


class BlobSource:
    """One chunk's record in a store. Threads may share it; what memory has unpacked is not read.

    `tier` is the medium that answered, as reports call it; of the blob's `nbytes` so many are `read` so far, all but
    its head in `read_s` seconds.
    """

    def __init__(self, reader: BlobReader, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        head = reader.head
        self.is_exact = head.codec == LOSSLESS and is_alone(context_of(head.fingerprint))
        self.tokens, self.ids_digest = head.tokens - head.tail_tokens, head.ids_digest
        self.is_near = reader.unpacked is not None
        self.shapes = _shapes(head.shapes)
        self.tail = Tail(head.tail_tokens, head.tail_digest)
        self.tier = _TIERS.get(reader.source, reader.source)
        self.nbytes = len(reader.raw_head) + reader.head.body_bytes
        self.read = len(reader.raw_head)
        self.read_s = 0.0
        self.failure: MissReason | None = None  # why a layer could not be read: the blob's fault, or the store's
        self._reader: BlobReader | None = reader

    @property
    def parts(self) -> int:
        """The number of parts that arrive one after the other, each with some layers."""
        return 1 if self._reader is None else len(self._reader.numbers)

    @property
    def groups(self) -> tuple[range, ...]:
        """Layers that are read together; each by itself where memory has them unpacked."""
        assert self._reader is not None, "the record was let go of"
        return self._reader.groups

    def rows(self, layers: range, of: Sequence[Self], *, threads: int = 1) -> StoredRows:
        """Layers of several records. Raises Unreadable for a damaged frame, and where a medium does not answer; of one
        record alone it is that one's failure.
        """
        readers = [each._reader for each in of if each._reader is not None]
        assert len(readers) == len(of), "a record was let go of"
        start = time.perf_counter()
        try:
            found = read_rows(readers, layers, threads=threads)
        except StoreError as error:
            if len(of) == 1:
                of[0].failure = error.reason if isinstance(error, BadBlob) else MissReason.UNAVAILABLE
            raise UnreadableRecord(str(error)) from error
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
