"""The commands, as somebody types them."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from service.commands.backup import backup, restore
from service.commands.keys import keys
from store.url import open_store
from tests.service.truth.folders import opened, put, told
from tests.service.truth.test_backup_blobs import blob_of

app = typer.Typer(pretty_exceptions_enable=False)
app.add_typer(keys)
app.command()(backup)
app.command()(restore)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVWEAVE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("KVWEAVE_STORE", f"file://{tmp_path}/store")
    return tmp_path / "data"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_key_is_printed_once_listed_without_its_secret_and_revoked(data: Path) -> None:
    key = run("keys", "create").strip()
    options = ("--tenant", "acme", "--role", "write", "--per-minute", 60, "--note", "for [red]Anna")
    made = json.loads(run("keys", "create", *options, "--filter", '{"team": "law"}', "--json"))
    with closing(opened(data)) as control:
        assert control.identify(key) and control.identify(made["key"])
        listed = run("keys", "list")
        assert "for [red]Anna" in listed and made["id"] in listed and key not in listed
        assert key not in run("keys", "list", "--json") and made["key"] not in run("keys", "list", "--json")
        [row] = json.loads(run("keys", "list", "--tenant", "acme", "--json"))
        assert row == {name: value for name, value in made.items() if name != "key"}
        assert (row["role"], row["filter"], row["per_minute"]) == ("write", {"team": "law"}, 60)
        assert run("keys", "revoke", row["id"]) == f"revoked {row['id']}\n"
        assert control.identify(made["key"]) is None and control.identify(key)


def test_a_quota_is_shown_set_and_lifted(data: Path) -> None:
    assert run("keys", "quota", "acme") == "acme: documents no limit, chunks no limit\n"
    assert run("keys", "quota", "acme", "--documents", 5000, "--chunks", 7) == "acme: documents 5,000, chunks 7\n"
    lifted = json.loads(run("keys", "quota", "acme", "--documents", 0, "--json"))
    assert lifted == {"tenant": "acme", "documents": None, "chunks": 7}


def test_documents_and_caches_go_into_a_file_and_come_back(data: Path, tmp_path: Path) -> None:
    run("keys", "create")
    put(data, "acme", "a", "b")
    before, file = told(data), tmp_path / "backup.tar.zst"
    with open_store(f"file://{tmp_path}/store") as store:
        store.put(blob_of("acme", "a"))
    report = json.loads(run("backup", file, "--blobs", "--json"))
    assert (report["tenants"], report["blobs"], report["nbytes"]) == (["acme"], 1, file.stat().st_size)
    assert "1 catalog, 0 blobs" in run("backup", tmp_path / "bare")
    put(data, "acme", "later")
    put(data, "beta", "later")
    result = CliRunner().invoke(app, ["restore", str(file), "--force"], catch_exceptions=False)
    assert "restored 1 catalog " in result.stdout and "blobs: 1 present" in result.stdout
    assert "left alone, for the backup does not know them: beta" in result.stderr
    assert told(data)["acme"] == before["acme"]
    assert json.loads(run("restore", tmp_path / "bare", "--force", "--json"))["blobs"] == {}
