"""Prompts that should get the same answer: what full prefill itself differs by from one to the other."""

from collections.abc import Sequence

from tests.bench.real.drawn_prompt import DrawnPrompt
from tests.bench.real.results import MeasuredPrompt

REORDERED, REPLACED, LEFT_OUT = "foreign passages reordered", "one replaced", "one left out"
OWN_SHUFFLED = "own passages shuffled"
BESIDE_EVERY = 4  # prompts: what stands beside the yardstick, and is no part of it, is measured of some


def reordered(draws: int) -> list[str]:
    """The names of prompts with foreign passages in other orders. The mean over them is the yardstick."""
    return [f"{REORDERED} {draw}" for draw in range(1, draws + 1)]


def variants(drawn: DrawnPrompt, number: int, *, draws: int) -> dict[str, DrawnPrompt]:
    """The other prompts, by name. More than one draw asks for those that stand beside the yardstick, too."""
    found = {name: drawn.reordered(f"{number}/{name}") for name in reordered(draws)}
    if draws > 1 and number % BESIDE_EVERY == 0:
        found |= {REPLACED: drawn.replaced(str(number)), LEFT_OUT: drawn.left_out(str(number))}
        found[OWN_SHUFFLED] = drawn.own_shuffled(str(number))
    return found


def kls(measured: Sequence[MeasuredPrompt]) -> list[float]:
    """The yardstick of each prompt."""
    found = [[said.kl for name, said in each.yardstick.items() if name.startswith(REORDERED)] for each in measured]
    return [sum(some) / len(some) for some in found]
