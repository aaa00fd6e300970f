"""Runs the Python examples of a README, and scripts, as they stand, against a service. Knows not what they show."""

import ast
import asyncio
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType
from typing import Protocol

from kvweave_client import Client

URL = "http://localhost:8000"
KEY = re.compile(r"kvw_[\w.…]+")
PRINTED = "__printed__"  # the name under which a namespace holds what its block printed

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Service(Protocol):
    """What the examples talk to, in the place of `http://localhost:8000` and of any key `kvw_…`."""

    @property
    def base_url(self) -> str: ...

    @property
    def key(self) -> str: ...


def run_examples(readme: Path, service: Service) -> list[dict[str, object]]:
    """Runs each ```python block in its order; one sees what those before it defined. `await` may stand anywhere.

    Returns a copy of the names after each block, with its output as `__printed__`. An error's trace shows the line of
    the README. Paths are relative to the current folder: chdir into one that holds the files that examples read.
    """
    names: dict[str, object] = {"__name__": "readme"}
    after: list[dict[str, object]] = []
    with asyncio.Runner() as runner:
        for code in _blocks(readme, service):
            with redirect_stdout(io.StringIO()) as printed:
                waiting = eval(code, names)  # None, or a coroutine where the block awaits
                if inspect.iscoroutine(waiting):
                    runner.run(waiting)
            after.append({**names, PRINTED: printed.getvalue()})
    assert after, f"{readme} holds no ```python block"
    return after


def run_script(script: Path, service: Service) -> list[str]:
    """Runs an example against the service, and returns the lines that it prints. It leaves no collection behind."""
    command = [sys.executable, str(script), "--url", service.base_url, "--key", service.key]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    with Client(service.base_url, service.key) as client:
        assert not any(each.name.startswith("example-") for each in client.collections())
    return ended.stdout.splitlines()


def _blocks(readme: Path, service: Service) -> Iterator[CodeType]:
    text = readme.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        code = KEY.sub(service.key, block[1].replace(URL, service.base_url))
        above = "\n" * text.count("\n", 0, block.start(1))
        yield compile(above + code, str(readme), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
