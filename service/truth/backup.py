"""Writes a backup: the databases, each as it was at one moment while others go on writing, and the blobs if asked for.

Blobs are read after their tenant's catalog, and only those of chunks that the catalog copy knows. So a chunk that was
deleted before the copy leaves no blob in the archive, or one that the copy still lists as to be swept.
"""

import secrets
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from service.access.principal import is_tenant
from service.access.private import finish_file, new_private_file, sync_folder
from service.errors import AccessError
from service.truth.archive import ArchiveWriter, tenant_of, writing
from service.truth.databases import CONTROL, RESTORING, copy_database, databases
from store.blob import Blob
from store.blob_store import BlobStore
from store.errors import BadBlob, Miss, StoreError
from store.key import CacheKey, Scope


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What is in the archive. `left_out`: blobs that went or could not be read meanwhile; they can be computed anew."""

    file: Path
    nbytes: int
    created: float
    tenants: tuple[str, ...]
    blobs: int
    left_out: int


def back_up(file: Path, data: Path, *, store: BlobStore | None = None, force: bool = False) -> BackupReport:
    """Writes a backup, whole or not at all. Raises AccessError, and what the store raises.

    A file that is there is an older backup or somebody's: it is replaced with `force` alone.
    """
    if file.exists() and not force:
        raise AccessError(f"{file} is there: name another file, or replace it with --force")
    if not (data / CONTROL).is_file():
        raise AccessError(f"{data} holds no {CONTROL}, so there is nothing to back up: is KVWEAVE_DATA right?")
    if (data / RESTORING).exists():
        raise AccessError(f"a restore into {data} was cut off: start the service, which ends it, or restore again")
    try:
        with _replacing(file) as out, TemporaryDirectory(dir=file.parent, prefix=".kvweave-") as scratch:
            with writing(out) as writer:
                blobs = _Blobs(writer, store.tiers[-1] if store else None)  # others are copies of the lowest
                for path in databases(data):
                    _add(path, data, writer=writer, scratch=Path(scratch), blobs=blobs)
                manifest = writer.finish(blobs.epochs)
            nbytes = out.tell()
    except StoreError:
        raise
    except OSError as error:
        raise AccessError(f"the backup {file} cannot be written: {error}") from error
    tenants = tuple(manifest.tenants)
    return BackupReport(file, nbytes, manifest.created, tenants, manifest.blobs, blobs.left_out)


def _add(path: Path, data: Path, *, writer: ArchiveWriter, scratch: Path, blobs: "_Blobs") -> None:
    name = path.relative_to(data).as_posix()
    tenant = tenant_of(name)
    if tenant and not is_tenant(tenant):  # no folder that this service made
        return
    copy = scratch / "copy.sqlite"
    copy_database(path, copy)
    writer.database(name, copy)
    if tenant:
        blobs.add(tenant, copy)
    copy.unlink()


class _Blobs:
    """Adds the blobs of a store to the archive; nothing where there is no store."""

    def __init__(self, writer: ArchiveWriter, store: BlobStore | None) -> None:
        self.epochs: dict[str, int] = {}
        self.left_out = 0
        self._writer = writer
        self._store = store

    def add(self, tenant: str, catalog: Path) -> None:
        if self._store is None:
            return
        with closing(sqlite3.connect(f"{catalog.resolve().as_uri()}?immutable=1", uri=True)) as known:
            for entry in self._store.entries(Scope(tenant)):
                if known.execute("SELECT 1 FROM chunks WHERE id = ?", (entry.key.chunk,)).fetchone():
                    self._add(self._store, entry.key)
        epoch = self._store.epoch(tenant)  # asked for last: no blob that was read is of a later one
        if epoch:
            self.epochs[tenant] = epoch

    def _add(self, store: BlobStore, key: CacheKey) -> None:
        blob = _read(store, key)
        if blob is None:
            self.left_out += 1
        else:
            self._writer.packed(f"blobs/{key.text}", bytes(blob))


def _read(store: BlobStore, key: CacheKey) -> Blob | None:
    reader = store.open(key)
    try:
        return None if isinstance(reader, Miss) else reader.blob()
    except BadBlob:
        return None


@contextmanager
def _replacing(file: Path) -> Generator[BinaryIO]:
    """Yields a file for its owner only, which bears the name when the block has ended well."""
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    out = new_private_file(unfinished)
    try:
        with out:
            yield out
            finish_file(out)
        unfinished.replace(file)
        sync_folder(file.parent)
    finally:
        unfinished.unlink(missing_ok=True)
