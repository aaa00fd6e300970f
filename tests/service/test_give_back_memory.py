"""Memory that was used once goes back to the system, in calm moments alone."""

import ctypes
import resource
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from service.app import give_back_memory as giving

PIECES, PIECE_BYTES = 2000, 100_000  # each below what the allocator asks the system for alone
FREEING = """
import resource
import threading

from service.app.give_back_memory import keep_freed_memory

def work():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range({rounds}):
        [bytearray(300_000) for _ in range(16)]
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

if {keeps}:
    keep_freed_memory()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""  # in a thread, whose memory is not the main thread's


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another allocator")
def test_memory_that_nobody_uses_goes_back_when_it_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "EVERY_S", 0.0)
    kept = [bytes(PIECE_BYTES) for _ in range(PIECES)][::20]  # what lies between is free
    seen: list[int] = []
    gone: list[None] = []

    def looks(stopped: Event, answers: list[bool]) -> None:
        def is_calm() -> bool:
            seen.append(resident_bytes())
            if not answers[1:]:
                stopped.set()
            return answers.pop(0)

        giving.give_back_memory(stopped, is_calm=is_calm, let_go=lambda: gone.append(None))

    looks(Event(), [False] * (giving.BUSY_LOOKS - 1))
    assert max(seen) - resident_bytes() < PIECES * PIECE_BYTES / 10  # somebody works
    assert not gone
    looks(Event(), [True])
    assert max(seen) - resident_bytes() > PIECES * PIECE_BYTES / 2 and len(gone) == 1
    more = [bytes(PIECE_BYTES) for _ in range(PIECES)][::20]
    looks(Event(), [False] * giving.BUSY_LOOKS)
    assert max(seen) - resident_bytes() > PIECES * PIECE_BYTES / 2  # now and then also then
    assert len(more) == len(kept) == PIECES / 20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another allocator")
def test_what_is_freed_is_there_for_the_next() -> None:
    def faults(*, keeps: bool, **environment: str) -> int:
        """Of ten rounds, which the one before them left memory for."""

        def told(rounds: int) -> int:
            command = [sys.executable, "-c", FREEING.format(keeps=keeps, rounds=rounds)]
            return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

        return told(11) - told(1)

    pages = 16 * 300_000 // resource.getpagesize()
    assert faults(keeps=True) < pages / 2
    assert faults(keeps=False) > pages
    assert faults(keeps=True, MALLOC_TRIM_THRESHOLD_="131072") > pages  # somebody wants it so
