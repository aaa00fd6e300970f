"""Archives that somebody, or a disk, has changed: refused, with nothing changed."""

import io
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from blake3 import blake3

from retriever.catalog import schema as catalog_schema
from service.errors import AccessError
from service.truth.backup import back_up
from service.truth.restore import restore
from store.url import open_store
from tests.service.truth.archives import Parts, member, put_together, take_apart
from tests.service.truth.folders import contents, opened, put, told
from tests.service.truth.test_backup_blobs import blob_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder, and a backup of it with blobs."""
    folder = tmp_path_factory.mktemp("tampered")
    opened(folder / "data").close()
    put(folder / "data", "acme", "a", "b")
    with open_store(f"file://{folder}/store") as store:
        for name in ("a", "b"):
            store.put(blob_of("acme", name))
        back_up(folder / "backup", folder / "data", store=store)
    return folder


def tried(folder: Path, tampered: Path, tmp_path: Path) -> str | None:
    """Why it is refused, and then neither folder nor store knows that anything was tried; None where it is not."""
    data = tmp_path / "data"
    if not data.exists():
        shutil.copytree(folder / "data", data)
    before = contents(tmp_path)
    try:
        restore(tampered, data, force=True, open_store=lambda: open_store(f"file://{tmp_path}/store"))
    except AccessError as error:
        assert contents(tmp_path) == before
        return str(error)
    return None


def refused(folder: Path, tampered: Path, tmp_path: Path) -> str:
    why = tried(folder, tampered, tmp_path)
    assert why is not None
    return why


def test_an_archive_with_a_flipped_bit_is_refused_or_says_the_same(folder: Path, tmp_path: Path) -> None:
    content = (folder / "backup").read_bytes()
    random, tampered, same = Random(3), tmp_path / "tampered", 0
    for place in [*range(12), *random.sample(range(12, len(content)), 50), len(content) - 1]:
        changed = bytearray(content)
        changed[place] ^= 1 << random.randrange(8)
        tampered.write_bytes(changed)
        if tried(folder, tampered, tmp_path) is None:  # what says how to read the stream can be said in two ways
            same += 1
            assert told(tmp_path / "data") == told(folder / "data")
    assert same <= 5


def test_an_archive_that_was_cut_off_is_refused(folder: Path, tmp_path: Path) -> None:
    content = (folder / "backup").read_bytes()
    tampered = tmp_path / "tampered"
    for length in (0, 1, 100, len(content) // 2, len(content) - 200):
        tampered.write_bytes(content[:length])
        assert "no backup, or a damaged one" in refused(folder, tampered, tmp_path)


def named(parts: Parts, name: str) -> int:
    return next(at for at, (info, _) in enumerate(parts) if info.name.startswith(name))


def edited(parts: Parts, name: str, *, edit: Callable[[bytes], bytes]) -> Parts:
    at = named(parts, name)
    return [*parts[:at], (parts[at][0], edit(parts[at][1])), *parts[at + 1 :]]


def manifest_says(parts: Parts, **fields: object) -> Parts:
    return edited(parts, "manifest", edit=lambda data: json.dumps({**json.loads(data), **fields}).encode())


def replaced(parts: Parts, name: str, *, content: bytes) -> Parts:
    """With a manifest that agrees."""
    files = {**json.loads(parts[-1][1])["files"], name: blake3(content).hexdigest()}
    return manifest_says(edited(parts, name, edit=lambda _: content), files=files)


def newer(database: bytes) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(database)
        connection.execute(f"PRAGMA user_version = {catalog_schema.VERSION + 1}")
        return connection.serialize()


def without(parts: Parts, name: str) -> Parts:
    at = named(parts, name)
    return [*parts[:at], *parts[at + 1 :]]


CATALOG = "tenants/acme/catalog.sqlite"
CHANGES: dict[str, tuple[Callable[[Parts], Parts], str]] = {
    "another page": (lambda parts: edited(parts, CATALOG, edit=lambda data: data[:-1] + b"\x01"), "manifest tells"),
    "no control": (lambda parts: without(parts, "control"), "manifest tells"),
    "a blob less": (lambda parts: without(parts, "blobs/"), "manifest tells"),
    "blobs in another order": (lambda parts: [*parts[:-3], parts[-2], parts[-3], parts[-1]], "manifest tells"),
    "a damaged blob": (lambda parts: edited(parts, "blobs/", edit=lambda data: data[:-1] + b"\x77"), "corrupt"),
    "another's blob": (lambda parts: edited(parts, "blobs/", edit=lambda _: parts[-2][1]), "is another blob"),
    "a catalog twice": (lambda parts: [*parts[: named(parts, CATALOG) + 1], parts[named(parts, CATALOG)]], "twice"),
    "no manifest": (lambda parts: parts[:-1], "no manifest"),
    "more behind it": (lambda parts: [*parts, parts[0]], "behind the manifest"),
    "two manifests": (lambda parts: [*parts, parts[-1]], "behind the manifest"),
    "no JSON": (lambda parts: edited(parts, "manifest", edit=lambda _: b"{"), "does not parse"),
    "an unknown field": (lambda parts: manifest_says(parts, more=1), "does not parse"),
    "a newer format": (lambda parts: manifest_says(parts, format=2), "use the newer"),
    "a newer catalog": (
        lambda parts: replaced(parts, CATALOG, content=newer(parts[named(parts, CATALOG)][1])),
        "newer",
    ),
    "no database": (lambda parts: replaced(parts, CATALOG, content=b"x" * 5000), "no database"),
    "another database": (lambda parts: replaced(parts, CATALOG, content=b""), "of version 0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_archive_that_disagrees_with_itself_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    change, message = CHANGES[name]
    tampered = tmp_path / "tampered"
    put_together(tampered, change(take_apart(folder / "backup")))
    assert message in refused(folder, tampered, tmp_path)


NAMES = (
    *("../evil", "/etc/evil", "tenants/../catalog.sqlite", "tenants/../../evil/catalog.sqlite", "admin.key"),
    *("tenants/Acme/catalog.sqlite", "tenants/a/b/catalog.sqlite", "tenants//catalog.sqlite", "control.sqlite-wal"),
    *("./control.sqlite", "tenants/a\\b/catalog.sqlite", "tenants/acme/vectors-1.json", "server.lock", "x\udcff"),
)


KINDS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)


def test_a_member_with_a_name_of_its_own_is_refused(folder: Path, tmp_path: Path) -> None:
    parts = take_apart(folder / "backup")
    tampered = tmp_path / "below" / "tampered"
    tampered.parent.mkdir()
    for name in NAMES:
        put_together(tampered, [*parts[:-1], (member(name), b"evil"), parts[-1]])
        assert "which no backup of kvweave does" in refused(folder, tampered, tampered.parent), name
    assert not list(tmp_path.rglob("evil"))


def test_a_member_that_is_no_plain_file_is_refused(folder: Path, tmp_path: Path) -> None:
    parts = take_apart(folder / "backup")
    tampered = tmp_path / "tampered"
    for kind in KINDS:
        link = member("tenants/evil/catalog.sqlite", kind=kind, target="../../../etc/passwd")
        put_together(tampered, [(link, b""), *parts])
        assert "which no backup of kvweave does" in refused(folder, tampered, tmp_path), kind


def test_any_other_file_is_no_backup(folder: Path, tmp_path: Path) -> None:
    tampered = tmp_path / "tampered"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.addfile(member("control.sqlite"))
    for content in (b"hello", plain.getvalue(), (folder / "data/control.sqlite").read_bytes()):
        tampered.write_bytes(content)
        assert "is no backup, or a damaged one" in refused(folder, tampered, tmp_path)
    put_together(tampered, [])
    assert "no manifest" in refused(folder, tampered, tmp_path)
