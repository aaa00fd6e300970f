"""Compiles a grammar inside a child process, within limits (fuel, memory): whether it ends, and the bytes it takes.

llguidance counts what a lexer costs, but not every search over numbers: `multipleOf` in `allOf` may take minutes.
"""

import ctypes
import resource
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from retriever.readers.serve import Findings

# What a grammar may take, here and in the service: a step is slow for all answers, and its states stay until its end.
GRAMMAR_FUEL: Final = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
GRAMMAR_BYTES: Final = 24 << 20

_COUNTED = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


def parse(content: bytes) -> Findings:
    """The bytes that a grammar takes. What is wrong with one that ends is said where it is compiled again."""
    with suppress(ValueError, OSError):  # a lower limit is set already, or the system has none
        resource.setrlimit(resource.RLIMIT_AS, (_most_bytes(), resource.getrlimit(resource.RLIMIT_AS)[1]))
    tokens, before = LLTokenizer("byte"), _allocated_bytes()
    matcher = LLMatcher(tokens, content.decode(), log_level=0, limits=GRAMMAR_FUEL)
    taken = GRAMMAR_BYTES if before is None else (_allocated_bytes() or 0) - before
    del matcher  # it was loaded until now
    return Findings((str(taken),))


class _MallocInfo(ctypes.Structure):
    """The `struct mallinfo2` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in _COUNTED]


def _allocated_bytes() -> int | None:
    """Bytes allocated at present; None where the allocator is not glibc's."""
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return None
    tell.restype = _MallocInfo
    told = tell()
    return int(told.uordblks + told.hblkhd)


@cache
def _most_bytes() -> int:
    """The limit of this process' address space: what it took before the first grammar, and a grammar's share."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return taken + GRAMMAR_BYTES
