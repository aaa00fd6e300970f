"""Memory that the process has and does not use: the allocator keeps it until it is told to give it back."""

import ctypes
import resource
from collections.abc import Callable
from pathlib import Path
from threading import Event

EVERY_S = 4.0
BUSY_LOOKS = 15  # from one time to the next where it is never calm
WORTH_BYTES = 16 << 20  # more than was left the last time


def give_back_memory(stopped: Event, *, is_calm: Callable[[], bool]) -> None:
    """Gives it back in calm moments, and now and then in any: some 50 ms in which other threads wait for memory.

    Does nothing where the allocator is not glibc's, which alone keeps so much.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    left = looks = 0
    while trim is not None and not stopped.wait(EVERY_S):
        looks += 1
        if (is_calm() or looks % BUSY_LOOKS == 0) and _resident_bytes() > left + WORTH_BYTES:
            trim(0)
            left = _resident_bytes()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
