"""Ports for what is told its port before it listens, or that listens on it again."""

from __future__ import annotations

import itertools
import os
import random
import socket

_FIRST, _END = 20_000, 32_768  # below those that a system gives to connections: one of them may be there first


def _shuffled() -> list[int]:
    """This process's share where several run the tests, in an order of its own."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = [*range(_FIRST + worker, _END, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    random.SystemRandom().shuffle(ports)  # drawn tests seed the other generator, each process alike
    return ports


_ports = itertools.cycle(_shuffled())


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens, and which nobody else is given."""
    return next(port for port in _ports if _is_free(port))


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
