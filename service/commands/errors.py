"""What goes wrong, as one line for people: the value and the remedy. Knows kinds of errors, and no command."""

import errno
import sqlite3

import typer

LETTERS = 600  # of a line at most

REMEDIES = {
    errno.EACCES: "check its owner and mode, or run as the user that it belongs to",
    errno.EPERM: "check its owner and mode, or run as the user that it belongs to",
    errno.EROFS: "it lies on a medium that takes no writes: name another place",
    errno.ENOSPC: "free some space and run again; what was stored before stays",
    errno.EDQUOT: "free some space and run again; what was stored before stays",
    errno.ENOENT: "name one that exists",
    errno.ENOTDIR: "name a folder",
    errno.EISDIR: "name a file",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EADDRINUSE: "stop what listens there, or choose another --port",
}


def expected() -> tuple[type[Exception], ...]:
    """What may go wrong outside of this code. Loaded where something did, so that help and completion stay quick."""
    from httpx import HTTPError, InvalidURL

    from service.errors import OURS
    from service.settings import SettingsError

    return (*OURS, SettingsError, HTTPError, InvalidURL, OSError, UnicodeError, sqlite3.Error)


def sentence(error: Exception) -> str:
    """An error as one line. Of several lines the first says what is wrong, the others are a library's own advice."""
    match error:
        case OSError(errno=int() as number, strerror=str() as reason):
            text = _system(error, reason, remedy=REMEDIES.get(number, ""))
        case sqlite3.Error():
            text = f"a database in the data folder does not work: {error}: check the disk, or restore a backup"
        case UnicodeError():
            text = f"a text is not what its encoding promises ({error}): write it as UTF-8"
        case _:
            text = str(error) or type(error).__name__
    line = " ".join(text.strip().partition("\n")[0].split())
    return line if len(line) <= LETTERS else f"{line[: LETTERS - 1]}…"


def _system(error: OSError, reason: str, *, remedy: str) -> str:
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{reason[:1].lower()}{reason[1:]}{remedy and ': '}{remedy}"


def usage(error: typer.TyperException) -> str:
    """A line for a command line that is not understood; empty where the help was shown in its place."""
    message = " ".join(error.format_message().replace("Value error, ", "").split()).removesuffix(".")
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context else "kvweave"
    return message and f"{message[0].lower()}{message[1:]}: see {command} --help"
