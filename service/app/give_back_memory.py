"""Has glibc keep freed memory (mallopt), and gives it back in calm moments (malloc_trim)."""

import ctypes
import gc
import os
import resource
from collections.abc import Callable
from pathlib import Path
from threading import Event

EVERY_S = 4.0
BUSY_LOOKS = 15  # from one time to the next where it is never calm
WORTH_BYTES = 16 << 20  # more than was left the last time
PIECE_BYTES = 32 << 20  # the most that glibc takes: larger ones come from the system, and go back at once
KEPT_BYTES = 2 * PIECE_BYTES  # at the end of an arena: as much as glibc comes to keep once such a piece was freed

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's names for them, in its malloc.h


def keep_freed_memory() -> None:
    """Leave what is freed to `give_back_memory`: the allocator would return it at once, some 100 kilobytes at a time,
    and ask for it again, which takes longer than what is done in it. All threads share it: of an arena of its own a
    thread alone could give back the end.

    Does nothing where somebody told the allocator already, or where it is not glibc's.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        tell(_TRIM_THRESHOLD, KEPT_BYTES)
        tell(_MMAP_THRESHOLD, PIECE_BYTES)
        tell(_ARENA_MAX, 1)


def give_back_memory(
    stopped: Event, *, is_calm: Callable[[], bool], let_go: Callable[[], None], rest: Callable[[], bool]
) -> None:
    """Gives it back in calm moments, and now and then in any: some 50 ms in which other threads wait for memory.

    `let_go` frees what somebody holds for the next who needs it, also where the allocator is not glibc's, which alone
    keeps so much that it has to be told. `rest` frees what nobody used since it was called last, calm or not, and tells
    whether that was anything.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    left = looks = 0
    while not stopped.wait(EVERY_S):
        looks += 1
        if rest():
            left = 0
        if looks % BUSY_LOOKS == 0:
            gc.collect()  # what was not freed by itself
        if not is_calm() and looks % BUSY_LOOKS:
            continue
        let_go()
        if trim is not None and _resident_bytes() > left + WORTH_BYTES:
            trim(0)
            left = _resident_bytes()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
