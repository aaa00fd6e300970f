"""Places for objects, to be opened as stores and looked at behind the stores' backs."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import obstore
from obstore.store import LocalStore
from obstore.store import ObjectStore as Bucket

from store.blob import Blob, Frame, Head, StoredShape, Terms, digest, write_head
from store.blob_store import BlobStore
from store.errors import BadBlob, Miss, MissReason
from store.key import CacheKey
from store.url import open_store
from tests.servers.faulty import FaultyProxy, Request
from tests.servers.s3 import S3Server
from tests.store.samples import key


@dataclass(frozen=True, slots=True)
class Medium:
    """One place, as a store's URL and as a bucket. Stores are closed with it."""

    url: str
    bucket: Bucket
    opened: ExitStack

    @property
    def label(self) -> str:
        """What errors call it."""
        return self.url.partition("?")[0]

    def open(self, options: str = "") -> BlobStore:
        """One more store of the place, as on another machine."""
        mark = "&" if "?" in self.url else "?"
        return self.opened.enter_context(open_store(f"{self.url}{mark}{options}" if options else self.url))

    def paths(self, folder: str) -> list[str]:
        """The objects below a folder, without its name."""
        rows = obstore.list(self.bucket, folder).collect()
        return sorted(str(row["path"]).partition("/")[2] for row in rows)

    def overwrite(self, path: str, data: bytes) -> None:
        """Put an object there that no store has written."""
        obstore.put(self.bucket, path, data)


@contextmanager
def s3_medium(server: S3Server, proxy: FaultyProxy, timeout_s: float = 10.0) -> Generator[Medium]:
    """A prefix of its own in the server's bucket; stores talk to it through the proxy, `bucket` does not."""
    prefix = uuid4().hex
    with ExitStack() as opened:
        url = server.url(prefix, through=proxy.endpoint, timeout_s=timeout_s)
        yield Medium(url, server.connect(prefix), opened)


@contextmanager
def folder_medium(path: Path) -> Generator[Medium]:
    """A folder."""
    with ExitStack() as opened:
        yield Medium(f"file://{path}", LocalStore(path), opened)


def sized(frame_bytes: Sequence[int]) -> Blob:
    """A precomputed blob of noise under `key("sized")` whose frames have these lengths, one layer each."""
    random, name = np.random.default_rng(len(frame_bytes)), key("sized")
    frames = tuple(random.bytes(nbytes) for nbytes in frame_bytes)
    head = Head(
        *(name.tenant, name.chunk, name.fingerprint, name.codec),
        terms=Terms(0, precomputed=True),
        dtype="bfloat16",
        tokens=1,
        shapes=(StoredShape(1, 1, 1, 1),) * len(frames),
        frames=tuple(Frame(layer, 1, 0, 1, len(data), digest(data)) for layer, data in enumerate(frames)),
    )
    return Blob(head, write_head(head), frames)


def read(store: BlobStore, name: CacheKey) -> Blob | MissReason:
    """The whole blob, or why there is none."""
    try:
        reader = store.open(name)
        return reader.reason if isinstance(reader, Miss) else reader.blob()
    except BadBlob as bad:
        return bad.reason


def is_blob(request: Request) -> bool:
    """Whether a request is about one blob."""
    return "/blobs/" in request.path
