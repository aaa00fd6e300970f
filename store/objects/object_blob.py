"""Reads one blob from object storage in at most four requests, ahead of its use within a tenant's share of memory.

Memory for what is read ahead is bounded in all, with a fair share for each tenant.
"""

from collections import Counter, deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock

from store.blob import Buffer, Head, head_bytes
from store.errors import BadBlob, MissReason, StoreClosed
from store.objects.object_client import ObjectClient, ObjectPart
from store.reader import BlobReader

FIRST = range(1 << 20)  # the head, and all of a small blob
RANGES = 3  # the most further requests for the rest of a blob
READ_AHEAD_BYTES = 1 << 30
_RANGE_BYTES = 1 << 20


class ReadMemory:
    """Counts bytes. No tenant may hold more than is left for the others, so that the next one finds some."""

    def __init__(self, limit_bytes: int = READ_AHEAD_BYTES) -> None:
        self._limit = limit_bytes
        self._held = Counter[str]()
        self._given: deque[tuple[str, int]] = deque()  # given back, but not counted yet: `give` takes no lock
        self._lock = Lock()

    def take(self, tenant: str, nbytes: int) -> bool:
        """Reserve `nbytes` for a tenant, if they fit; returns whether they do."""
        with self._lock:
            while self._given:
                of, back = self._given.popleft()
                self._held[of] -= back
            self._held = +self._held  # tenants without bytes are dropped
            fits = self._held[tenant] + nbytes <= self._limit - self._held.total() - nbytes
            if fits:
                self._held[tenant] += nbytes
            return fits

    def give(self, tenant: str, nbytes: int) -> None:
        """Release `nbytes` of a tenant. Safe inside the garbage collector."""
        self._given.append((tenant, nbytes))


class ReadLease:
    """The bytes that one blob holds of a memory, for as long as the blob lives."""

    def __init__(self, memory: ReadMemory, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Hold `nbytes` more, if they fit; returns whether they do."""
        taken = self._memory.take(self._tenant, nbytes)
        self._nbytes += nbytes if taken else 0
        return taken

    def give(self, nbytes: int) -> None:
        """Hold `nbytes` less."""
        self._nbytes -= nbytes
        self._memory.give(self._tenant, nbytes)

    def __del__(self) -> None:
        if self._nbytes:
            self.give(self._nbytes)


class ObjectBlob:
    """An object that holds a blob, opened by its first bytes. `lease`: memory for reading ahead."""

    def __init__(
        self, client: ObjectClient, path: str, *, first: ObjectPart, pool: ThreadPoolExecutor, lease: ReadLease
    ) -> None:
        self._client = client
        self._path = path
        self._first = first
        self._pool = pool
        self._lease = lease
        self._ranges = RANGES
        self._spans: list[range] = []
        self._lock = Lock()
        self._futures: list[tuple[range, Future[ObjectPart | None]]] | None = None
        self.raw_head = self._read_head()

    def _read_head(self) -> bytes:
        try:
            length = head_bytes(self._first.data)
        except BadBlob:
            return bytes(self._first.data[:64])  # parsing it will report what is wrong
        if length > len(self._first.data) and length <= self._first.whole:
            more = self._client.read(self._path, range(length))
            self._ranges -= 1
            if more is not None:
                self._first = more
        return bytes(self._first.data[:length])

    def reader(self, head: Head) -> BlobReader:
        """Fetches frames out of ranges that are fetched together, at the first frame that needs one."""
        if len(self.raw_head) + head.body_bytes != self._first.whole:
            raise BadBlob(MissReason.CORRUPT, f"the object has {self._first.whole} bytes, its head promises others")
        self._spans = offsets(head, len(self.raw_head))
        return DistantReader(head, self)

    def begin(self) -> None:
        """Begin to fetch all ranges, where there is memory for them; otherwise each is fetched at its first use."""
        with self._lock:
            left = sum(len(span) for span in self._spans if span.stop > len(self._first.data))
            begins = left and self._futures is None and self._lease.take(left)
        if begins:
            with suppress(StoreClosed):  # reported to the reader of a frame
                self._rest()

    @contextmanager
    def fetch(self, number: int) -> Generator[Buffer]:
        """Waits for one frame and yields it."""
        span = self._spans[number]
        if span.stop <= len(self._first.data):
            yield self._first.data[span.start : span.stop]
            return
        where, future = next(row for row in self._rest() if row[0].start <= span.start and span.stop <= row[0].stop)
        piece = future.result()
        if piece is None:
            raise BadBlob(MissReason.ABSENT, "the object went away while it was read")
        yield piece.data[span.start - where.start : span.stop - where.start]

    def _rest(self) -> list[tuple[range, Future[ObjectPart | None]]]:
        with self._lock:
            if self._futures is None:
                spans = [span for span in self._spans if span.stop > len(self._first.data)]
                self._futures = [(where, self._begin(where)) for where in coalesce(spans, self._ranges)]
            return self._futures

    def _begin(self, where: range) -> Future[ObjectPart | None]:
        try:
            return self._pool.submit(self._client.read, self._path, where)
        except RuntimeError:
            raise StoreClosed("the store was closed while a blob was read from it") from None


class DistantReader(BlobReader):
    """A reader of an object whose ranges may be fetched before a frame is read."""

    def __init__(self, head: Head, blob: ObjectBlob) -> None:
        super().__init__(head, blob.raw_head, fetch=blob.fetch, source="object")
        self._blob = blob

    def begin(self) -> None:
        self._blob.begin()


def offsets(head: Head, start: int) -> list[range]:
    """Where each frame lies in the blob."""
    spans: list[range] = []
    for frame in head.frames:
        spans.append(range(start, start + frame.nbytes))
        start += frame.nbytes
    return spans


def coalesce(spans: list[range], limit: int = RANGES) -> list[range]:
    """Joins adjacent spans into at most `limit` ranges of about equal size; no span is split."""
    if not spans:
        return []
    share = max(_RANGE_BYTES, -(-(spans[-1].stop - spans[0].start) // limit))
    ranges: list[range] = []
    for span in spans:
        if ranges and (len(ranges) == limit or ranges[-1].stop - ranges[-1].start < share):
            ranges[-1] = range(ranges[-1].start, span.stop)
        else:
            ranges.append(span)
    return ranges
