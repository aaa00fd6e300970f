"""The inside of an isolated parser: a keeper that has it loaded, and a fork of the keeper for each content.

It knows no format, and imports nothing but the standard library, so that it starts as fast as its parser does.

A content comes on standard input after a `Request`. The keeper says a space when it takes one up, its fork says the
message, the keeper says the end of the line when the fork has ended well. The keeper ends with a fork that failed, with
its standard input, and when nothing came for as many seconds as its argument says.
"""

import ctypes
import json
import logging
import os
import resource
import select
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

FORM = struct.Struct("!4Q")
BY_SIGNAL = 128  # a keeper ends with this and the number of the signal that ended its fork, as shells do

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Request(NamedTuple):
    """What stands in `FORM` before a content. The limits are those of the process that parses it."""

    length: int
    memory_bytes: int
    cpu_s: int
    text_characters: int


@dataclass(frozen=True, slots=True)
class Found:
    """The message; `isolated.Answer` reads it."""

    pages: Sequence[str] = ()
    problems: list[str] = field(default_factory=list[str])
    title: str = ""
    author: str = ""


def serve(parse: Callable[[bytes], Found]) -> None:
    """Answer with what `parse` finds. What it raises ends the process; the last line says what it was."""
    logging.disable()
    out = os.dup(1)
    os.dup2(2, 1)  # what a parser prints is no answer
    request = _fork_for_each(out, float(sys.argv[1]))
    _limit(request)
    try:
        message = _message(parse(sys.stdin.buffer.read(request.length)), request.text_characters)
    except MemoryError:
        message = _refusal(f"its parser needs more than {request.memory_bytes >> 20:,} MiB of memory: split it")
    except RecursionError:
        message = _refusal("it is nested deeper than its parser can follow: save it anew")
    with os.fdopen(out, "wb") as said:
        said.write(message)
    os._exit(0)  # the memory goes at once, not object by object


def _fork_for_each(out: int, idle_s: float) -> Request:
    """Returns in a new process for each content, and never in the keeper."""
    keeper = os.getpid()
    while select.select([0], [], [], idle_s)[0] and (request := _request()):
        os.write(out, b" ")
        over, held = os.pipe()  # the fork holds one end for as long as it lives
        pid = os.fork()
        if not pid:
            os.close(over)
            _end_with(keeper)
            return request
        os.close(held)
        _await(pid, over)
        os.close(over)
        unread = select.select([0], [], [], 0)[0]
        os.write(out, b"\n")
        if unread:  # the rest of a content that the fork refused, or the end
            break
    sys.exit()


def _request() -> Request | None:
    """The next one, None at the end of the input. Reads not a byte of the content, which is the fork's."""
    form = b""
    while len(form) < FORM.size:
        more = os.read(0, FORM.size - len(form))
        if not more:
            return None
        form += more
    return Request._make(FORM.unpack(form))


def _await(pid: int, over: int) -> None:
    """Until the fork has ended well. One that fails takes the keeper with it, and so does the end of the input."""
    ends = select.poll()
    ends.register(0, select.POLLHUP)
    ends.register(over, select.POLLHUP)
    if any(fd == 0 for fd, _ in ends.poll()):
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        sys.exit(code if code > 0 else BY_SIGNAL - code)


def _end_with(keeper: int) -> None:
    """Nobody waits for the fork of a keeper that was killed. Systems without this let it run into its limits."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)


def _message(found: Found, text_characters: int) -> bytes:
    length = sum(map(len, found.pages))
    if length > text_characters:
        return _refusal(f"its text has {length:,} characters, more than {text_characters:,}: split it")
    return json.dumps(asdict(found), ensure_ascii=False).encode("utf-8")


def _refusal(reason: str) -> bytes:
    return json.dumps(asdict(Found(problems=[reason]))).encode()


def _limit(request: Request) -> None:
    limits = (
        (resource.RLIMIT_AS, request.memory_bytes, request.memory_bytes),
        (resource.RLIMIT_CPU, request.cpu_s, request.cpu_s + 1),  # the first ends it with a signal that says why
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, 0, 0),
    )
    for kind, soft, hard in limits:
        with suppress(ValueError, OSError):  # a lower limit is set already, or the system knows no such limit
            resource.setrlimit(kind, (soft, hard))


def clean(text: str) -> str:
    """What a parser made up cannot be stored: without NULs, and with a mark for half a surrogate pair."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
