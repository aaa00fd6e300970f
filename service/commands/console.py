"""What the commands share on a screen: a console for terminals and pipes, sizes, addresses. Knows no command."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from shutil import get_terminal_size

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

ENDLESS = 10_000  # columns where no terminal ends a line: nothing is cut, and a row is a line
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # how settings and URLs name this machine
UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

plain_table = partial(Table, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; elsewhere as wide as its content, unless COLUMNS says otherwise."""
    found = Console(stderr=stderr, highlight=False)
    if not found.is_terminal:
        found.width = get_terminal_size((ENDLESS, 0)).columns
    return found


def tell(sentence: str, *, err: bool = False, style: str = "") -> None:
    """Prints a sentence: on a terminal broken between words, elsewhere as one line."""
    screen = console(stderr=err)
    if screen.is_terminal:
        screen.print(Text(sentence, style))
    else:
        typer.echo(sentence, err=err)


@contextmanager
def status(doing: str) -> Generator[Callable[[str], None]]:
    """Shows on a terminal what is done just now; the function that it yields changes the text."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda text: None
        return
    with screen.status(doing) as shown:
        yield shown.update


def size(nbytes: float) -> str:
    """Bytes for people; in a unit that keeps it short."""
    for unit, each in UNITS:
        if nbytes >= each:
            return f"{nbytes / each:,.1f} {unit}"
    return many(round(nbytes), "byte")


def lasting(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def address(host: str, port: int) -> str:
    """Where a browser on this machine finds what is bound to that host."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"
