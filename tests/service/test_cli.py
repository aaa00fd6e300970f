"""The command line over a real store in a folder of its own, and what ends it early."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart
from service import cli
from service.settings import SettingsError
from store.blob import Blob
from store.codec.decode import decode
from store.errors import MissReason
from store.reader import BlobReader, read
from store.url import open_store
from tests.service.serving import kvweave_ended
from tests.store.contract import flipped
from tests.store.golden.make import FOLDER, checksum
from tests.store.samples import blob, key


@pytest.fixture
def url(tmp_path: Path) -> str:
    with open_store(f"file://{tmp_path}/store") as store:
        for name in range(3):
            store.put(blob(name))
    return f"file://{tmp_path}/store"


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_stats_counts_blobs(url: str) -> None:
    assert json.loads(run("stats", "--store", url, "--json"))[0]["blobs"] == 3
    assert "object" in run("stats", "--store", url)


def test_a_store_of_two_formats_reads_and_tells_them_apart(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/both"
    older, newer = (Blob.parse((FOLDER / f"{name}.blob").read_bytes()) for name in ("v1-q4", "v2-q8"))
    with open_store(url) as store:
        store.put_all([older, newer])
        for kept in (older, newer):
            found = store.open(kept.head.key)
            assert isinstance(found, BlobReader)
            assert checksum(decode(found)) == checksum(decode(read(kept)))
    rows = json.loads(run("stats", "--models", "--store", url, "--json"))
    assert [(row["codec"], row["format"], row["blobs"]) for row in rows] == [("q4", "1", 1), ("q8", "2", 1)]


def test_verify_fails_for_a_corrupt_blob_once(url: str, tmp_path: Path) -> None:
    path = tmp_path / "store/blobs" / key(1).text
    path.write_bytes(flipped(path.read_bytes(), -1))
    report = json.loads(run("verify", "--store", url, "--json", code=1))
    assert [(row["key"], row["reason"]) for row in report["bad"]] == [(key(1).text, MissReason.CORRUPT)]
    assert "2 blobs" in run("verify", "--store", url)


def test_verify_names_a_document_that_is_damaged(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWEAVE_DATA", str(tmp_path))
    path = tmp_path / "tenants/acme/catalog.sqlite"
    with closing(SqliteCatalog(path)) as catalog, catalog.change() as change:
        change.put([Document("a", (DocumentPart("a badger"),))], collection="c")
    assert json.loads(run("verify", "--store", url, "--json"))["catalogs"] == {"acme": []}
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE chunks SET text = 'a beaver'")
    told = run("verify", "--store", url, code=1)
    assert "document 'a' of tenant 'acme' is damaged: put it in again" in told and "beaver" not in told


def test_gc_takes_a_fingerprint_only_when_named(url: str) -> None:
    assert json.loads(run("gc", "--store", url, "--json"))["fingerprint"] == 0
    assert json.loads(run("gc", "--store", url, "--json", "--fingerprint", "fp"))["fingerprint"] == 3


def test_gc_compacts_an_lmdb_store(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    with open_store(url) as store:
        for name in range(20):
            store.put(blob(name, tokens=600))
        for name in range(20):
            store.discard(key(name))
    assert json.loads(run("gc", "--store", url, "--json", "--compact"))["compacted"] > 100_000


STOPPED = """
import signal, sys
from service.truth import backup
from service import cli
copy, number = backup.copy_database, getattr(signal, sys.argv.pop(1))
backup.copy_database = lambda *files: (copy(*files), signal.raise_signal(number))
cli.main()
"""


@pytest.mark.parametrize(
    ("stop", "start", "status"), [("SIGTERM", (), 143), ("SIGHUP", (), 129), ("SIGHUP", ("nohup",), 0)]
)
def test_an_operators_stop_leaves_nothing_half_done(
    stop: str, start: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWEAVE_DATA", str(tmp_path / "data"))
    run("keys", "create")
    words = [*start, sys.executable, "-c", STOPPED, stop, "backup", str(tmp_path / "b.tar.zst")]
    assert subprocess.run(words, capture_output=True, check=False).returncode == status
    assert {path.name for path in tmp_path.iterdir()} == {"data", *(["b.tar.zst"] if status == 0 else [])}


def test_where_no_letter_of_a_text_can_be_written_its_number_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWEAVE_DATA", str(tmp_path / "data"))
    run("keys", "create", "--note", "for 日本")
    assert "for \\u65e5\\u672c" in kvweave_ended("keys", "list", PYTHONIOENCODING="latin-1").stdout


def test_a_migration_into_what_is_no_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWEAVE_DATA", str(tmp_path / "data"))
    run("keys", "create")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, ["migrate", "postgresql+asyncpg://me:secret@db/kv"])
    assert isinstance(result.exception, SettingsError) and "secret" not in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
