"""The form of a backup: a tar archive in one zstd stream, and what it must say of itself. Knows no store and no SQLite.

    control.sqlite                     each as SQLite's backup wrote it
    tenants/<tenant>/catalog.sqlite
    tables/<tenant>/<table>            in older backups; nothing needs them
    blobs/<key>                        whole blobs, each with digests of its own
    manifest.json                      last, so that a backup that was cut off has none

Nothing is ever extracted under a name that stands in the archive: a member whose name is none of these is refused.
"""

import io
import re
import tarfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, BinaryIO, Final

import msgspec
import zstandard
from blake3 import blake3

from service.access.principal import is_tenant
from service.errors import AccessError
from service.truth.databases import CATALOG, CONTROL, TENANTS

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
MANIFEST_BYTES: Final = 16 << 20
PIECE: Final = 1 << 20

_DATABASE = re.compile(rf"{re.escape(CONTROL)}|{TENANTS}/([^/]+)/{re.escape(CATALOG)}")
_BLOBS = "blobs/"
_PACKED = re.compile(rf"(?:{_BLOBS}|tables/)[^/]+/.+")


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a backup says of itself. `files`: databases and their digests. `packed`: one over all else, in its order.

    `epochs`: of each tenant that has blobs, the number of the last deletion that the store knew.
    """

    format: int
    kvweave: str
    created: float
    files: dict[str, str]
    blobs: int
    nbytes: int
    packed: str
    epochs: dict[str, int]

    @property
    def tenants(self) -> list[str]:
        return [tenant for name in self.files if (tenant := tenant_of(name))]


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One member of an archive, while the archive is read."""

    name: str
    nbytes: int
    content: IO[bytes]

    @property
    def is_database(self) -> bool:
        return _DATABASE.fullmatch(self.name) is not None

    @property
    def is_blob(self) -> bool:
        return self.name.startswith(_BLOBS)


def tenant_of(name: str) -> str:
    """The tenant whose catalog this member is; empty for the control database."""
    found = _DATABASE.fullmatch(name)
    return (found[1] or "") if found else ""


class ArchiveTally:
    """Counts and digests all members but the databases. Writer and reader of one archive come to the same result."""

    def __init__(self) -> None:
        self.blobs = self.nbytes = 0
        self._hasher = blake3()

    def add(self, name: str, data: bytes) -> None:
        """Counts a member and adds it to the digest. Members come in the order of the archive."""
        self._hasher.update(f"{name}\n{len(data)}\n".encode())
        self._hasher.update(data)
        if name.startswith(_BLOBS):
            self.blobs += 1
            self.nbytes += len(data)

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()


class ArchiveWriter:
    """Writes an archive: its members one by one, then the manifest by `finish`."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._files: dict[str, str] = {}
        self._tally = ArchiveTally()

    def database(self, name: str, path: Path) -> None:
        self._files[name] = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
        with path.open("rb") as file:
            self._add(name, path.stat().st_size, content=file)

    def packed(self, name: str, data: bytes) -> None:
        """Adds a member that has no digest of its own in the manifest."""
        self._tally.add(name, data)
        self._add(name, len(data), content=io.BytesIO(data))

    def finish(self, epochs: dict[str, int]) -> Manifest:
        tally = self._tally
        manifest = Manifest(
            FORMAT, version("kvweave"), time.time(), self._files, tally.blobs, tally.nbytes, tally.digest, epochs
        )  # fmt: skip
        data = msgspec.json.encode(manifest)
        self._add(MANIFEST, len(data), content=io.BytesIO(data))
        return manifest

    def _add(self, name: str, nbytes: int, *, content: IO[bytes]) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = nbytes, 0o600, int(time.time())
        self._tar.addfile(info, content)
        self._tar.getmembers().clear()  # it would remember each of a million blobs


@contextmanager
def writing(out: BinaryIO) -> Generator[ArchiveWriter]:
    """Yields a writer of a new archive, which is whole when the block ends; `out` stays open."""
    with (
        zstandard.ZstdCompressor(write_checksum=True).stream_writer(out, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        yield ArchiveWriter(tar)


def members(file: BinaryIO) -> Generator[ArchiveMember, None, Manifest]:
    """Yields an archive's members from its start; returns its manifest. Raises AccessError unless that comes last."""
    file.seek(0)
    with (
        zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|") as tar,
    ):
        for member in _regular(tar):
            if member.name == MANIFEST:
                manifest = _parsed(member.content.read(MANIFEST_BYTES))
                if next(_regular(tar), None) is not None:
                    raise AccessError("something stands behind the manifest")
                return manifest
            yield member
    raise AccessError("it has no manifest, so it was cut off")


def _regular(tar: tarfile.TarFile) -> Iterator[ArchiveMember]:
    while (info := tar.next()) is not None:
        content = tar.extractfile(info) if info.isreg() else None
        tenant = tenant_of(info.name)
        known = info.name == MANIFEST or _DATABASE.fullmatch(info.name) or _PACKED.fullmatch(info.name)
        if content is None or not known or (tenant and not is_tenant(tenant)):
            raise AccessError(f"it holds {info.name!r}, which no backup of kvweave does")
        yield ArchiveMember(info.name, info.size, content)
        tar.members.clear()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] (see above)


def _parsed(data: bytes) -> Manifest:
    try:
        found = msgspec.json.decode(data, type=dict[str, object]).get("format")
        if isinstance(found, int) and found > FORMAT:
            raise AccessError(f"it is of format {found}, this kvweave reads {FORMAT}: use the newer")
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AccessError(f"its manifest does not parse: {error}") from error


@contextmanager
def archive_errors_explained(file: Path) -> Generator[None]:
    """Turns whatever the block finds wrong inside the archive into an AccessError with the archive's name."""
    damaged = f"{file} is no backup, or a damaged one, and nothing was restored from it: "
    try:
        yield
    except AccessError as error:
        raise AccessError(f"{damaged}{error}") from error
    except (zstandard.ZstdError, tarfile.TarError, EOFError, UnicodeError) as error:
        raise AccessError(f"{damaged}{error}") from error
