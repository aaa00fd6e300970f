"""Writes to a store until it is killed. Says on standard output what it begins, and what is done once a call returned.

Its work is `mixed`, or `compact` for an LMDB store that is compacted again and again. The clock jumps, and now and then
files may not grow, as on a full disk: then a change is done, or said to be `REFUSED`.
"""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from store.blob import Blob, Frame, Head, StoredShape, Terms, digest, write_head
from store.blob_store import BlobStore
from store.errors import StoreFull
from store.key import Scope
from store.lmdb.lmdb_store import LmdbStore
from store.url import open_store
from tests.jumping_clock import let_clock_jump
from tests.limited_files import limited_files
from tests.nursery import serve
from tests.store.samples import key

NAMES = 40
KEPT = 16  # names below it are stored as precomputed, the others as fills
FRAME_BYTES = 1 << 20
TENANT = "acme"


def bulk(
    name: object,
    nbytes: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    precomputed: bool = False,
    tenant: str = TENANT,
) -> Blob:
    """A blob under `key(name)` that no codec ever saw: noise in four frames or more, made in no time."""
    noise = random.Random(f"{name} {seed}")
    count = max(4, -(-nbytes // FRAME_BYTES))
    frames = tuple(noise.randbytes(max(1, nbytes // count)) for _ in range(count))
    table = tuple(Frame(layer, 1, 0, 1, len(data), digest(data)) for layer, data in enumerate(frames))
    shapes = (StoredShape(1, 1, 1, 1),) * count
    named = key(name, tenant=tenant)
    terms = Terms(epoch, precomputed)
    head = Head(named.tenant, named.chunk, named.fingerprint, named.codec, terms, "float32", 1, shapes, table)
    return Blob(head, write_head(head), frames)


def say(line: str) -> None:
    """One whole line, at once: what was said before a kill is heard."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


class Writer:
    """One random change after the other, each a method that returns what became of it."""

    def __init__(self, store: BlobStore, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._works: dict[str, Callable[[int], str]] = {
            "put": self._put,
            "late": self._late,
            "replace": self._replace,
            "discard": self._discard,
            "delete": self._delete,
            "wipe": self._wipe,
        }

    def step(self) -> None:
        """Announce, do, acknowledge."""
        work = self._random.choices(list(self._works), [60, 5, 10, 5, 12, 2])[0]
        number = self._random.randrange(NAMES)
        say(f"begin {work} {number}")
        try:
            with limited_files(self._random):
                said = self._works[work](number)
        except StoreFull:
            said = "REFUSED"
        say(f"done {work} {number} {said}")

    def _blob(self, number: int, epoch: int) -> Blob:
        size = int(2 ** self._random.uniform(10, 17))
        return bulk(number, size, seed=self._random.randrange(1 << 30), epoch=epoch, precomputed=number < KEPT)

    def _put(self, number: int) -> str:
        return self._store.put(self._blob(number, self._store.epoch(TENANT))).name

    def _late(self, number: int) -> str:
        return self._store.put(self._blob(number, max(0, self._store.epoch(TENANT) - 1))).name

    def _replace(self, number: int) -> str:
        return self._store.replace(self._blob(number, self._store.epoch(TENANT))).name

    def _discard(self, number: int) -> str:
        return str(self._store.discard(key(number)))

    def _delete(self, number: int) -> str:
        return str(self._store.delete(Scope(TENANT, key(number).chunk)))

    def _wipe(self, number: int) -> str:
        del number
        return str(self._store.delete(Scope(TENANT)))


def compact_again_and_again(folder: Path) -> None:
    """Keep a few blobs, waste the room of others, take it back."""
    with LmdbStore(folder) as store:
        for number in range(KEPT):
            store.put(bulk(number, 50_000, precomputed=True))
        say("ready")
        while True:
            for number in range(KEPT, NAMES):
                store.put(bulk(number, 50_000))
            for number in range(KEPT, NAMES):
                store.discard(key(number))
            say("begin compact 0")
            store.environment.compact()
            say("done compact 0 True")


def main(url: str, seed: str, work: str) -> None:
    """Never returns: ends by a kill, or when nobody listens any more."""
    let_clock_jump()
    if work == "compact":
        compact_again_and_again(Path(url.removeprefix("lmdb://")))
    with open_store(url) as store:
        say("ready")
        writer = Writer(store, int(seed))
        while True:
            writer.step()


if __name__ == "__main__":
    serve(main)
