"""Programs that start in no time, for tests that start many: one process has everything loaded, they are its forks.

Each is a child of the test's own process, as one that it had started itself: its parent ends behind the fork, and it
falls to the test, which takes orphans in meanwhile.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
PR_SET_CHILD_SUBREAPER = 36
MESSAGE_BYTES = 1 << 20
FEW = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

# A fork takes its environment over, too late for what was read when something was loaded.
AT_LOADING = ("OMP_", "PYTHON", "HF_", "TRANSFORMERS_", "TORCH", "NUMBA_", "RAY_", "CUDA_", "LD_", "MALLOC_")


@dataclass(frozen=True, slots=True)
class Nursery:
    """The process that has everything loaded."""

    asking: socket.socket
    environment: Mapping[str, str]
    turn: threading.Lock = field(default_factory=threading.Lock)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork is as a process that is started with this environment."""
        names = {name for name in self.environment.keys() | environment.keys() if name.startswith(AT_LOADING)}
        return all(self.environment.get(name) == environment.get(name) for name in names)

    def start(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:  # noqa: ANN401
        """Runs the program; `options` are those of `Popen`: pipes, text, environment."""
        return Fork(self, arguments, options)

    @contextmanager
    def talking(self, *arguments: str) -> Generator[tuple[subprocess.Popen[str], IO[str]]]:
        """Runs the program until the end of the block at most; with it comes what it says, as it says it."""
        with self.start(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process, process.stdout
            finally:
                process.kill()

    def killed(self, *arguments: str, chance: Random, lines: int) -> list[str]:
        """Runs the program and kills it at a random instant behind so many lines; returns all that it said in whole."""
        with self.talking(*arguments) as (process, talk):
            assert talk.readline() == "ready\n"
            said = [talk.readline() for _ in range(lines)]
            threading.Event().wait(chance.random() / 50)  # chooses the instant, nothing waits for it
            process.kill()
            said += talk.readlines()
        assert process.returncode == -signal.SIGKILL, "it ended by itself"
        return [line for line in said if line.endswith("\n")]

    def fork(self, message: object, descriptors: Sequence[int]) -> int:
        """The number of a new process, which is a child of this one."""
        with self.turn, _taking_orphans_in():
            socket.send_fds(self.asking, [json.dumps(message).encode()], descriptors)
            child = int(self.asking.recv(MESSAGE_BYTES))
            assert self.asking.recv(MESSAGE_BYTES) == b"parted"
        return child


class Fork(subprocess.Popen[Any]):
    """A fork with everything that `Popen` has."""

    def __init__(self, nursery: Nursery, arguments: Sequence[str], options: dict[str, Any]) -> None:
        self._nursery = nursery
        super().__init__(arguments, **options)

    def _execute_child(self, *given: Any) -> None:  # noqa: ANN401
        arguments, _, _, _, _, folder, environment, _, _, _, *pipes = given[:16]
        assert environment is None or self._nursery.fits(environment), "a fork would not heed this environment"
        message = list(arguments), dict(os.environ if environment is None else environment), str(folder or Path.cwd())
        theirs = [pipe if pipe != -1 else place for place, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = self._nursery.fork(message, theirs)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # pyright: ignore


@contextmanager
def nursing(module: str) -> Generator[Nursery]:
    """A nursery of this module, which calls `serve`. Its programs compute with one thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, **FEW}
    command, handed = [sys.executable, "-m", module, str(theirs.fileno())], (theirs.fileno(),)
    with ours, subprocess.Popen(command, cwd=ROOT, pass_fds=handed, stdin=subprocess.DEVNULL, env=environment):
        theirs.close()
        yield Nursery(ours, environment)
        ours.close()  # which ends it


def serve(main: Callable[..., object]) -> None:
    """Runs `main` in a fork for each message. Each fork returns from here, too, to end as a program does."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, MESSAGE_BYTES, 3)
        if not message:
            return
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                asked.send(str(child).encode())
                os._exit(0)
            asked.close()
            arguments, environment, folder = json.loads(message)
            _become(environment, folder, descriptors)
            main(*arguments)
            return
        os.waitpid(between, 0)
        asked.send(b"parted")
        for descriptor in descriptors:
            os.close(descriptor)


def _become(environment: dict[str, str], folder: str, descriptors: Sequence[int]) -> None:
    """Be as a process that was just started."""
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False, buffering=1 if os.isatty(1) else -1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115


@contextmanager
def _taking_orphans_in() -> Generator[None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
