"""The rows of a result, full prefill's and each point's: means, intervals, verdicts, and when a suite tells nothing."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from service.app.operating_point import FULL, OperatingPoint
from service.lab.eval.case_probe import CaseMeasurement
from service.lab.eval.exact_match import Interval, exact_match, f1, holds, interval, ratio_interval, verdict
from service.lab.questions.cases import Case

ANSWERS = 0.1  # the share of answers that full prefill must match before exact match decides anything
TELLS = 0.05  # nats of a token: what passages tell, if it is less, is nothing
CHANCE = 0.9  # of the nats of a guess: a model that is no surer of what comes next knows nothing

Numbers = NDArray[np.float64]  # of each question; NaN where nothing is known
Ratio = tuple[float, Interval]  # of means


@dataclass(frozen=True, slots=True)
class YardstickRow:
    """What full prefill itself does with `n` questions: how far it goes from itself where prompts change.

    `kl` is the yardstick: documents that do not matter changed places, in `orders` prompts; `replaced` and `left_out`:
    one passage. `unaided`: all of them left out. `told`: the nats of a token of the known answer that passages save, of
    `nats` with them. `entropy`: how unsure it is of a token, `chance`: how unsure a guess is. `right`: how often it
    says the known answer itself, and `prefers`: how often that is likelier to it than any foil.
    None where the suite cannot tell. `intervals` are of 95 % confidence.
    """

    suite: str
    n: int
    orders: int
    kl: float | None
    top1: float | None
    replaced: float | None
    left_out: float | None
    unaided: float | None
    nats: float | None
    told: float | None
    entropy: float
    chance: float
    right: float | None
    prefers: float | None
    intervals: dict[str, Interval]

    @property
    def tells(self) -> bool:
        """Do passages make the known answers likelier, beyond doubt?"""
        return self.told is not None and self.told >= TELLS and self.intervals["told"].low > 0

    @property
    def answers(self) -> bool:
        """Does full prefill say enough of the known answers for exact match to mean something?"""
        return self.right is not None and self.right >= ANSWERS

    @property
    def guesses(self) -> bool:
        """Is full prefill no surer of what comes next than a guess?"""
        return self.entropy > CHANCE * self.chance

    @property
    def is_idle(self) -> bool:
        """Do passages change nothing of what full prefill says?"""
        return not self.tells and self.unaided is not None and self.unaided < TELLS


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One operating point. Means over `n` questions, times as medians; None where the suite cannot tell.

    `kl` is from full prefill, in nats for each token of the answer that is followed, and `yardsticks` how many times
    the yardstick that is; `kl_codec` from the same policy on lossless records; `top1` and `top1_codec`: how often both
    prefer the same token. `nats` of a token of the known answer, `kept` of what passages tell of it; `margin`: how much
    likelier than any foil it is, in nats, and `prefers`: how often it is. `exact_match`, `f1` and `holds`, whether the
    known answer stands in it, are of the model's own answers, and `agreement` of those with full prefill's.
    `loss`: how much less is right than by full prefill, or, where no answers are known, how often they differ;
    `verdict` says whether what is lost is more than noise: of right answers if full prefill has some, else of nats.
    `intervals` are of 95 % confidence; those of `f1`, `holds`, `nats`, `margin` and `prefers` are of the difference to
    full prefill in pairs. `suite` is empty in rows that count all questions.
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
    holds: float | None
    agreement: float | None
    kl: float
    yardsticks: float | None
    top1: float
    kl_codec: float | None
    top1_codec: float | None
    nats: float | None
    kept: float | None
    margin: float | None
    prefers: float | None
    loss: float | None
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
class _Numbers:
    """What a point made of each question; NaN where nothing is known of it."""

    right: Numbers
    f1: Numbers
    holds: Numbers
    agrees: Numbers
    kl: Numbers
    nats: Numbers
    margin: Numbers

    @property
    def prefers(self) -> Numbers:
        """Where the known answer is likelier than any foil."""
        return np.where(np.isnan(self.margin), math.nan, self.margin > 0)

    def intervals(self, full: "_Numbers") -> dict[str, Interval]:
        """The intervals of the means, and of how the others differ from full prefill's."""
        values = {"kl": self.kl, "exact_match": self.right, "agreement": self.agrees, "loss": self.lost(full)}
        values |= {"f1": self.f1 - full.f1, "holds": self.holds - full.holds}
        values |= {"nats": self.nats - full.nats, "margin": self.margin - full.margin}
        values |= {"prefers": self.prefers - full.prefers}
        return _intervals(values)

    def lost(self, full: "_Numbers") -> Numbers:
        """The right answers that are lost or, where none are known, the answers that are full prefill's."""
        return full.right - self.right if len(_known(full.right)) else 1 - self.agrees


