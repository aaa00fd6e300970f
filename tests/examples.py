"""The requests that pages of the documentation show as lines of curl."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_REQUEST = re.compile(r"^(?:ask|curl -s) (.*(?:\n {4}.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    """A request. `path`: with its query; `files`: names of files that are sent. Variables stand in it as written."""

    method: str
    path: str
    body: object = None
    files: tuple[str, ...] = ()


def examples_in(page: str) -> Iterator[Example]:
    """Those of the blocks of commands, in their order."""
    for block in re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in _REQUEST.findall(block):
            words = shlex.split(line)
            given = {words[at]: words[at + 1] for at in range(1, len(words) - 1) if words[at].startswith("-")}
            files = (given["-F"].removeprefix("files=@"),) if "-F" in given else ()
            body = json.loads(given["-d"]) if "-d" in given else None
            method = given.get("-X") or ("POST" if files or body is not None else "GET")
            yield Example(method, words[0].removeprefix("localhost:8000"), body, files)
