"""Memory that was used once goes back to the system, in calm moments alone."""

import ctypes
import resource
from pathlib import Path
from threading import Event

import pytest

from service.app import give_back_memory as giving

PIECES, PIECE_BYTES = 2000, 100_000  # each below what the allocator asks the system for alone


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another allocator")
def test_memory_that_nobody_uses_goes_back_when_it_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "EVERY_S", 0.0)
    kept = [bytes(PIECE_BYTES) for _ in range(PIECES)][::20]  # what lies between is free
    seen: list[int] = []

    def looks(stopped: Event, answers: list[bool]) -> None:
        def is_calm() -> bool:
            seen.append(resident_bytes())
            if not answers[1:]:
                stopped.set()
            return answers.pop(0)

        giving.give_back_memory(stopped, is_calm=is_calm)

    looks(Event(), [False] * (giving.BUSY_LOOKS - 1))
    assert max(seen) - resident_bytes() < PIECES * PIECE_BYTES / 10  # somebody works
    looks(Event(), [True])
    assert max(seen) - resident_bytes() > PIECES * PIECE_BYTES / 2
    more = [bytes(PIECE_BYTES) for _ in range(PIECES)][::20]
    looks(Event(), [False] * giving.BUSY_LOOKS)
    assert max(seen) - resident_bytes() > PIECES * PIECE_BYTES / 2  # now and then also then
    assert len(more) == len(kept) == PIECES / 20
