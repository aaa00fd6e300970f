"""How times compare: in words that the numbers bear out, however many rounds there are and however they differ."""

from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.lab.time_ratio import TIE, time_ratio

seconds = st.floats(1e-4, 1e4)


@pytest.mark.parametrize(
    ("reference", "other", "words"),
    [
        ([2.0, 2.1, 1.9], [1.0, 1.0, 1.0], "2.00x sooner"),
        ([1.0, 1.0, 1.0], [2.0, 1.9, 2.2], "2.00x later"),
        ([1.03, 1.03, 1.03], [1.0, 1.0, 1.0], "about the same"),  # less than a tie, however often
        ([1.5, 1.4, 0.9], [1.0, 1.0, 1.0], "about the same"),  # the rounds do not agree
        ([0.1, 0.1, 50.0], [1.0, 1.0, 0.01], "about the same"),
        ([300.0] * 3, [1.0] * 3, "300x sooner"),
    ],
)
def test_words_follow_the_rounds(reference: list[float], other: list[float], words: str) -> None:
    assert time_ratio(reference, other).words == words


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=40))
def test_words_and_numbers_never_disagree(rounds: list[tuple[float, float]]) -> None:
    found = time_ratio([a for a, _ in rounds], [b for _, b in rounds])
    assert found.times == median(a for a, _ in rounds) / median(b for _, b in rounds)  # what stands in the table
    assert [found.is_sooner, found.is_later, found.words == "about the same"].count(True) == 1
    if found.words != "about the same":
        times = float(found.words.partition("x")[0].replace(",", ""))
        assert times >= TIE  # never 0.52x sooner, nor 1.03x
        assert found.words.endswith("sooner" if found.times > 1 else "later")


def test_pure_noise_is_called_so_about_as_often_as_it_says() -> None:
    random = Random(5)
    called = 0
    for _ in range(1000):
        one, other = ([random.lognormvariate(0, 0.3) for _ in range(15)] for _ in range(2))
        called += time_ratio(one, other).words != "about the same"
    assert called < 60  # of 1,000, at 95 %
