"""The grid of policies, ratios and codecs, checked, and a suite run over it: one row for each. Knows no rendering."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from blend.adopt.load import LoadedModel
from blend.errors import PromptError
from blend.fuse.policy import FIXED, POLICIES, check_policy
from service.app.operating_point import FULL, OperatingPoint
from service.lab.eval.case_probe import CaseMeasurement, CaseProbe
from service.lab.eval.result_row import ResultRow, SuiteFindings, YardstickRow
from service.lab.questions.cases import Case, SuiteError
from service.lab.questions.contexts import swap_for
from service.lab.questions.variants import Variants
from store.codec.spec import Spec
from store.errors import SpecError


@dataclass(frozen=True, slots=True)
class GridResult:
    """Rows of all questions first, then of each suite, if there are several; `yardsticks` in the same order.

    `dropped`: passages that the model's window did not hold.
    """

    rows: tuple[ResultRow, ...]
    yardsticks: tuple[YardstickRow, ...]
    cases: int
    dropped: int


def grid(policies: Sequence[str] | None, ratios: Sequence[float], *, codecs: Sequence[str]) -> list[OperatingPoint]:
    """Every combination, in order; None means all policies but `prefix`. Raises SuiteError for what does not exist."""
    policies = [each for each in POLICIES if each != "prefix"] if policies is None else policies
    for policy in policies:
        try:
            check_policy(policy)
        except PromptError as error:
            raise SuiteError(str(error)) from error
    for ratio in ratios:
        if not 0 <= ratio <= 1:
            raise SuiteError(f"a ratio lies in [0, 1], got {ratio}")
    for codec in codecs:
        try:
            Spec.parse(codec)
        except SpecError as error:
            raise SuiteError(str(error)) from error
    if not (policies and ratios and codecs):
        raise SuiteError("at least one policy, one ratio and one codec are wanted")
    return [
        OperatingPoint(*each) for each in product(dict.fromkeys(policies), dict.fromkeys(ratios), dict.fromkeys(codecs))
    ]


def run(
    model: LoadedModel,
    cases: Sequence[Case],
    *,
    points: Sequence[OperatingPoint],
    answer_tokens: int,
    progress: Callable[[int], None],
) -> GridResult:
    """Ask every question at every point. `progress` is called with the number of questions done."""
    works = list(dict.fromkeys((FULL, *map(_work, points))))
    probe = CaseProbe(model, answer_tokens=answer_tokens, system=cases[0].system)
    found: list[CaseMeasurement] = []
    try:
        probe.measure(cases[0], works)  # the first call of everything takes longer
        for number, case in enumerate(cases):
            turn = number % len(works)  # no point is always the first after the capture
            found.append(
                probe.measure(case, works[turn:] + works[:turn], variants=Variants(swap=swap_for(case, cases)))
            )
            progress(number + 1)
    finally:
        probe.close()
    several = [*dict.fromkeys(case.suite for case in cases)] if len({case.suite for case in cases}) > 1 else []
    rows, yardsticks = list[ResultRow](), list[YardstickRow]()
    for name in ["", *several]:
        numbers = [number for number, case in enumerate(cases) if name in ("", case.suite)]
        findings = SuiteFindings(name, [cases[number] for number in numbers], [found[number] for number in numbers])
        yardsticks.append(yardstick := findings.yardstick())
        rows += [findings.row(point, work=_work(point), yardstick=yardstick) for point in points]
    return GridResult(tuple(rows), tuple(yardsticks), len(cases), sum(each.dropped for each in found))


def different(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The rows, of those that computed the same only the first one."""
    works = {(row.suite, _work(OperatingPoint(row.policy, row.ratio, row.codec))): row for row in reversed(rows)}
    return list(works.values())[::-1]


def _work(point: OperatingPoint) -> OperatingPoint:
    """The point that computes the same: what a policy does not look at makes no difference."""
    if point.policy == FULL.policy:
        return FULL
    return OperatingPoint(point.policy, 0.0, point.codec) if point.policy in FIXED else point
