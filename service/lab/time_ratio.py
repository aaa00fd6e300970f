"""How two times that were taken in rounds compare, and the words for it. Every table and sentence takes them here."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

TIE = 1.05  # times that differ by less are the same
ONE_IN = 40  # intervals lie above, and one below, the median of many more rounds: 95 % confidence


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """How many times sooner one of two comes, by the medians that tables show, and between what its rounds lie.

    `low` and `high` bound the median of the rounds' own ratios; where rounds are fewer than nine, they are all between.
    """

    times: float
    low: float
    high: float

    @property
    def is_sooner(self) -> bool:
        """Whether it comes sooner by more than a tie and by more than the rounds differ."""
        return self.times >= TIE and self.low > 1

    @property
    def is_later(self) -> bool:
        """Whether it comes later by more than a tie and by more than the rounds differ."""
        return self.times <= 1 / TIE and self.high < 1

    @property
    def words(self) -> str:
        if self.is_sooner:
            return f"{_written(self.times)}x sooner"
        return f"{_written(1 / self.times)}x later" if self.is_later else "about the same"


def time_ratio(reference: Sequence[float], other: Sequence[float]) -> TimeRatio:
    """How many times sooner the other one comes: each has a time for each round, and both have the same rounds."""
    ratios = sorted(a / b for a, b in zip(reference, other, strict=True))
    cut = _cut(len(ratios))
    return TimeRatio(median(reference) / median(other), ratios[cut], ratios[-1 - cut])


def _cut(rounds: int) -> int:
    """The number of ratios that the interval leaves out at each end, so that it still holds the median by chance."""
    cut, beyond = 0, 1 + rounds
    while beyond * ONE_IN <= 2**rounds:
        cut += 1
        beyond += comb(rounds, cut + 1)
    return cut


def _written(times: float) -> str:
    return f"{times:,.0f}" if times >= 100 else f"{times:.2f}" if times < 10 else f"{times:.1f}"