@dataclass(frozen=True, slots=True)
class SuiteFindings:
    """The questions of a suite with what was measured of each; all questions where it has no name."""

    name: str
    cases: Sequence[Case]
    found: Sequence[CaseMeasurement]

    def yardstick(self) -> YardstickRow:
        """What full prefill does with the questions."""
        found = [each.yardstick for each in self.found if each.yardstick]
        full = self._numbers(FULL)
        told = self._unaided() - full.nats
        return YardstickRow(
            suite=self.name,
            n=len(self.cases),
            orders=sum(len(each.reordered) for each in found),
            kl=_mean(self._orders()),
            top1=_mean(_numbers(order.top1 for each in found for order in each.reordered)),
            replaced=_mean(_numbers(each.replaced and each.replaced.kl for each in found)),
            left_out=_mean(_numbers(each.left_out and each.left_out.kl for each in found)),
            unaided=_mean(_numbers(each.unaided.kl for each in found)),
            nats=_mean(full.nats),
            told=_mean(told),
            entropy=_mean(_numbers(each.entropy for each in found)) or 0.0,
            chance=max((each.chance for each in found), default=math.inf),
            right=_mean(full.right),
            prefers=_mean(full.prefers),
            intervals=_intervals({"kl": self._orders(), "told": told}),
        )

    def row(self, point: OperatingPoint, *, work: OperatingPoint, yardstick: YardstickRow) -> ResultRow:
        """What the point made of the questions; `work` is the one that computed it. `yardstick` is of the same ones."""
        got, full, outcomes = self._numbers(work), self._numbers(FULL), [each.outcomes[work] for each in self.found]
        ratios = self._ratios(got, full, yardstick=yardstick)
        lost = got.lost(full) if yardstick.answers or not len(_known(got.nats)) else got.nats - full.nats
        sizes = [each.sizes.get(point.codec) or each.sizes[FULL.codec] for each in self.found]
        nbytes = sum(each.nbytes for each in sizes)
        speedups = [each.outcomes[FULL].ttft_s / each.outcomes[work].ttft_s for each in self.found]
        return ResultRow(
            suite=self.name,
            policy=point.policy,
            ratio=point.ratio,
            codec=point.codec,
            n=len(self.cases),
            exact_match=_mean(got.right),
            exact_match_one_chunk=_mean(got.right[[case.needs == 1 for case in self.cases]]),
            exact_match_two_chunk=_mean(got.right[[case.needs == 2 for case in self.cases]]),
            f1=_mean(got.f1),
            holds=_mean(got.holds),
            agreement=_mean(got.agrees),
            kl=float(got.kl.mean()),
            yardsticks=ratios["yardsticks"][0] if "yardsticks" in ratios else None,
            top1=fmean(each.divergence.top1 for each in outcomes),
            kl_codec=_mean(_numbers(each.codec and each.codec.kl for each in outcomes)),
            top1_codec=_mean(_numbers(each.codec and each.codec.top1 for each in outcomes)),
            nats=_mean(got.nats),
            kept=ratios["kept"][0] if "kept" in ratios else None,
            margin=_mean(got.margin),
            prefers=_mean(got.prefers),
            loss=_mean(got.lost(full)),
            verdict=verdict(-_known(lost)),
            ttft_ms=1000 * median(each.ttft_s for each in outcomes),
            ttft_speedup=median(speedups),
            prompt_tokens=fmean(each.prompt for each in outcomes),
            reused_tokens=fmean(each.reused for each in outcomes),
            recomputed_tokens=fmean(each.recomputed for each in outcomes),
            bytes_per_token=nbytes / max(1, sum(each.tokens for each in sizes)),
            bits_per_value=8 * nbytes / max(1, sum(each.values for each in sizes)),
            intervals=got.intervals(full) | {name: span for name, (_, span) in ratios.items()},
        )

    def _ratios(self, got: "_Numbers", full: "_Numbers", *, yardstick: YardstickRow) -> dict[str, Ratio]:
        """How many yardsticks a point is away, and what it keeps of what passages tell, where there is either."""
        found: dict[str, Ratio] = {}
        if yardstick.kl:
            found["yardsticks"] = _ratio(got.kl, self._orders())
        if yardstick.tells:
            found["kept"] = _ratio(self._unaided() - got.nats, self._unaided() - full.nats)
        return found

    def _orders(self) -> Numbers:
        """Each question's mean divergence where its documents change places."""
        found = [each.yardstick.reordered if each.yardstick else () for each in self.found]
        return _numbers(fmean([order.kl for order in each]) if each else None for each in found)

    def _unaided(self) -> Numbers:
        return _numbers(each.yardstick and each.yardstick.nats for each in self.found)

    def _numbers(self, point: OperatingPoint) -> "_Numbers":
        outcomes = [each.outcomes[point] for each in self.found]
        answered = [(each.answer, case.wanted) for each, case in zip(outcomes, self.cases, strict=True)]

        def scored(score: Callable[[str, Sequence[str]], float]) -> Numbers:
            return _numbers(
                None if answer is None or not wanted else score(answer, wanted) for answer, wanted in answered
            )

        return _Numbers(
            right=scored(exact_match),
            f1=scored(f1),
            holds=scored(holds),
            agrees=_numbers(None if each.agrees is None else float(each.agrees) for each in outcomes),
            kl=_numbers(each.divergence.kl for each in outcomes),
            nats=_numbers(each.nats for each in outcomes),
            margin=_numbers(each.margin for each in outcomes),
        )


def _ratio(above: Numbers, below: Numbers) -> Ratio:
    return float(_known(above).mean() / _known(below).mean()), ratio_interval(above, below)


def _numbers(values: Iterable[float | None]) -> Numbers:
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _intervals(values: Mapping[str, Numbers]) -> dict[str, Interval]:
    """The intervals of those of which something is known."""
    return {name: interval(_known(each)) for name, each in values.items() if len(_known(each))}


def _known(values: Numbers) -> Numbers:
    return values[~np.isnan(values)]


def _mean(values: Numbers) -> float | None:
    return float(_known(values).mean()) if len(_known(values)) else None
