"""The inside of an isolated parser: sets limits of memory and time, refuses network and programs, words its failure.

A `ParserRequest` precedes each content. Its limits end the worker, and so does the end of the parent process.
"""

import importlib
import json
import logging
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from threading import Thread
from typing import NamedTuple

from retriever.readers.reading import UnreadableFile

NICE = 10  # nice steps below the parent: answers go before parsing
_MAX_SAID = 200  # characters of what a parser raises
_OUTSIDE = {
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"),
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"),
}


class ParserRequest(NamedTuple):
    """The header before a content. The limits apply to one content."""

    memory_bytes: int
    cpu_s: int
    text_characters: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class Findings:
    """The message: what a parser found. `pages`: the texts, one for a format without pages; `problems`: sentences.

    `blank`: the numbers, from 1, of pages that were not read, as they may be pictures.
    """

    pages: Sequence[str] = ()
    problems: list[str] = field(default_factory=list[str])
    title: str = ""
    author: str = ""
    blank: list[int] = field(default_factory=list[int])


def serve(parser: str, asking: Connection, *, idle_s: float) -> None:
    """Answer with the findings of the module's `parse`, until it fails or no request came for `idle_s`."""
    logging.disable()
    os.nice(NICE)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))
    sys.addaudithook(_refuse_outside)
    Thread(target=_end_with, args=(asking.fileno(),), daemon=True).start()
    has_answered = False
    while asking.poll(idle_s):
        request = asking.recv()
        try:
            message = _answer(parser, asking, request=request)
        except BaseException as error:
            if not has_answered:  # a new worker shows whether the content is to blame
                asking.send_bytes(_refusal(_reason(error, request.memory_bytes >> 20)))
            break
        asking.send_bytes(message)
        has_answered = True
    os._exit(0)  # the memory goes at once, not object by object


def _refuse_outside(event: str, _: object) -> None:
    """Ends whatever would reach another host or start a program: nothing that a file names is fetched or run."""
    if event in _OUTSIDE:
        raise PermissionError(f"{event} is not for parsers")


def _answer(parser: str, asking: Connection, *, request: ParserRequest) -> bytes:
    _limit(request.memory_bytes, math.ceil(time.process_time()) + request.cpu_s, wall_s=request.wall_s)
    try:
        found = importlib.import_module(parser).parse(asking.recv_bytes())
    except UnreadableFile as error:
        found = Findings(problems=[str(error)])
    length = sum(map(len, found.pages))
    if length > request.text_characters:
        message = _refusal(f"its text has {length:,} characters, more than {request.text_characters:,}: split it")
    else:
        message = json.dumps(asdict(found), ensure_ascii=False).encode("utf-8")
    _limit(resource.RLIM_INFINITY, resource.RLIM_INFINITY, wall_s=0)
    return message


def _end_with(connection: int) -> None:
    """Ends the process when the other end is closed: no reader is left."""
    closed = select.poll()
    closed.register(connection, 0)
    closed.poll()
    os._exit(1)


def _limit(memory_bytes: int, cpu_s: int, *, wall_s: float) -> None:
    """Sets the limits; either limit of time ends the process by a signal of its own."""
    for kind, soft in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, cpu_s)):
        with suppress(ValueError, OSError):  # a lower limit is set already, or the system knows no such limit
            resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def _refusal(reason: str) -> bytes:
    return json.dumps(asdict(Findings(problems=[reason]))).encode()


def _reason(error: BaseException, mebibytes: int) -> str:
    if isinstance(error, MemoryError):
        return f"its parser needs more than {mebibytes:,} MiB of memory: split it"
    if isinstance(error, RecursionError):
        return "it is nested deeper than its parser can follow: save it anew"
    if isinstance(error, ModuleNotFoundError):
        return f"what reads it is not installed ({error}): pip install 'kvweave[readers]'"
    said = f"{type(error).__name__}: {error}"[:_MAX_SAID]
    return f"its parser gave up within {mebibytes:,} MiB of memory ({said}): save it anew, or split it"


def clean(text: str) -> str:
    """A parser's text as it can be stored: without NULs, lone surrogates replaced by a mark."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def one_line(text: str) -> str:
    """A parser's text on one line: single spaces for all white space."""
    return " ".join(clean(text).split())


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as people write them: 1, 3-5, 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


if __name__ == "__main__":
    serve(sys.argv[1], Connection(int(sys.argv[2])), idle_s=float(sys.argv[3]))
