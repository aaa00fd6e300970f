"""What is tried again, and when: over any order of failures, with a clock of its own."""

from dataclasses import dataclass

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvweave_client as kv
from kvweave_client import course
from kvweave_client.course import Course
from kvweave_client.replies import retry_after_s
from kvweave_client.requests import EVENTS, Request
from kvweave_client.target import Target

Failure = httpx.Response | httpx.HTTPError

UNSENT = (httpx.ConnectError("refused"), httpx.ConnectTimeout("late"), httpx.ProxyError("no"))
LOST = (httpx.ReadError("reset"), httpx.WriteError("reset"), httpx.RemoteProtocolError("cut"))
SILENT = (httpx.ReadTimeout("silent"), httpx.WriteTimeout("silent"))
HOPELESS = (httpx.UnsupportedProtocol("ftp"), httpx.DecodingError("gzip"))


@dataclass(slots=True)
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


def answer(status: int, after: int | None) -> httpx.Response:
    return httpx.Response(status, headers={} if after is None else {"Retry-After": str(after)})


ANSWERS = st.builds(answer, st.sampled_from([429, 503, 408, 502, 504, 500, 404]), st.none() | st.integers(0, 60))
FAILURES = st.sampled_from([*UNSENT, *LOST, *SILENT, *HOPELESS]) | ANSWERS
RETRIES = st.builds(kv.Retries, st.integers(0, 6), st.floats(0, 5), st.floats(0, 40))
REQUESTS = st.builds(
    lambda repeats, accepts, persists: Request("GET", "/x", b"", repeats, accepts, persists),
    st.booleans(),
    st.sampled_from(["application/json", EVENTS]),
    st.booleans(),
)


def may_repeat(request: Request, failure: Failure) -> bool:
    """The rule, in other words than the code's."""
    if isinstance(failure, httpx.Response):
        refused, lost = failure.status_code in (429, 503), failure.status_code in (408, 502, 504)
        return request.persists and (refused or (lost and request.repeats))
    return failure in UNSENT or (failure in LOST and request.repeats)


def told(call: Course, failure: Failure) -> float:
    """The pause that follows."""
    return call.refused(failure, b"") if isinstance(failure, httpx.Response) else call.failed(failure)


@given(
    request=REQUESTS,
    retries=RETRIES,
    call_s=st.floats(0.1, 100),
    failures=st.lists(st.tuples(FAILURES, st.floats(0, 5)), min_size=10, max_size=10),
)
def test_a_call_is_repeated_as_often_as_it_may_be_and_no_longer(
    request: Request, *, retries: kv.Retries, call_s: float, failures: list[tuple[Failure, float]]
) -> None:
    clock = Clock()
    target = Target(kv.BASE_URL, None, timeouts=kv.Timeouts(call_s=call_s), retries=retries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course, "time", clock)
        call = Course(request, target)
        for tries, (failure, took) in enumerate(failures, start=1):
            clock.now += took
            try:
                pause = told(call, failure)
            except kv.KVWeaveError:
                break
            assert may_repeat(request, failure)
            assert tries <= retries.most
            after = 0.0
            if isinstance(failure, httpx.Response):
                after = float(failure.headers.get("Retry-After", "0"))
            assert after <= pause <= after + retries.longest_s
            assert after <= retries.longest_s
            clock.now += pause
            assert clock.now < call_s or not request.is_bounded


@given(failure=FAILURES, request=REQUESTS)
def test_what_may_be_repeated_is(failure: Failure, request: Request) -> None:
    target = Target(kv.BASE_URL, None, timeouts=kv.Timeouts(), retries=kv.Retries(longest_s=60))
    call = Course(request, target)
    if may_repeat(request, failure):
        assert told(call, failure) >= 0
        return
    with pytest.raises(kv.KVWeaveError):
        told(call, failure)


def test_pauses_grow_and_differ() -> None:
    target = Target(kv.BASE_URL, None, timeouts=kv.Timeouts(), retries=kv.Retries(most=8))
    calls = [Course(Request("GET", "/x"), target) for _ in range(50)]
    pauses = [[call.failed(LOST[0]) for call in calls] for _ in range(7)]
    assert all(len(set(each)) > 40 for each in pauses)
    assert [max(each) <= 0.25 * 2**step for step, each in enumerate(pauses)] == [True] * 7
    assert [min(each) >= 0.0625 * 2**step for step, each in enumerate(pauses)] == [True] * 7


@pytest.mark.parametrize("value", ["", "soon", "-1", "1e3", "Wed, 99 Foo 2020 00:00:00 GMT", "\u0663\u0660"])
def test_a_time_that_nobody_can_read_is_none(value: str) -> None:
    assert retry_after_s({"retry-after": value}) is None


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:00 -0000", "0"])
def test_a_time_that_has_passed_is_now(value: str) -> None:
    assert retry_after_s({"retry-after": value}) == 0
