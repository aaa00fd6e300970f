"""A store behind a link of limited bandwidth: the object store as it is, but for the wire. Knows no service."""

import itertools
import random
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from threading import Lock

from store.blob_store import BlobStore
from store.objects.object_client import ObjectPart
from store.objects.object_store import ObjectBlobStore

MB = 1e6
PIECE = 1 << 16  # bytes of one answer that the link carries before those of the next
LEAST_SLEEP_S = 1e-3  # a sleep of microseconds takes ten times as long


class Link:
    """A link of so many bytes a second, which all answers under way share, a piece of each in turn."""

    def __init__(self) -> None:
        self.bytes_per_s: Callable[[], float] = lambda: 1e12
        self._free_at = 0.0
        self._lock = Lock()

    def hold(self, mb_per_s: float) -> None:
        """From now on the link carries so much."""
        self.bytes_per_s = lambda: mb_per_s * MB

    def jump(self, speeds: Sequence[float], *, held_s: float, seed: int) -> None:
        """From now on the link changes between two speeds in MB/s, after `held_s` on average."""
        chance, began = random.Random(seed), time.perf_counter()
        ends = [*itertools.accumulate(chance.expovariate(1 / held_s) for _ in range(1000))]
        first = chance.randrange(2)
        self.bytes_per_s = lambda: MB * speeds[(first + bisect(ends, time.perf_counter() - began)) % 2]

    def carry(self, nbytes: int) -> None:
        """Returns when so many bytes have arrived."""
        while nbytes > 0:
            piece = min(PIECE, nbytes)
            nbytes -= piece
            with self._lock:
                now = time.perf_counter()
                self._free_at = max(self._free_at, now - LEAST_SLEEP_S) + piece / self.bytes_per_s()
                left_s = self._free_at - now
            if left_s > LEAST_SLEEP_S or nbytes == 0:
                time.sleep(max(0.0, left_s))


def behind(store: BlobStore, link: Link) -> BlobStore:
    """An object store whose reads arrive over the link, side by side as its threads ask for them."""
    assert isinstance(store, ObjectBlobStore), store
    client = store._client
    read = client.read

    def read_slowly(path: str, wanted: range) -> ObjectPart | None:
        found = read(path, wanted)
        link.carry(len(found.data) if found else 0)
        return found

    client.read = read_slowly
    return store
