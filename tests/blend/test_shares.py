"""What the queue, the steps and captures are shared out by, without an engine."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blend.engine.fair_queue import CaptureDebts, RowCosts, StepShares, dealt

WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 5.0])


@given(st.floats(1e-4, 1.0), st.floats(1e-6, 1e-2), st.lists(st.integers(1, 4000), min_size=1, max_size=6, unique=True))
def test_what_work_takes_in_any_case_is_told_from_what_each_row_takes(
    base: float, row: float, sizes: list[int]
) -> None:
    """A prompt of few rows is not expected to come much sooner than one of many where both mostly wait for the same."""
    costs = RowCosts()
    for rows in sizes * 60:
        costs.learn(rows, base + row * rows)
    for rows in sizes:
        assert costs.base_s + costs.row_s * rows == pytest.approx(base + row * rows, rel=0.3)
    if max(sizes) - min(sizes) > 100:
        assert costs.row_s == pytest.approx(row, rel=0.05, abs=base / 100)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 60), WEIGHTS), min_size=1),
    st.floats(0.001, 0.05),
    st.floats(0.0001, 0.01),
)
@settings(max_examples=200, deadline=None)
def test_a_step_takes_nobody_longer_than_its_share_of_a_lone_one(
    payers: dict[str, tuple[int, float]], base: float, row: float
) -> None:
    weights = {payer: weight for payer, (_, weight) in payers.items()}
    shares = StepShares(weights)
    for rows in [1, 4, 16, 64] * 60:
        shares.costs.learn(rows, base + row * rows)
    asked = [payer for payer, (count, _) in payers.items() for _ in range(count)]
    chosen = Counter(asked[place] for place in shares.chosen(asked))
    assert chosen.keys() == payers.keys()
    took = base + row * chosen.total()
    for payer, (count, weight) in payers.items():
        lone, share = base + row * count, weight / sum(weights.values())
        progress = chosen[payer] / count / took  # of each of his answers, tokens a second
        assert progress >= share / lone * (1 - 1.1 / chosen[payer])  # but for the row that cannot be halved


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 60), WEIGHTS), min_size=1),
    st.floats(1, 300),
)
def test_rows_are_dealt_by_weight_and_none_is_left_over(payers: dict[str, tuple[int, float]], rows: float) -> None:
    counts = {payer: count for payer, (count, _) in payers.items()}
    weights = {payer: weight for payer, (_, weight) in payers.items()}
    found = dealt(counts, rows, weights=weights)
    assert all(1 <= found[payer] <= count for payer, count in counts.items())
    assert sum(found.values()) < rows + len(counts)
    cut = [payer for payer in counts if found[payer] < counts[payer]]
    if cut:
        assert sum(found.values()) > rows - len(counts)
        apart = len(counts)  # each may have a row too many or too few, and the last one what is left of all
        least = min((found[payer] + 1 + apart) / weights[payer] for payer in cut)
        assert all((found[payer] - apart) / weights[payer] <= least + 1e-9 for payer in counts)


@pytest.mark.parametrize(("busy", "of_requests"), [(100, 0.21), (90, 0.11), (50, 0.0)])
def test_captures_take_of_requests_what_idle_time_does_not_give_them(busy: int, of_requests: float) -> None:
    """So many of 100 slices of time somebody asks; captures of one wait always, and have the others.

    Who had a fifth of the time lately is owed a third of the share.
    """
    debts, slices = CaptureDebts(0.4), Counter[str]()
    for number in range(6000):
        asked = 37 * number % 100 < busy
        captures = not asked or debts.any
        if captures:
            debts.had("many", 0.01)
        else:
            debts.served(0.01, ["many"])
        slices["captures"] += captures
        slices["taken"] += asked and captures
    assert slices["taken"] / 6000 == pytest.approx(of_requests, abs=0.03)
    assert slices["captures"] / 6000 >= 0.17, "they have their share in any case"


def test_a_sentence_is_owed_its_share_beside_a_large_upload_and_behind_it() -> None:
    debts, slices = CaptureDebts(0.4), Counter[str]()
    for _ in range(6000):
        if debts.any:
            payer = max(debts._owed, key=lambda each: debts._owed[each])
            debts.had(payer, 0.01)
            slices[payer] += 1
        else:
            waiting = ["much", "little"] if slices["little"] < 60 else ["much"]
            debts.served(0.01, waiting)
            slices["served"] += len(waiting) == 2
    assert slices["served"] == pytest.approx(60 / (0.4 / 0.6 / 2), rel=0.1), "half of the share until it was done"
    assert slices["much"] / 6000 == pytest.approx(0.21, abs=0.03)


def test_what_one_had_is_not_held_against_another_who_waits() -> None:
    debts = CaptureDebts(0.4)
    debts.had("many", 100.0)
    assert not debts.served(0.1, ["many"]) and not debts.any
    assert debts.served(0.1, ["many", "one"])
    debts.had("one", 1.0)
    assert not debts.any and not debts.served(0.1, ["many", "one"])
    assert debts.served(9.1, ["many"]), "and not for ever"
