"""Requests a minute, by a clock that the tests turn."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.access.principal import Principal, Role
from service.access.rates import WINDOW_S, Rates
from service.errors import Exhausted


class Clock:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1e9
        patch.setattr("service.access.rates.time", SimpleNamespace(monotonic=lambda: self.now))


def holder(key: str = "k", per_minute: int | None = 3, tenant: str = "acme") -> Principal:
    return Principal(tenant, Role.READ, key, None, per_minute)


def passes(rates: Rates, principal: Principal) -> float | None:
    """None, or how long to wait."""
    try:
        rates.take(principal)
    except Exhausted as error:
        return error.retry_after_s
    return None


@settings(deadline=None, max_examples=60)
@example(per_minute=2, pauses=[0.0, 1.0, 19.0, 40.0])
@given(per_minute=st.integers(1, 5), pauses=st.lists(st.integers(0, 160).map(lambda n: n / 4), max_size=40))
def test_no_minute_has_more_requests_than_allowed_and_none_is_refused_without_need(
    per_minute: int, pauses: list[float]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock, rates, passed = Clock(patch), Rates(), list[float]()
        for pause in pauses:
            clock.now += pause
            recent = [each for each in passed if each >= clock.now - WINDOW_S]
            wait_s = passes(rates, holder(per_minute=per_minute))
            assert (wait_s is None) == (len(recent) < per_minute)
            if wait_s is None:
                passed.append(clock.now)
            else:
                frees = recent[-per_minute] + WINDOW_S - clock.now
                assert frees < wait_s <= frees + 1


def test_keys_do_not_count_for_each_other_and_some_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    rates = Rates()
    assert passes(rates, holder(per_minute=1)) is None and passes(rates, holder(per_minute=1))
    assert passes(rates, holder("other", per_minute=1)) is None
    assert all(passes(rates, holder(per_minute=None)) is None for _ in range(1000))


@pytest.mark.parametrize("set_by_s", [86_400, -86_400])
def test_a_clock_that_is_set_lets_nobody_by_and_shuts_nobody_out(
    set_by_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, now = Rates(), time.time
    for _ in range(2):
        rates.take(holder())
    monkeypatch.setattr(time, "time", lambda: now() + set_by_s)
    assert [passes(rates, holder()) is None for _ in range(3)] == [True, False, False]


def test_threads_together_get_no_more_than_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    rates = Rates()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: passes(rates, holder(per_minute=100)), range(400)))
    assert answers.count(None) == 100
