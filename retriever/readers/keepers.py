"""Processes that have a parser loaded and parse each content in a fork, seen from outside. Knows bytes, and no format.

A keeper serves one caller at a time. One that answered well waits for the next caller, any other is ended.
"""

import atexit
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from retriever.readers.child import BY_SIGNAL, FORM, Request

IDLE_S = 60.0

_KEPT = 2  # idle ones of a parser
_PIPE_BYTES = 1 << 16
_MAX_COMPLAINT = 1 << 16

_idle: list["Keeper"] = []
_lock = threading.Lock()


class Ended(Exception):
    """A keeper ended instead of answering, as `subprocess` says how. `is_stale`: it never took the content up."""

    def __init__(self, code: int, complaint: bytes, *, is_stale: bool) -> None:
        super().__init__(code)
        self.code = BY_SIGNAL - code if code > BY_SIGNAL else code
        self.complaint = complaint
        self.is_stale = is_stale


class Keeper:
    """One process, in a group with its fork."""

    def __init__(self, parser: str, root: Path) -> None:
        self.made = _made(parser, root)
        self.is_free = True  # and at the beginning of a request
        self._is_used = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", parser, str(IDLE_S)],
            bufsize=0,
            cwd=root,
            process_group=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._pipes = [pipe for pipe in pipes if pipe]
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def answer(self, request: Request, content: bytes, *, within_s: float) -> bytes:
        """The line it says to the content. Raises `Ended` or `subprocess.TimeoutExpired`."""
        until = time.monotonic() + within_s
        is_used, self._is_used, self.is_free = self._is_used, True, False
        with suppress(BrokenPipeError):
            os.write(self._in, FORM.pack(*request))
        unsent = memoryview(content)
        said, complaint = bytearray(), bytearray()
        with selectors.PollSelector() as pipes:
            pipes.register(self._in, selectors.EVENT_WRITE)
            pipes.register(self._out, selectors.EVENT_READ, said)
            pipes.register(self._err, selectors.EVENT_READ, complaint)
            while pipes.get_map() and not said.endswith(b"\n"):
                for key, _ in pipes.select(until - time.monotonic()):
                    if key.fd == self._in:
                        unsent = self._send(unsent)
                    if not (unsent if key.fd == self._in else _hear(key)):
                        pipes.unregister(key.fd)
                del complaint[:-_MAX_COMPLAINT]
                if time.monotonic() > until:
                    raise subprocess.TimeoutExpired(self._process.args, within_s)
        if not said.endswith(b"\n"):
            code = self._process.wait(until - time.monotonic())
            raise Ended(code, bytes(complaint), is_stale=is_used and not said)
        with suppress(BlockingIOError):
            os.read(self._err, _PIPE_BYTES)  # the next content is not to blame
        self.is_free = not unsent
        return bytes(said)

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._in, unsent) :]
        except BrokenPipeError:
            return unsent[:0]  # the other pipes tell why

    def end(self) -> None:
        """Also its fork."""
        with self._process, suppress(ProcessLookupError, PermissionError):  # macOS forbids it where it just ended
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def leave(self) -> None:
        """In a fork of the process that made it, which alone may end it."""
        for pipe in self._pipes:
            pipe.close()
        self._process.returncode = 0  # nothing to wait for


def _hear(key: selectors.SelectorKey) -> bytes:
    heard = os.read(key.fd, _PIPE_BYTES)
    key.data.extend(heard)
    return heard


@contextmanager
def lent(parser: str, root: Path) -> Generator[Keeper]:
    """An idle keeper of the parser, or a new one. Raises `OSError` where none can be started."""
    keeper = _take(_made(parser, root)) or Keeper(parser, root)
    with ExitStack() as failing:
        failing.callback(keeper.end)
        yield keeper
        if keeper.is_free:
            failing.pop_all()
            _put_back(keeper)


def close() -> None:
    """Ends those that are idle."""
    with _lock:
        closed = _idle.copy()
        _idle.clear()
    for keeper in closed:
        keeper.end()


def _made(parser: str, root: Path) -> tuple[str, ...]:
    """Keepers that are alike in this do the same."""
    return (sys.executable, parser, str(root))


def _take(made: tuple[str, ...]) -> Keeper | None:
    with _lock:
        ended = [keeper for keeper in _idle if keeper.has_ended]
        fitting = [keeper for keeper in _idle if keeper.made == made and keeper not in ended][-1:]
        for keeper in ended + fitting:
            _idle.remove(keeper)
    for keeper in ended:
        keeper.end()
    return fitting[0] if fitting else None


def _put_back(keeper: Keeper) -> None:
    with _lock:
        _idle.append(keeper)
        surplus = [each for each in _idle if each.made == keeper.made][:-_KEPT]
        for each in surplus:
            _idle.remove(each)
    for each in surplus:
        each.end()


def _forget() -> None:
    for keeper in _idle:
        keeper.leave()
    _idle.clear()
    _lock.release()


atexit.register(close)
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget)
