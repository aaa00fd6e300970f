"""Fits the rule of the policy `ask` to a model: by how far answers are from full prefill's, on prompts alone.

No answers are needed. One thing is fitted after the other: rows and layers that ask, check, candidates,
stretch, short chunks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from blend.adopt.load import LoadedModel
from blend.fuse.policy import LAST, SHORT, STRETCH, AskRule
from service.app.operating_point import LOSSLESS, OperatingPoint
from service.lab.eval.case_probe import CaseProbe
from service.lab.questions.cases import Case, SuiteError

RATIO = 0.05  # at which rules are compared: much more hides differences
DEPTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of layers that are asked, alone and then in pairs
CHECKS = (1, 2, 3, 4, 6)
TIMES = (1.0, 2.0, 3.0, 5.0)
LAST_ROW = AskRule.parse("rows=last")
ALIKE = 1.1  # KL that differs by less is the same, and what costs less is taken
LEAST_KL = 1e-3  # below it nothing differs
ROUNDS = 6  # of all prompts


@dataclass(frozen=True, slots=True)
class FittedRule:
    """The rule that was found, its mean KL to full prefill at a ratio, and that of the rule without a fit."""

    rule: AskRule
    ratio: float
    kl: float
    unfitted_kl: float


def halves(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """The cases to fit on, and those that are held out: pairs go to either in turn, so that both hold all kinds."""
    fitted = [case for number, case in enumerate(cases) if number // 2 % 2 == 0]
    held_out = [case for number, case in enumerate(cases) if number // 2 % 2]
    if not held_out:
        raise SuiteError(f"half of the questions are held out of a fit: ask 3 or more, got {len(cases)}")
    return fitted, held_out


class Fitting:
    """Asks the same prompts by one rule after another."""

    def __init__(self, model: LoadedModel, cases: Sequence[Case], *, answer_tokens: int) -> None:
        self.rounds = ROUNDS * len(cases)
        self._keeping = len(model.decoder.model_layers.keeping)
        self._probe = CaseProbe(model, answer_tokens=answer_tokens, system=cases[0].system)
        self._cases = cases
        self._kl: dict[AskRule, float] = {}
        self._asked = 0

    def close(self) -> None:
        self._probe.close()

    def run(self, progress: Callable[[int], None]) -> FittedRule:
        """The rule whose answers are nearest to full prefill's. `progress` is called with the prompts asked so far."""
        unfitted = AskRule()
        layers = sorted({min(self._keeping - 1, round(depth * self._keeping)) for depth in DEPTHS})
        alone = {replace(rule, layers=(layer,)): layer for rule in (LAST_ROW, unfitted) for layer in layers}
        several = [replace(rule, layers=share) for rule in (LAST_ROW, unfitted) for share in LAST]
        self._try([*alone, *several], progress)
        first = min(alone, key=lambda rule: self._kl[rule])
        pairs = [replace(first, layers=pair) for pair in self._pairs(alone[first], layers)]
        rule = self._best([*alone, *several, *pairs], progress)
        checks = sorted({min(check, self._keeping - 1) for check in CHECKS})
        unchecked, checked = replace(rule, check=None, times=1.0), replace(rule, times=LAST_ROW.times)
        rule = self._best([unchecked, *(replace(checked, check=check) for check in checks)], progress)
        rule = self._best([replace(rule, times=times) for times in TIMES if rule.check is not None] or [rule], progress)
        rule = self._best([replace(rule, stretch=each) for each in (1, STRETCH)], progress)
        rule = self._best([replace(rule, short=each) for each in (0, SHORT)], progress)
        if self._kl[unfitted] <= self._kl[rule]:
            rule = unfitted
        return FittedRule(rule, RATIO, self._kl[rule], self._kl[unfitted])

    def _pairs(self, layer: int, others: Sequence[int]) -> list[tuple[int, int]]:
        """The layer with each of the others, and with its neighbours."""
        near = {*others, max(0, layer - 1), min(self._keeping - 1, layer + 1)} - {layer}
        return [(min(layer, each), max(layer, each)) for each in sorted(near)]

    def _best(self, rules: Sequence[AskRule], progress: Callable[[int], None]) -> AskRule:
        """The rule with the lowest KL; of those that are alike, the one that costs least."""
        self._try(rules, progress)
        least = max(LEAST_KL, min(self._kl[rule] for rule in rules))
        return min((rule for rule in rules if self._kl[rule] <= least * ALIKE), key=self._cost)

    def _try(self, rules: Sequence[AskRule], progress: Callable[[int], None]) -> None:
        points = {rule: OperatingPoint(str(rule), RATIO, LOSSLESS) for rule in rules if rule not in self._kl}
        found: dict[AskRule, list[float]] = {rule: [] for rule in points}
        for case in self._cases:
            outcomes = self._probe.measure(case, [*points.values()]).outcomes if points else {}
            for rule, point in points.items():
                found[rule].append(outcomes[point].divergence.kl)
            self._asked += 1
            progress(self._asked)
        self._kl |= {rule: fmean(each) for rule, each in found.items()}

    def _cost(self, rule: AskRule) -> tuple[float, int]:
        """What grows with a rule's price: layers of the fresh rows' first pass, and rows up to the check."""
        layers = range(self._keeping) if isinstance(rule.layers, str) else rule.layers
        return max(layers, default=0) + (rule.check or 0) * rule.times, len(layers)
