"""Runs `kvweave` again and again, each time in a process of its own that has the libraries loaded already.

    python -m tests.service.kill_child

Reads one line of JSON for each run: its arguments, its environment, and the file that it says things into. Says the
id of the process, and its exit status when it has ended.
"""

import json
import os
import sys
from pathlib import Path

from service.cli import main


def run(arguments: list[str], environment: dict[str, str], *, output: Path) -> None:
    """As the command would, in this process."""
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.argv = ["kvweave", *arguments]
    main()


def say(number: int) -> None:
    os.write(1, f"{number}\n".encode())


def serve() -> None:
    """Until nobody asks any more. Each child returns from here, too, and ends as a program does."""
    for line in sys.stdin:
        arguments, environment, output = json.loads(line)
        child = os.fork()
        if child == 0:
            run(arguments, environment, output=Path(output))
            return
        say(child)
        _, status = os.waitpid(child, 0)
        say(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve()
