"""A suite over a grid of operating points: one row of numbers for each. Knows no rendering."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from blend.errors import PromptError
from blend.fuse.policy import POLICIES, SELECTIVE, check_policy
from blend.load import LoadedModel
from service.app.operating_point import FULL, OperatingPoint
from service.quality.case_probe import CaseMeasurement, CaseOutcome, CaseProbe
from service.quality.cases import Case, SuiteError
from service.quality.exact_match import Interval, exact_match, f1, interval, verdict
from store.codec.spec import Spec
from store.errors import SpecError

FIXED = tuple(policy for policy in POLICIES if policy not in SELECTIVE)  # they know no ratio

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One operating point. Means over `n` questions, times as medians; None where the suite cannot tell.

    `loss`: how much less it answers right than full prefill, or, where no answers are known, how often it answers
    otherwise; `verdict` says whether that is more than noise. `kl` is from full prefill, in nats for each token of its
    answer, `kl_codec` from the same policy on lossless records; `top1` and `top1_codec`: how often both prefer the same
    token. `intervals` are of 95 % confidence. `suite` is empty in rows that count all questions.
    """

    suite: str
    policy: str
    ratio: float
    codec: str
    n: int
    exact_match: float | None
    exact_match_one_chunk: float | None
    exact_match_two_chunk: float | None
    f1: float | None
    agreement: float
    kl: float
    top1: float
    kl_codec: float | None
    top1_codec: float | None
    loss: float
    verdict: str
    ttft_ms: float
    ttft_speedup: float
    prompt_tokens: float
    reused_tokens: float
    recomputed_tokens: float
    bytes_per_token: float
    bits_per_value: float
    intervals: dict[str, Interval]


@dataclass(frozen=True, slots=True)
class GridResult:
    """Rows of all questions first, then of each suite, if there are several.

    `dropped`: passages that the model's window did not hold.
    """

    rows: tuple[ResultRow, ...]
    cases: int
    dropped: int


def grid(policies: Sequence[str], ratios: Sequence[float], *, codecs: Sequence[str]) -> list[OperatingPoint]:
    """The points of every combination, in order. Raises SuiteError for what does not exist."""
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
    probe = CaseProbe(model, answer_tokens=answer_tokens)
    found: list[CaseMeasurement] = []
    try:
        probe.measure(cases[0], works)  # the first call of everything takes longer
        for number, case in enumerate(cases):
            turn = number % len(works)  # no point is always the first after the capture
            found.append(probe.measure(case, works[turn:] + works[:turn]))
            progress(number + 1)
    finally:
        probe.close()
    rows = [_row(point, cases, found=found) for point in points]
    names = list(dict.fromkeys(case.suite for case in cases))
    for name in names if len(names) > 1 else ():
        of = [(case, each) for case, each in zip(cases, found, strict=True) if case.suite == name]
        rows += [_row(point, [case for case, _ in of], found=[each for _, each in of], suite=name) for point in points]
    return GridResult(tuple(rows), len(cases), sum(each.dropped for each in found))


def different(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The rows, of those that computed the same only the first one."""
    works = {(row.suite, _work(OperatingPoint(row.policy, row.ratio, row.codec))): row for row in reversed(rows)}
    return list(works.values())[::-1]


def _work(point: OperatingPoint) -> OperatingPoint:
    """The point that computes the same: what a policy does not look at makes no difference."""
    if point.policy == FULL.policy:
        return FULL
    return OperatingPoint(point.policy, 0.0, point.codec) if point.policy in FIXED else point


def _row(
    point: OperatingPoint, cases: Sequence[Case], *, found: Sequence[CaseMeasurement], suite: str = ""
) -> ResultRow:
    got = [each.outcomes[_work(point)] for each in found]
    full = [each.outcomes[FULL] for each in found]
    right, reference = _right(cases, got), _right(cases, full)
    known = np.array([bool(case.answers) for case in cases])
    agrees = np.array([float(bool(each.agrees)) for each in got])
    difference = (right - reference)[known] if known.any() else agrees - 1
    speedups = np.array([a.ttft_s / b.ttft_s for a, b in zip(full, got, strict=True)])
    kl = np.array([each.divergence.kl for each in got])
    codec = [each.codec for each in got if each.codec is not None]
    sizes = [each.sizes[point.codec] for each in found if point.codec in each.sizes] or [
        each.sizes[FULL.codec] for each in found
    ]
    nbytes = sum(each.nbytes for each in sizes)
    return ResultRow(
        suite=suite,
        policy=point.policy,
        ratio=point.ratio,
        codec=point.codec,
        n=len(cases),
        exact_match=_mean(right[known]),
        exact_match_one_chunk=_mean(right[np.array([bool(case.answers) and case.needs == 1 for case in cases])]),
        exact_match_two_chunk=_mean(right[np.array([bool(case.answers) and case.needs == 2 for case in cases])]),
        f1=_mean(np.array([f1(a.answer or "", case.wanted) for a, case in zip(got, cases, strict=True)])[known]),
        agreement=float(agrees.mean()),
        kl=float(kl.mean()),
        top1=fmean(each.divergence.top1 for each in got),
        kl_codec=fmean(each.kl for each in codec) if codec else None,
        top1_codec=fmean(each.top1 for each in codec) if codec else None,
        loss=0.0 - float(difference.mean()),
        verdict=verdict(difference),
        ttft_ms=1000 * median(each.ttft_s for each in got),
        ttft_speedup=float(np.median(speedups)),
        prompt_tokens=fmean(each.prompt for each in got),
        reused_tokens=fmean(each.reused for each in got),
        recomputed_tokens=fmean(each.recomputed for each in got),
        bytes_per_token=nbytes / max(1, sum(each.tokens for each in sizes)),
        bits_per_value=8 * nbytes / max(1, sum(each.values for each in sizes)),
        intervals={"agreement": interval(agrees), "kl": interval(kl), "loss": interval(-difference)}
        | ({"exact_match": interval(right[known])} if known.any() else {}),
    )


def _right(cases: Sequence[Case], got: Sequence[CaseOutcome]) -> Numbers:
    return np.array([exact_match(each.answer or "", case.wanted) for case, each in zip(cases, got, strict=True)])


def _mean(values: Numbers) -> float | None:
    return float(values.mean()) if len(values) else None
