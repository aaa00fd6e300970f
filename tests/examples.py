"""The requests that pages of the documentation show as lines of curl."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_REQUEST = re.compile(r"^(?:ask|curl -s) (.*(?:\n {4}.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    """A request. `path`: with its query; `form`: the fields of a form, where the value of a file begins with `@`.

    Variables stand in it as written.
    """

    method: str
    path: str
    body: object = None
    form: tuple[tuple[str, str], ...] = ()


def examples_in(page: str) -> Iterator[Example]:
    """Those of the blocks of commands, in their order."""
    for block in re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in _REQUEST.findall(block):
            words = shlex.split(line)
            given = {words[at]: words[at + 1] for at in range(1, len(words) - 1) if words[at].startswith("-")}
            fields = (after.split("=", 1) for option, after in pairwise(words) if option == "-F")
            form = tuple((name, value) for name, value in fields)
            body = json.loads(given["-d"]) if "-d" in given else None
            method = given.get("-X") or ("POST" if form or body is not None else "GET")
            yield Example(method, words[0].removeprefix("localhost:8000"), body, form)
