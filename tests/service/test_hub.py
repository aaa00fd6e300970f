"""Hub names where no hub answers: one line within seconds, before anything listens, or what was fetched before."""

import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from service import cli
from service.model.hub import hub_checkpoint
from service.settings import PREFIX, SettingsError
from tests.servers.free_port import free_port

NAME = "somebody/some-model"


@pytest.fixture(autouse=True)
def unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_checkpoint.cache_clear()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def test_a_service_ends_with_one_line_before_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"DATA": str(tmp_path / "data"), "MODEL": NAME, "PORT": "0"}.items():
        monkeypatch.setenv(f"{PREFIX}{name}", value)
    monkeypatch.setattr("service.telemetry.logs.setup_logs", lambda level, style: None)  # it outlives what is captured
    monkeypatch.setattr(sys, "argv", ["kvweave", "serve"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capfd.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    [line] = told.err.splitlines()
    assert line.startswith(f"kvweave: model (KVWEAVE_MODEL): '{NAME}'")
    assert constants.ENDPOINT in line and "HF_HUB_OFFLINE" not in line


def test_what_was_fetched_before_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SettingsError, match="was not fetched before"):
        hub_checkpoint(NAME, setting="model")
    kept, commit = tmp_path / "models--somebody--some-model", "0" * 40
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    (kept / "snapshots" / commit).mkdir(parents=True)
    (kept / "snapshots" / commit / "config.json").write_text("{}")
    assert hub_checkpoint(NAME, setting="model") == str(kept / "snapshots" / commit)


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./model", "a/b/c"])
def test_what_is_no_name_of_the_hub_is_asked_of_nobody(name: str) -> None:
    with pytest.raises(SettingsError, match=f"'{name}' is no folder here, and no name of the hub"):
        hub_checkpoint(name, setting="model")


def test_a_folder_is_asked_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    (tmp_path / NAME / "config.json").write_text("{}")
    assert hub_checkpoint(NAME, setting="model") == NAME
