"""Compiles a grammar inside a child process, which shows whether it comes to an end. Knows no vocabulary of a model.

llguidance counts what a lexer costs, but not every search over numbers: `multipleOf` in `allOf` may take minutes.
"""

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
GRAMMAR_BYTES: Final = 24 << 20  # as many requests as there may be at once keep one each


def parse(content: bytes) -> Findings:
    """Nothing: what is wrong with a grammar that comes to an end is said where it is compiled again."""
    with suppress(ValueError, OSError):  # a lower limit is set already, or the system has none
        resource.setrlimit(resource.RLIMIT_AS, (_most_bytes(), resource.getrlimit(resource.RLIMIT_AS)[1]))
    LLMatcher(LLTokenizer("byte"), content.decode(), log_level=0, limits=GRAMMAR_FUEL)
    return Findings()


@cache
def _most_bytes() -> int:
    """The address space that this process may come to: what it took before the first grammar, and a grammar's."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return taken + GRAMMAR_BYTES
