"""Ten thousand damaged blobs: each is a miss, or fails before its first frame is out. None is ever decoded."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from store.errors import BadBlob, MissReason
from store.reader import BlobReader
from store.url import open_store
from tests.store.samples import blob, key

CASES = 10_000
REASONS = {MissReason.CORRUPT, MissReason.FOREIGN, MissReason.NEWER_FORMAT}


def damaged(random: Random, own: bytes, foreign: bytes) -> bytes:
    """One byte changed, an end cut off, or another chunk's blob."""
    kind = random.randrange(3)
    if kind == 0:
        changed = bytearray(own)
        changed[random.randrange(len(own))] ^= random.randrange(1, 256)
        return bytes(changed)
    return own[: random.randrange(len(own))] if kind == 1 else foreign


def outcomes(folder: Path) -> Iterator[MissReason | None]:
    """Why each case cannot be had; None for one that could be read to its end."""
    random = Random(7)
    blobs = [bytes(blob(name, codec=codec)) for name, codec in enumerate(["q4", "lossless", "q2"])]
    with open_store(f"file://{folder}/store") as store:
        store.put(blob(0))
        path = folder / "store/blobs" / key(0).text
        for _ in range(CASES):
            path.write_bytes(damaged(random, blobs[0], random.choice(blobs[1:])))
            answer = store.open(key(0))
            if not isinstance(answer, BlobReader):
                yield answer.reason
                continue
            try:
                answer.blob()
            except BadBlob as bad:
                yield bad.reason
            else:
                yield None


def test_every_damaged_blob_is_a_miss(tmp_path: Path) -> None:
    found = list(outcomes(tmp_path))
    assert len(found) == CASES
    assert set(found) == REASONS
