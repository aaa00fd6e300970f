"""The files that containers are made and run from, as data. Knows no engine and no cluster."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from service.cli import app
from service.settings import CONFIG, PREFIX, Settings, load_settings
from store.url import open_store

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "service" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SETTINGS = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
OUR_IMAGE = "kvweave:"

Plan = dict[str, Any]


def documents(path: Path) -> list[Plan]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def document(path: Path) -> Plan:
    (found,) = documents(path)
    return found


def ours(environment: Mapping[str, object]) -> set[str]:
    """The names that the service takes for settings."""
    return {name for name in environment if name.startswith(PREFIX)}


def is_pinned(image: str) -> bool:
    """Whether it has a tag of a version: two numbers at least, and not a word that moves. A digest may follow."""
    return re.fullmatch(r"[\w./-]+:[a-z]?\d+(\.\d+)+[\w.-]*(@sha256:[0-9a-f]{64})?", image) is not None


def settings_of(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the service makes of it. Raises what would stop its start."""
    for name in (*SETTINGS, CONFIG):
        monkeypatch.delenv(name, raising=False)
    for name in ours(environment):
        monkeypatch.setenv(name, environment[name])
    return load_settings()


def open_below(url: str, folder: Path) -> None:
    """Open the store that this URL names, with its folders below another one. Raises where it names none."""
    open_store(url.replace(":///", f"://{folder}/")).close()


def parse(arguments: list[str]) -> None:
    """Let the command line read this, and run nothing. Raises where it knows no such command or option."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context(command.name, list(arguments))


def walk(plan: object) -> Iterator[tuple[str, object]]:
    """All keys with their values, at any depth."""
    if isinstance(plan, dict):
        for key, value in plan.items():
            yield str(key), value
            yield from walk(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from walk(value)
