"""Puts a backup in the place of what is there: checks all of it first, then all of it or nothing. Knows no HTTP.

A restored catalog gets a new name of its own, so that nothing derived from another state of it is taken for current.

Blobs go into the store before the databases move, because a blob too many is a cache and a document too few is a loss.
The store decides about each of them. One that a later deletion of the store covers stays deleted: its document may be
back, and its keys and values are computed anew from the text. Where the store is younger than the backup, the tenant's
epoch is raised to the backup's first, so that the next deletion is newer than every blob that came back.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from retriever.catalog import schema as catalog_schema
from service.access.private import finish_file, new_private_file
from service.errors import AccessError
from service.truth import control_file
from service.truth.archive import PIECE, ArchiveMember, ArchiveTally, Manifest, archive_errors_explained, members
from service.truth.databases import CATALOG, CONTROL, catalogs, databases, gathering, hold, name_anew
from store.blob import Blob
from store.blob_store import BlobStore
from store.errors import BadBlob, StoreError
from store.key import Scope

_NO_CHUNK = "restored"  # an id that no chunk has: those are digests


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did. `untouched`: tenants that the backup does not know, whose catalogs stay.

    `blobs`: how many the store took, had already, knew to be deleted, or had no room for.
    """

    created: float
    tenants: tuple[str, ...]
    untouched: tuple[str, ...]
    blobs: dict[str, int]


def restore(
    file: Path, data: Path, *, force: bool = False, open_store: Callable[[], BlobStore]
) -> RestoreReport:  # fmt: skip
    """Restores a backup. Raises AccessError, with nothing changed. `open_store` is called only where it has blobs."""
    try:
        with file.open("rb") as archive, hold(data):
            there = list(databases(data))
            if there and not force:
                raise AccessError(
                    f"{data} holds {there[0].relative_to(data)} already: name an empty folder, or --force"
                )
            return _restore(archive, file, data=data, open_store=open_store)
    except StoreError:
        raise
    except OSError as error:
        raise AccessError(f"{file} cannot be restored into {data}: {error}") from error


def _restore(archive: BinaryIO, file: Path, *, data: Path, open_store: Callable[[], BlobStore]) -> RestoreReport:
    with gathering(data) as staging:
        with archive_errors_explained(file):
            manifest = _unpack(archive, staging)
            for path in databases(staging):
                _prepare(path)
        before = {path.parent.name for path in catalogs(data)}
        blobs: Counter[str] = Counter()
        if manifest.blobs:
            with open_store() as store, archive_errors_explained(file):
                blobs = _fill(store, archive, manifest=manifest)
    tenants = tuple(manifest.tenants)
    return RestoreReport(manifest.created, tenants, tuple(sorted(before - {*tenants})), dict(blobs))


def _unpack(archive: BinaryIO, staging: Path) -> Manifest:
    """Unpacks the databases into the folder, and checks that the blobs are sound. Returns the manifest."""
    found: dict[str, str] = {}
    tally = ArchiveTally()
    reading = members(archive)
    while True:
        try:
            member = next(reading)
        except StopIteration as end:
            manifest: Manifest = end.value
            break
        if not member.is_database:
            data = member.content.read()
            tally.add(member.name, data)
            if member.is_blob:
                _sound(member.name, data)
        elif member.name in found:
            raise AccessError(f"it holds {member.name} twice")
        else:
            found[member.name] = _unpack_one(member, staging / member.name)
    stated = (manifest.files, manifest.blobs, manifest.nbytes, manifest.packed)
    if stated != (found, tally.blobs, tally.nbytes, tally.digest) or CONTROL not in found:
        raise AccessError("what it holds is not what its manifest tells")
    return manifest


def _unpack_one(member: ArchiveMember, path: Path) -> str:
    """Unpacks one database and returns its digest."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    hasher = blake3()
    with new_private_file(path) as out:
        while piece := member.content.read(PIECE):
            hasher.update(piece)
            out.write(piece)
        finish_file(out)
    return hasher.hexdigest()


def _sound(name: str, data: bytes) -> None:
    """Raises AccessError for a blob that is damaged, or not the one that its name says."""
    try:
        if Blob.parse(data).head.key.text != name.partition("/")[2]:
            raise AccessError(f"{name} is another blob")
    except BadBlob as error:
        raise AccessError(f"{name}: {error}") from error


def _prepare(path: Path) -> None:
    """Checks that a database opens and is of a known version; gives a catalog a name that tells it from what it was."""
    known = control_file.VERSION if path.name == CONTROL else catalog_schema.VERSION
    try:
        with closing(sqlite3.connect(path)) as connection:
            [version] = connection.execute("PRAGMA user_version").fetchone()
            if not 1 <= version <= known:
                raise AccessError(f"{path.name} is of version {version}, this kvweave knows {known}: use the newer")
        if path.name == CATALOG:
            name_anew(path)
    except sqlite3.DatabaseError as error:
        raise AccessError(f"{path.name} is no database of kvweave: {error}") from error


def _fill(store: BlobStore, archive: BinaryIO, *, manifest: Manifest) -> Counter[str]:
    for tenant, epoch in manifest.epochs.items():
        if store.epoch(tenant) < epoch:
            store.delete(Scope(tenant, _NO_CHUNK), epoch=epoch)
    outcomes: Counter[str] = Counter()
    for member in members(archive):
        if member.is_blob:
            outcomes[str(store.put(Blob.parse(member.content.read())))] += 1
    store.flush()
    return outcomes
