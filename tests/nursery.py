"""Programs that start in no time, for tests that kill many: one process has everything loaded, they are its forks."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]


@dataclass(slots=True)
class Process:
    """One fork, as `subprocess` would have it. Its parent tells when it ended."""

    pid: int
    parent: subprocess.Popen[bytes]
    returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._ended(timeout)
        assert status is not None, "it does not end"
        return status

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        assert self.parent.stdout is not None
        if self.returncode is None and select.select([self.parent.stdout], [], [], timeout)[0]:
            self.returncode = int(self.parent.stdout.readline())
        return self.returncode


@dataclass(frozen=True, slots=True)
class Nursery:
    """The process that has everything loaded. The others run one after the other."""

    parent: subprocess.Popen[bytes]
    folder: Path

    @contextmanager
    def talking(self, *arguments: str) -> Generator[tuple[Process, TextIO]]:
        """Runs the program until the end of the block at most; with it comes what it says, as it says it."""
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        process = self.begin(*arguments, output=pipe)
        try:
            with pipe.open() as said:
                yield process, said
        finally:
            pipe.unlink()
            process.kill()
            process.wait()

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

    def begin(self, *arguments: str, output: Path, environment: Mapping[str, str] | None = None) -> Process:
        """Runs the program with these arguments; what it says goes into `output`, behind what is there."""
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.parent.stdin.write(json.dumps([arguments, dict(environment or {}), str(output)]).encode() + b"\n")
        return Process(int(self.parent.stdout.readline()), self.parent)


@contextmanager
def nursing(module: str) -> Generator[Nursery]:
    """A nursery of this module, which calls `serve`."""
    few = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command, pipe = [sys.executable, "-m", module], subprocess.PIPE
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, bufsize=0, env={**os.environ, **few}) as parent,
    ):
        yield Nursery(parent, Path(folder))


def serve(main: Callable[..., object]) -> None:
    """Runs `main` in a fork for each line that is read. Each fork returns from here, too, to end as a program does."""
    for line in sys.stdin:
        arguments, environment, output = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ.update(environment)
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
            main(*arguments)
            return
        os.write(1, f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())
