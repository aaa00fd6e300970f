"""Numbers from answers: exact match and F1 as the question-answering field counts them, and intervals by bootstrap."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the mean lies, with 95 % confidence."""

    low: float
    high: float


def words(text: str) -> list[str]:
    """Lower case, without punctuation and articles: what SQuAD's and MuSiQue's scores compare."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(answer: str, wanted: Sequence[str]) -> float:
    return float(any(words(answer) == words(each) for each in wanted))


def f1(answer: str, wanted: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, against the wanted answer that is nearest."""
    return max((_f1(words(answer), words(each)) for each in wanted), default=0.0)


def _f1(got: list[str], wanted: list[str]) -> float:
    if not got or not wanted:
        return float(got == wanted)
    common = (Counter(got) & Counter(wanted)).total()
    return 2 * common / (len(got) + len(wanted))


def holds(answer: str, wanted: Sequence[str]) -> float:
    """1 where the words of a wanted answer stand in the answer, together and in order."""
    said = f" {' '.join(words(answer))} "
    return float(any(f" {' '.join(words(each))} " in said for each in wanted if words(each)))


def interval(values: NDArray[np.float64]) -> Interval:
    """The interval of the mean, by bootstrap over questions; the same numbers give the same interval."""
    return ratio_interval(values, np.ones_like(values))


def ratio_interval(above: NDArray[np.float64], below: NDArray[np.float64]) -> Interval:
    """The interval of one mean over the other, by bootstrap over questions. NaN is what is not known of one."""
    if len(above) == 0:
        return Interval(float("nan"), float("nan"))
    drawn = np.random.default_rng(0).integers(0, len(above), (RESAMPLES, len(above)))
    tail = (1 - CONFIDENCE) / 2 * 100
    with np.errstate(invalid="ignore", divide="ignore"):  # nothing may be known of what is drawn
        means = [np.nansum(each[drawn], 1) / (~np.isnan(each))[drawn].sum(1) for each in (above, below)]
        low, high = np.nanpercentile(means[0] / means[1], [tail, 100 - tail])
    return Interval(float(low), float(high))


def verdict(difference: NDArray[np.float64]) -> str:
    """What a paired difference, point minus reference, says: equal, noise, worse or better."""
    if not difference.any():
        return "equal"
    found = interval(difference)
    if found.low <= 0 <= found.high:
        return "noise"
    return "worse" if found.high < 0 else "better"
