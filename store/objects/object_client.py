"""Calls to object storage: uploads in parts, deletes, retries that the client lacks, typed errors."""

import errno
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore as Bucket
from obstore.store import S3Store

from store.disk import sync_to_disk
from store.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable

T = TypeVar("T")

_ATTEMPTS = 3  # where the client gives up at once although a retry is safe
_DELETING = 16  # objects at once, where each takes a request
_PART_BYTES = 64 << 20  # a larger object is uploaded in parts

# What the client states only in an error's text.
_DENIED = ("403 Forbidden", "401 Unauthorized", "AccessDenied", os.strerror(errno.EACCES), os.strerror(errno.EROFS))
_FULL = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT))
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_NO_RANGE = ("416 Range Not Satisfiable", "416 Requested Range Not Satisfiable", "Requested range was invalid")


class _NotThere(StoreUnavailable):
    """There is no such object. Callers that expect this catch it."""


class _NoSuchRange(StoreUnavailable):
    """The object ends before the range begins."""


class _Unrepeated(StoreUnavailable):
    """A failed request that the client has not retried by itself."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing; `modified` in seconds since 1970, by the server's clock."""

    path: str
    nbytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """A part of an object, and the size of the whole."""

    data: memoryview
    whole: int


class ObjectClient:
    """Reads, writes and lists below one bucket. Where the bucket is a folder, `folder` makes writes durable."""

    def __init__(self, bucket: Bucket, label: str, *, folder: Path | None = None) -> None:
        self._bucket = bucket
        self.label = label  # the bucket's name in errors; no credentials
        self._folder = folder

    def read(self, path: str, wanted: range) -> ObjectPart | None:
        """Read these bytes, or as many as there are; None where there is no object."""
        try:
            with self._typed():
                answer = obstore.get(self._bucket, path, options={"range": (wanted.start, wanted.stop)})
                piece = ObjectPart(memoryview(answer.bytes()), answer.meta["size"])
        except _NotThere:
            return None
        except _NoSuchRange:
            there = self.head(path)
            if there is not None and there.nbytes > wanted.start:
                raise
            return None if there is None else ObjectPart(memoryview(b""), there.nbytes)
        due = min(wanted.stop, piece.whole) - wanted.start
        if len(piece.data) != due:  # the response is at fault: the object itself may be sound
            raise StoreUnavailable(f"{self.label} answered with {len(piece.data)} of {due} bytes of {path}")
        return piece

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless it exists; False where it does. After a lost response that may be our own write."""
        if len(data) > _PART_BYTES:  # parts lack create-if-absent; two writers of a blob write equivalent bytes
            if self.head(path) is not None:
                return False
            self.write(path, data)
            return True
        created = self._insist(lambda: self._create(path, data))
        self._settle(path)
        return created

    def _create(self, path: str, data: bytes) -> bool:
        try:
            obstore.put(self._bucket, path, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def write(self, path: str, data: bytes) -> None:
        """Write an object, replacing any that is there."""
        with self._typed():
            obstore.put(self._bucket, path, data, use_multipart=len(data) > _PART_BYTES, chunk_size=_PART_BYTES // 4)
        self._settle(path)

    def head(self, path: str) -> Listed | None:
        """The size and age of an object."""
        try:
            with self._typed():
                meta = obstore.head(self._bucket, path)
        except _NotThere:
            return None
        return Listed(path, meta["size"], meta["last_modified"].timestamp())

    def listing(self, folder: str, after: str | None = None) -> Iterator[Listed]:
        """All objects below a folder in path order, or those whose path is greater than `after`."""
        left = _ATTEMPTS
        while left:
            try:
                for row in self._rows(folder, after):
                    yield row
                    after, left = row.path, _ATTEMPTS
                return
            except _Unrepeated:
                left -= 1
                if not left:
                    raise

    def _rows(self, folder: str, after: str | None) -> Iterator[Listed]:
        with self._typed():
            pages = obstore.list(  # pyright: ignore[reportUnknownMemberType]  # of Arrow tables, if asked for
                self._bucket, prefix=folder, offset=after, chunk_size=1000
            )
            rows = (
                Listed(row["path"], row["size"], row["last_modified"].timestamp()) for page in pages for row in page
            )
            yield from sorted(rows, key=lambda row: row.path) if self._folder else rows

    def folders(self, folder: str) -> list[str]:
        """The last path segments of the folders right below."""
        found = self._insist(
            lambda: obstore.list_with_delimiter(  # pyright: ignore[reportUnknownMemberType]  # as above
                self._bucket, prefix=folder
            )["common_prefixes"]
        )
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; absent ones are no error. None is still being deleted when this returns.

        S3 takes many in a request and does not mind what is absent. Elsewhere an absent one ends the client's call
        while it is still deleting its neighbours, which might be written anew meanwhile: there each has its own call.
        """
        wanted = list(paths)
        if isinstance(self._bucket, S3Store) and self._deleted(wanted):
            return
        if len(wanted) < 2 or self._folder is not None:
            for path in wanted:
                self._deleted([path])
        else:
            with ThreadPoolExecutor(min(len(wanted), _DELETING)) as pool:
                list(pool.map(self._deleted, [[path] for path in wanted]))

    def _deleted(self, paths: list[str]) -> bool:
        try:
            if paths:
                self._insist(lambda: obstore.delete(self._bucket, paths))
        except _NotThere:
            return False
        return True

    def copy(self, source: str, target: str) -> bool:
        """Copy an object inside the bucket; returns whether it was there. The copy's age counts from now."""
        try:
            self._insist(lambda: obstore.copy(self._bucket, source, target))
        except _NotThere:
            return False
        if self._folder is not None:  # a link there, as old as its source
            with self._typed():
                os.utime(self._folder / target)
        return True

    def _insist(self, attempt: Callable[[], T]) -> T:
        for _ in range(_ATTEMPTS - 1):
            try:
                with self._typed():
                    return attempt()
            except _Unrepeated:
                continue
        with self._typed():
            return attempt()

    def _settle(self, path: str) -> None:
        """Syncs a folder's file and the folder: only then does the file survive a power cut."""
        if self._folder is None:
            return
        for place in (self._folder / path, (self._folder / path).parent):
            try:
                with self._typed():
                    sync_to_disk(place)
            except _NotThere:  # it was deleted meanwhile
                return

    @contextmanager
    def _typed(self) -> Generator[None]:
        """Turns the client's errors into ours. Not chained: its dumps repeat a server's words, perhaps a token."""
        try:
            yield
        except StoreError:
            raise
        except (BaseError, OSError) as error:
            raise self._type_of(error) from None

    def _type_of(self, error: BaseError | OSError) -> StoreError:
        text, brief = str(error), _brief(error)
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
        if denied or any(words in text for words in _DENIED):
            return StoreDenied(f"{self.label} denies access: check its credentials and permissions ({brief})")
        if any(words in text for words in _FULL):
            return StoreFull(
                f"the disk behind {self.label} is full: free some space, or give the store a smaller budget"
            )
        if any(words in text for words in _NO_BUCKET):
            return StoreUnavailable(f"{self.label} is not there: create its bucket, or correct the name")
        kind = _NotThere if isinstance(error, FileNotFoundError) else _Unrepeated
        if any(words in text for words in _NO_RANGE):
            kind = _NoSuchRange
        elif re.search(r"after \d+ retries", text):
            kind = StoreUnavailable
        return kind(f"{self.label} does not answer as it should: {brief}")


def _brief(error: Exception) -> str:
    """The client's own words on an error, with the server's code but none of its text."""
    text = str(error).strip()
    said, _, server = text.partition("<")
    code = re.search(r"<Code>(\w{1,60})</Code>", server)
    first = (said.strip().splitlines() or [type(error).__name__])[0].rstrip(" :")
    return f"{first[:300]}: {code[1]}" if code else first[:300]
