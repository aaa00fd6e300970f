"""Prompts that should get the same answer: what full prefill itself differs by from one to the other."""

from collections.abc import Sequence

from service.lab.questions.cases import Case
from service.lab.questions.variants import Variants
from service.model.prompt_builder import PromptPassage
from tests.bench.real.results import MeasuredPrompt

REORDERED, REPLACED, LEFT_OUT = "foreign passages reordered", "one replaced", "one left out"
BESIDE_EVERY = 4  # prompts: what stands beside the yardstick, and is no part of it, is measured of some


def variants(case: Case, number: int, *, draws: int, swap: PromptPassage) -> dict[str, Case]:
    """The other prompts, by name. More than one draw asks for those that stand beside the yardstick, too."""
    drawn = Variants(draws, swap)
    found = {f"{REORDERED} {draw}": each for draw, each in enumerate(drawn.reordered(case), 1)}
    if draws > 1 and number % BESIDE_EVERY == 0:
        beside = {REPLACED: drawn.replaced(case), LEFT_OUT: drawn.left_out(case)}
        found |= {name: each for name, each in beside.items() if each}
    return found


def kls(measured: Sequence[MeasuredPrompt]) -> list[float]:
    """The yardstick of each prompt."""
    found = [[said.kl for name, said in each.yardstick.items() if name.startswith(REORDERED)] for each in measured]
    return [sum(some) / len(some) for some in found]
