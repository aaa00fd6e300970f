"""What `kvweave doctor` and `kvweave config` say of settings that work, that could be better, and that do not work."""

import json
import socket
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from service import cli
from tests.servers.free_port import free_port

HAS_IPV6 = socket.has_dualstack_ipv6()  # it tries


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVWEAVE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("KVWEAVE_PORT", str(free_port()))
    return tmp_path


def found(command: str, *, code: int = 0) -> list[dict[str, object]]:
    result = CliRunner().invoke(cli.app, [*command.split(), "--json"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return cast(list[dict[str, object]], json.loads(result.stdout))


def told(command: str, *, code: int = 0) -> dict[str, tuple[str, str]]:
    return {str(row["what"]): (str(row["state"]), str(row["text"])) for row in found(command, code=code)}


def test_a_new_machine_is_well_and_nothing_is_made(folder: Path) -> None:
    rows = told("doctor")
    assert [rows[what][0] for what in rows] == ["ok"] * 6 + ["note"]
    assert "made at the first start" in rows["data"][1] and "made at the first start" in rows["store"][1]
    assert "passes its checks" in rows["model"][1] and "KVWEAVE_EMBEDDER" in rows["embedder"][1]
    assert list(folder.iterdir()) == []


def test_what_does_not_work_fails_with_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("KVWEAVE_DEVICE", "cuda:77")
    monkeypatch.setenv("KVWEAVE_STORE", "lmdb:///dev/null/store")
    monkeypatch.setenv("KVWEAVE_EMBEDDER", str(folder))
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        monkeypatch.setenv("KVWEAVE_PORT", str(listening.getsockname()[1]))
        rows = told(f"doctor --model {folder}/nope", code=1)
    assert {what for what, (state, _) in rows.items() if state == "fails"} == {"device", "store", "model", "embedder"}
    assert rows["port"][0] == "note" and "--port" in rows["port"][1]
    assert "is no folder here" in rows["model"][1] and "holds no config.json" in rows["embedder"][1]


@pytest.mark.parametrize(
    ("host", "state", "words"),
    [
        pytest.param("::1", "ok", "is free", marks=pytest.mark.skipif(not HAS_IPV6, reason="no IPv6 here")),
        ("192.0.2.1", "fails", "cannot be bound"),
    ],
)
def test_a_host_is_free_where_a_service_can_bind_it(
    host: str, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWEAVE_HOST", host)
    row = told("doctor --quick", code=int(state == "fails"))["port"]
    assert row[0] == state and words in row[1]


def test_a_database_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWEAVE_DATA", f"postgresql://me:hidden@127.0.0.1:{free_port()}/db")
    rows = told("doctor --quick", code=1)
    assert rows["data"][0] == "fails" and "hidden" not in str(rows) and rows.keys().isdisjoint({"model", "embedder"})


def test_settings_are_shown_with_their_origin_and_without_secrets(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "k.toml").write_text("top_k = 7\nport = 1\nweights = {acme = 2.0}\n")
    given = {
        "KVWEAVE_CONFIG": str(folder / "k.toml"),
        "KVWEAVE_DATA": "postgresql://me:hidden@host/db?password=hidden&sslmode=require#/cache",
        "KVWEAVE_STORE": "tiered:mem://|s3://bucket?access_key=hidden&secret_key=hidden&session_token=hidden",
        "KVWEAVE_GENERATOR": "http://key:hidden@host:8000/v1?fallback=own#model",
        "KVWEAVE_EMBEDDER_KEY": "hidden",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    rows = found("config")
    values = {row["setting"]: row["value"] for row in rows}
    places = {row["setting"]: row["from"] for row in rows}
    assert "hidden" not in str(rows)
    assert values["data"] == "postgresql://me:*****@host/db?password=*****&sslmode=require#/cache"
    assert values["store"] == "tiered:mem://|s3://bucket?access_key=*****&secret_key=*****&session_token=*****"
    assert values["generator"] == "http://host:8000/v1?fallback=own#model"
    assert (values["top_k"], values["weights"]) == (7, {"acme": 2.0})
    assert [places[name] for name in ("top_k", "port", "codec")] == [given["KVWEAVE_CONFIG"], "KVWEAVE_PORT", "default"]


def test_a_setting_with_brackets_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVWEAVE_MODEL", "/models/[new]/[/q4]")
    assert "/models/[new]/[/q4]" in CliRunner().invoke(cli.app, ["config"], catch_exceptions=False).stdout


def test_each_decoder_is_told_with_its_reason() -> None:
    rows = {
        name: str(row["it is"]) for row in found("doctor --decoders") for name in cast(list[str], row["model_type"])
    }
    assert rows["qwen3_5_text"] == "served" and rows["qwen3_vl"] == "served for text"
    assert rows["deepseek_v32"].startswith("refused") and "sparse attention" in rows["deepseek_v32"]
    shown = CliRunner().invoke(cli.app, ["doctor", "--decoders"], catch_exceptions=False)
    assert "qwen3_next" in shown.stdout
