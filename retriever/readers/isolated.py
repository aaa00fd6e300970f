"""Has a parser that may hang, crash or swell do its work in another process. Knows what it may use, and no format.

A parser is a module run with `-m` that calls `child.serve`. Each content has a process of its own, forked from one that
has the parser loaded, and what it found comes in one JSON message. One that dies or does not finish is an
`UnreadableFile` that names the limit.
"""

import signal
import subprocess
from pathlib import Path

import msgspec

from retriever.readers import keepers
from retriever.readers.child import Request
from retriever.readers.reading import MAX_BYTES, UnreadableFile, megabytes

MEMORY_BYTES = 2 << 30  # of address space
CPU_S = 120
WALL_S = 300.0

INSTALL = "pip install 'kvweave[readers]'"

_ROOT = Path(__file__).resolve().parent.parent.parent  # where this package is found, installed or not
_MAX_SAID = 200  # characters of a parser's last words


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """What a parser found. `pages`: the texts, one for a format without pages; `problems`: sentences."""

    pages: list[str]
    problems: list[str]
    title: str = ""
    author: str = ""


def ask(parser: str, content: bytes) -> Answer:
    """What the module `parser` makes of the content."""
    request = Request(len(content), MEMORY_BYTES, CPU_S, MAX_BYTES)
    try:
        with keepers.lent(parser, _ROOT) as keeper:
            return msgspec.json.decode(keeper.answer(request, content, within_s=WALL_S), type=Answer)
    except keepers.Ended as ended:
        if ended.is_stale:  # an idle keeper ended just before
            return ask(parser, content)
        raise UnreadableFile(_why(ended.code, ended.complaint)) from None
    except OSError as error:
        raise UnreadableFile(f"no process could be started for its parser ({error}): try again") from error
    except subprocess.TimeoutExpired:
        raise UnreadableFile(f"its parser did not finish within {WALL_S:g} s: save it anew, or split it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"its parser said what nobody understands ({error}): save it anew") from None


def _why(code: int, complaint: bytes) -> str:
    if code == -signal.SIGXCPU:
        return f"its parser took more than {CPU_S} s of processor time: save it anew, or split it"
    how = f"ended with {signal.Signals(-code).name}" if code < 0 else "gave up"
    lines = complaint.decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
    if last.startswith("ModuleNotFoundError"):
        return f"what reads it is not installed ({last}): {INSTALL}"
    return (
        f"its parser {how} within {megabytes(MEMORY_BYTES)} of memory ({last[:_MAX_SAID]}): save it anew, or split it"
    )
