"""Runs parsers in processes that are kept for the next file: limits of memory and time, and how one that died is told.

A parser is a module with a `parse` that makes `Findings` of a content. A worker is a process that parses one content
after another, and says what it found in one JSON message. One that dies is an `UnreadableFile` that names the limit,
one that answered waits for the next content.
"""

import atexit
import os
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from queue import Empty, Full, LifoQueue

import msgspec

from retriever.readers.reading import MAX_BYTES, UnreadableFile, megabytes
from retriever.readers.serve import Findings, ParserRequest

MEMORY_BYTES = 2 << 30  # of address space
CPU_S = 120
WALL_S = 300.0
IDLE_S = 60.0

_KEPT = 2  # idle workers of a parser
_ROOT = Path(__file__).resolve().parent.parent.parent  # the folder to import this package from, installed or not


class ParserWorker:
    """One process, in a group of its own, so that Ctrl-C in the parent does not reach it."""

    def __init__(self, parser: str) -> None:
        self._connection, its = Pipe()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "retriever.readers.serve", parser, str(its.fileno()), str(IDLE_S)],
                cwd=_ROOT,
                pass_fds=[its.fileno()],
                env={**os.environ, "RUST_BACKTRACE": "0"},  # beyond a limit of memory, a trace waits for itself
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def answer(self, content: bytes, limits: ParserRequest) -> bytes:
        """The worker's answer to a content. Raises `CalledProcessError` where the worker ends instead."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before it read all of it
            self._connection.send(limits)
            self._connection.send_bytes(content)
        try:
            return self._connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            raise subprocess.CalledProcessError(self._process.wait(), self._process.args) from None

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """Drops the worker in a fork; only the process that started it may end it."""
        self._connection.close()
        self._process.returncode = 0  # nothing to wait for


_idle: defaultdict[str, LifoQueue[ParserWorker]] = defaultdict(lambda: LifoQueue(_KEPT))


def ask(parser: str, content: bytes) -> Findings:
    """Parses the content of a file by the module `parser`."""
    limits = ParserRequest(MEMORY_BYTES, CPU_S, MAX_BYTES, WALL_S)
    try:
        return ask_within(limits, parser, content=content)
    except subprocess.CalledProcessError as ended:
        raise UnreadableFile(f"its parser {_how(ended.returncode)}: save it anew, or split it") from None
    except OSError as error:
        raise UnreadableFile(f"no process could be started for its parser ({error}): try again") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"its parser said what nobody understands ({error}): save it anew") from None


def ask_within(limits: ParserRequest, parser: str, *, content: bytes) -> Findings:
    """Parses the content by the module within limits. Raises `CalledProcessError` beyond a limit, or `OSError`."""
    return msgspec.json.decode(_said(limits, parser, content=content), type=Findings)


def close() -> None:
    """Ends the workers that are idle."""
    for idle in list(_idle.values()):
        with suppress(Empty):
            while True:
                idle.get_nowait().end()


def _said(limits: ParserRequest, parser: str, *, content: bytes) -> bytes:
    """Asks an idle worker; one that ended meanwhile, or fails because of earlier work, is replaced by a new one."""
    with suppress(Empty):
        idle = _idle[parser].get_nowait()
        try:
            return _lend(idle, limits, parser=parser, content=content)
        except subprocess.CalledProcessError as ended:
            if ended.returncode in (-signal.SIGXCPU, -signal.SIGALRM):
                raise
    return _lend(ParserWorker(parser), limits, parser=parser, content=content)


def _lend(worker: ParserWorker, limits: ParserRequest, *, parser: str, content: bytes) -> bytes:
    with ExitStack() as ending:
        ending.callback(worker.end)
        said = worker.answer(content, limits)
        with suppress(Full):
            _idle[parser].put_nowait(worker)
            ending.pop_all()
    return said


def _how(code: int) -> str:
    if code == -signal.SIGXCPU:
        return f"took more than {CPU_S} s of processor time"
    if code == -signal.SIGALRM:
        return f"did not finish within {WALL_S:g} s"
    how = f"ended with {signal.Signals(-code).name}" if code < 0 else "gave up"
    return f"{how} within {megabytes(MEMORY_BYTES)} of memory (no reason given)"


def _forget() -> None:
    for idle in _idle.values():
        for worker in idle.queue:
            worker.leave()
    _idle.clear()


atexit.register(close)
os.register_at_fork(after_in_child=_forget)
