"""Backups that are taken, also while others write, and put back into the same or another folder."""

import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.filter_condition import EVERYTHING
from service.access.principal import Role
from service.errors import AccessError
from service.truth.backup import back_up
from service.truth.control import Quota
from service.truth.databases import hold
from service.truth.restore import RestoreReport, restore
from store.blob_store import BlobStore
from tests.service.truth import folders


def no_store() -> BlobStore:
    raise AssertionError("a backup without blobs asks for no store")


def restored(file: Path, data: Path, *, force: bool = False) -> RestoreReport:
    return restore(file, data, force=force, open_store=no_store)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two tenants with documents, and keys of both."""
    data = tmp_path / "data"
    with closing(folders.opened(data)) as control:
        control.ensure_admin(data / "admin.key")
        control.set_quota("acme", Quota(10, None))
    folders.put(data, "acme", "a", "b", "c")
    folders.put(data, "beta", "b")
    return data


@pytest.fixture
def file(tmp_path: Path, data: Path) -> Path:
    back_up(tmp_path / "backup.tar.zst", data)
    return tmp_path / "backup.tar.zst"


# There and back


def test_what_was_destroyed_is_there_again(tmp_path: Path, data: Path) -> None:
    with closing(folders.opened(data)) as control:
        entry, key = control.create_key("acme", Role.WRITE, bound={"team": "law"})
        before = folders.told(data), control.keys()
    report = back_up(tmp_path / "backup", data)
    assert report.tenants == ("acme", "beta") and report.nbytes == (tmp_path / "backup").stat().st_size
    shutil.rmtree(data)
    done = restored(tmp_path / "backup", data)
    assert (done.tenants, done.untouched, done.blobs, done.created) == (report.tenants, (), {}, report.created)
    with closing(folders.opened(data)) as control:
        assert (folders.told(data), control.keys()) == before and control.quota("acme") == Quota(10, None)
        found = control.identify(key)
        assert found and found.key_id == entry.id
    folders.put(data, "acme", "later")  # it is a catalog that can be changed, as before


def test_what_came_after_the_backup_is_undone_also_what_only_the_log_knew(data: Path, file: Path) -> None:
    before = folders.told(data)
    with closing(folders.opened(data)) as control:
        _, key = control.create_key("acme", Role.READ)
    held = SqliteCatalog(folders.catalog_file(data, "acme"))
    with held.change() as change:
        change.delete(["a"])
    kept = folders.contents(data)
    held.close()
    for name, content in kept.items():  # as a kill leaves it
        (data / name).write_bytes(content)
    assert any(name.endswith("-wal") and content for name, content in kept.items())
    restored(file, data, force=True)
    assert folders.told(data) == before
    with closing(folders.opened(data)) as control:
        assert control.identify(key) is None
        assert control.identify((data / "admin.key").read_text().strip())


def test_a_restored_catalog_is_another_one_without_its_derived_files(data: Path, file: Path) -> None:
    names = [folders.catalog_name(data, tenant) for tenant in ("acme", "beta")]
    folder = data / "tenants/acme"
    derived = [folder / "vectors-0123.json", folder / "index" / "vectors-0123-4567.faiss"]
    (folder / "index").mkdir()
    for path in (*derived, folder / "notes.txt"):
        path.write_text("x")
    restored(file, data, force=True)
    again = [folders.catalog_name(data, tenant) for tenant in ("acme", "beta")]
    assert len({*names, *again}) == 4 and all(len(name) == 16 for name in again)
    assert not any(path.exists() for path in derived) and (folder / "notes.txt").exists()


def test_tenants_that_a_backup_does_not_know_are_left_and_named(data: Path, file: Path) -> None:
    folders.put(data, "gamma", "x")
    before = folders.told(data)
    assert restored(file, data, force=True).untouched == ("gamma",)
    assert folders.told(data) == before


def test_everything_restored_and_the_archive_are_the_owners_alone(tmp_path: Path, file: Path) -> None:
    data = tmp_path / "new"
    restored(file, data)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for path in (data, *data.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert {path.name for path in data.iterdir()} == {"control.sqlite", "tenants", "server.lock"}


# While others write


def test_a_backup_beside_a_writer_is_the_catalog_of_one_moment(tmp_path: Path, data: Path) -> None:
    found: list[int] = []
    with hold(data), folders.child("write", data, "busy") as (_, says):
        for turn in range(6):
            acknowledged = [int(says.readline()) for _ in range(5)][-1]
            back_up(tmp_path / "backup", data, force=True)
            copy = tmp_path / f"copy{turn}"
            restored(tmp_path / "backup", copy)
            found.append(state_of(copy))
            assert found[-1] >= acknowledged
    assert found == sorted(set(found))


def state_of(data: Path) -> int:
    """The writer's last number; all that was written with it is there, and nothing of the next."""
    with closing(sqlite3.connect(folders.catalog_file(data, "busy"))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.execute("INSERT INTO terms (terms) VALUES ('integrity-check')")
    catalog = SqliteCatalog(folders.catalog_file(data, "busy"))
    with catalog.view() as view:
        entries = {entry.id: entry for entry in view.documents(EVERYTHING, limit=10_000)}
        number = len(entries) - 2
        assert view.state().changes == number
        assert {entries[name].metadata["number"] for name in ("a", "z", f"m{number:06}")} == {number}
        for name in ("a", "z", f"m{number:06}"):
            [passage] = view.passages(name)
            assert passage.text == folders.text((name, number))
            assert passage.id in {hit.passage.id for hit in view.lexical(name, EVERYTHING, limit=10_000)}
    catalog.close()
    return number


# What is refused


def test_a_folder_with_anything_in_it_is_replaced_only_by_force(tmp_path: Path, data: Path, file: Path) -> None:
    fresh = tmp_path / "fresh"
    folders.opened(fresh).close()
    bare = tmp_path / "bare"
    folders.put(bare, "acme", "other")
    for folder in (data, fresh, bare):
        before = folders.contents(folder)
        with pytest.raises(AccessError, match="--force"):
            restored(file, folder)
        assert folders.contents(folder) == before
        restored(file, folder, force=True)
        assert folders.told(folder) == folders.told(data)


def test_a_folder_that_is_in_use_is_not_restored_into_but_backed_up(tmp_path: Path, data: Path, file: Path) -> None:
    before = folders.contents(data)
    with folders.child("hold", data) as (_, says):
        assert says.readline() == "held\n"
        with pytest.raises(AccessError, match="in use by another service"):
            restored(file, data, force=True)
        assert folders.contents(data) == before
        assert back_up(tmp_path / "other", data).tenants == ("acme", "beta")


def test_a_backup_of_nothing_or_of_a_damaged_catalog_is_refused_and_the_older_one_stays(
    tmp_path: Path, data: Path, file: Path
) -> None:
    with pytest.raises(AccessError, match="nothing to back up"):
        back_up(file, tmp_path / "nowhere", force=True)
    before = file.read_bytes()
    path = folders.catalog_file(data, "beta")
    content = path.read_bytes()
    for damage in (b"\xff" * len(content), content[: 3 * 4096] + b"\xff" * 4096 * 3 + content[6 * 4096 :]):
        path.write_bytes(damage)
        with pytest.raises(AccessError, match=f"{path.name}.*restore an older"):
            back_up(file, data, force=True)
    assert file.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup.tar.zst", "data"]


def test_a_file_that_is_there_is_replaced_on_demand_alone(data: Path, file: Path) -> None:
    before = file.read_bytes()
    folders.put(data, "acme", "later")
    with pytest.raises(AccessError, match=r"backup\.tar\.zst is there: .* --force"):
        back_up(file, data)
    assert file.read_bytes() == before
    back_up(file, data, force=True)
    assert file.read_bytes() != before


def test_a_backup_that_cannot_be_written_says_so(tmp_path: Path, data: Path) -> None:
    with pytest.raises(AccessError, match="cannot be written"):
        back_up(tmp_path / "nowhere" / "backup", data)
    with pytest.raises(AccessError, match="cannot be restored"):
        restored(tmp_path / "nowhere" / "backup", tmp_path / "new")


def test_a_disk_that_fills_up_while_restoring_changes_nothing(
    data: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    before = folders.contents(data)
    with monkeypatch.context() as patch:
        patch.setattr("service.truth.restore.finish_file", full)
        with pytest.raises(AccessError, match="No space left"):
            restored(file, data, force=True)
    assert folders.contents(data) == before
    restored(file, data, force=True)


def test_nothing_is_backed_up_from_the_middle_of_a_restore(tmp_path: Path, data: Path) -> None:
    (data / "restoring").mkdir()
    with pytest.raises(AccessError, match="was cut off"):
        back_up(tmp_path / "backup", data)
    with hold(data):
        pass
    assert back_up(tmp_path / "backup", data).tenants == ("acme", "beta")
