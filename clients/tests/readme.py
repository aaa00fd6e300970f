"""Runs the Python examples of a README as they stand, against a service. Knows nothing of what they show."""

import ast
import asyncio
import inspect
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType
from typing import Protocol

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


def _blocks(readme: Path, service: Service) -> Iterator[CodeType]:
    text = readme.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        code = KEY.sub(service.key, block[1].replace(URL, service.base_url))
        above = "\n" * text.count("\n", 0, block.start(1))
        yield compile(above + code, str(readme), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
