"""Scores: against numbers computed by hand, a second way to compute them, and the normal approximation."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.lab.eval.exact_match import Interval, exact_match, f1, holds, interval, ratio_interval, verdict, words


def reference_words(text: str) -> list[str]:
    """Character by character, where the score works by patterns."""
    kept = "".join(letter for letter in text.lower() if letter not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def reference_f1(answer: str, wanted: str) -> float:
    """By precision and recall, with words crossed off a list."""
    got, left = reference_words(answer), reference_words(wanted)
    sizes = len(got), len(left)
    if not all(sizes):
        return float(sizes == (0, 0))
    common = 0
    for word in got:
        if word in left:
            left.remove(word)
            common += 1
    precision, recall = common / sizes[0], common / sizes[1]
    return 2 * precision * recall / (precision + recall) if common else 0.0


TEXTS = st.lists(
    st.sampled_from(
        ["the", "a", "An", "red", "Red.", "blue", "U.S.", "us", "(x)", "!", "12,5", "theatre", "lathe", "x-y"]
    )
).map(" ".join)


@settings(deadline=None)
@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_scores_are_those_of_a_second_way_to_compute_them(answer: str, wanted: list[str]) -> None:
    assert words(answer) == reference_words(answer)
    assert exact_match(answer, wanted) == (reference_words(answer) in [reference_words(each) for each in wanted])
    assert f1(answer, wanted) == pytest.approx(max((reference_f1(answer, each) for each in wanted), default=0.0))


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_f1_is_symmetric_and_an_exact_match_has_all_of_it(one: str, other: str) -> None:
    assert f1(one, [other]) == f1(other, [one])
    assert f1(one, [other]) >= exact_match(one, [other])
    assert exact_match(one, [one]) == 1


def numbers(*values: float) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def normal(values: NDArray[np.float64]) -> tuple[float, float]:
    half = 1.959964 * float(values.std()) / math.sqrt(len(values))
    return float(values.mean()) - half, float(values.mean()) + half


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["bell", "yes or no", "skewed"])
def test_the_interval_is_near_the_normal_approximation(kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    drawn = {
        "bell": random.normal(3.0, 2.0, 300),
        "yes or no": (random.random(300) < 0.7).astype(np.float64),
        "skewed": random.exponential(1.5, 300),
    }[kind]
    low, high = normal(drawn)
    found = interval(drawn)
    assert found.low == pytest.approx(low, abs=0.08 * (high - low))
    assert found.high == pytest.approx(high, abs=0.08 * (high - low))


def covers(found: Interval, mean: float) -> bool:
    return found.low <= mean <= found.high


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    hits = [covers(interval(random.normal(1.0, 1.0, 60)), 1.0) for _ in range(100)]
    assert 88 <= sum(hits) < 100


def test_the_interval_of_one_value_is_a_point_and_of_none_unknown() -> None:
    assert interval(numbers(0.25)) == interval(numbers(0.25, 0.25, 0.25)) == Interval(0.25, 0.25)
    unknown = interval(numbers())
    assert math.isnan(unknown.low) and math.isnan(unknown.high)


def test_the_interval_of_a_ratio_is_near_the_one_that_the_delta_method_gives() -> None:
    random = np.random.default_rng(3)
    below = random.normal(4.0, 1.0, 400)
    above = 0.5 * below + random.normal(0.2, 0.3, 400)
    ratio = float(above.mean() / below.mean())
    half = 1.959964 * float((above - ratio * below).std()) / math.sqrt(400) / float(below.mean())
    found = ratio_interval(above, below)
    assert found.low == pytest.approx(ratio - half, abs=0.2 * half)
    assert found.high == pytest.approx(ratio + half, abs=0.2 * half)


def test_a_ratio_of_what_is_not_known_of_every_question_is_of_the_means_of_what_is() -> None:
    unknown = float("nan")
    assert ratio_interval(numbers(3, 3, 3, 3), numbers(2, unknown, 2, 2)) == Interval(1.5, 1.5)
    assert ratio_interval(numbers(3, unknown, 3), numbers(2, 2, 2)) == Interval(1.5, 1.5)
    assert math.isnan(ratio_interval(numbers(), numbers()).low)


@pytest.mark.parametrize(
    ("answer", "wanted", "held"),
    [
        ("The fox is in Tokyo.", ["Tokyo"], 1),
        ("It is the U.S. Congress, I think", ["us congress"], 1),
        ("Congress of the US", ["US Congress"], 0),
        ("The number is 47112.", ["4711"], 0),
        ("Tokyo", ["Oslo", "tokyo!"], 1),
        ("", ["a"], 0),
        ("Tokyo", [], 0),
    ],
)
def test_an_answer_holds_a_known_one_whose_words_stand_in_it(answer: str, wanted: list[str], held: int) -> None:
    assert holds(answer, wanted) == held


def paired(ups: int, downs: int, ties: int) -> NDArray[np.float64]:
    return numbers(*[1.0] * ups, *[-1.0] * downs, *[0.0] * ties)


@pytest.mark.parametrize(
    ("difference", "wanted"),
    [
        (paired(0, 0, 50), "equal"),
        (paired(0, 0, 0), "equal"),
        (paired(10, 10, 80), "noise"),
        (paired(1, 0, 99), "noise"),
        (paired(0, 1, 99), "noise"),
        (paired(12, 8, 80), "noise"),
        (paired(0, 20, 80), "worse"),
        (paired(5, 30, 65), "worse"),
        (paired(20, 0, 80), "better"),
        (paired(30, 5, 65), "better"),
        (numbers(-0.1, -0.1), "worse"),
    ],
)
def test_a_paired_difference_has_a_verdict(difference: NDArray[np.float64], wanted: str) -> None:
    assert verdict(difference) == wanted


OPPOSITE = {"equal": "equal", "noise": "noise", "worse": "better", "better": "worse"}


@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.02, 0.2), (0.3, 0.05), (0.0, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_the_other_sign_has_the_opposite_verdict(shares: Sequence[float], seed: int) -> None:
    up, down = shares
    draws = np.random.default_rng(seed).choice([1.0, -1.0, 0.0], 200, p=[up, down, 1 - up - down])
    assert verdict(-draws) == OPPOSITE[verdict(draws)]
