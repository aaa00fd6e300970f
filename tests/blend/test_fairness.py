"""Nobody who pays waits long because another asks for much, and captures end where requests never do."""

import dataclasses
import threading
import time
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blend.engine import local_engine
from blend.engine.answer_builder import OVERTAKES, QueuedRequest
from blend.engine.engine import Done, EngineLimits, EngineRequest, Failed, Ready
from blend.engine.fair_queue import FairQueue
from blend.engine.local_engine import LocalEngine
from blend.engine.sampling import Sampling
from blend.errors import Late
from blend.fuse.prompt import Prompt, PromptLayout, TextSegment
from tests.blend.asking import Asked, Held, engine
from tests.blend.families import draw, ours

PREFIX, A, SUFFIX, LONG = draw(23, 9, 40, 11, 1500)
PLAIN = Prompt(PREFIX, (TextSegment(A),), SUFFIX)
GREEDY = Sampling(max_tokens=4, ignore_eos=True)
WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 5.0])
COSTS = st.floats(0.01, 1.0)


def queued(payer: str, capacity: int = 1) -> QueuedRequest:
    request = EngineRequest(PLAIN, payer=payer)
    return QueuedRequest(request, PromptLayout((), (), ()), listen=lambda event: None, capacity=capacity)


@given(st.lists(st.tuples(WEIGHTS, COSTS, st.integers(0, 20)), min_size=2, max_size=6))
@settings(max_examples=100, deadline=None)
def test_who_always_wants_more_gets_his_share_whenever_he_began(payers: list[tuple[float, float, int]]) -> None:
    """Each has a weight, a cost of all of his requests, and an instant at which he begins; from then on some wait."""
    queue = FairQueue({str(number): weight for number, (weight, _, _) in enumerate(payers)})
    for turn in range(200):
        for number, (_, _, begins) in enumerate(payers):
            if begins <= turn and not queue.counts()[str(number)]:
                queue.add(queued(str(number)), ())
        entry = queue.next(lambda _: True, running={})
        if entry is not None:
            payer = entry.request.payer
            queue.spend(payer, payers[int(payer)][1])
    late = max(begins for _, _, begins in payers)
    longest = max(cost / weight for weight, cost, _ in payers)
    had = queue._spent
    began = {str(number): begins for number, (_, _, begins) in enumerate(payers)}
    for one, other in pairwise(sorted(had, key=lambda each: had[each])):
        assert had[other] - had[one] <= 2 * longest, (late, began)


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(1, 4000)), min_size=2, max_size=20), st.floats(1e-4, 1e-2))
def test_short_prompts_go_first_and_a_long_one_is_passed_by_none_that_came_much_later(
    asked: list[tuple[float, int]], row_s: float
) -> None:
    """Of one payer's. Each has an instant at which it came, and rows."""
    queue = FairQueue[QueuedRequest]({}, rank=lambda each: each.rank(row_s))
    for born, rows in asked:
        entry = queued("one")
        entry.born, entry.rows = born, rows
        queue.add(entry, ())
    order = [cast(QueuedRequest, queue.next(lambda _: True, running={})) for _ in asked]
    for at, first in enumerate(order):
        for later in order[at + 1 :]:
            if later.born <= first.born:
                assert later.rows >= first.rows
                assert first.born - later.born <= OVERTAKES * row_s * later.rows


def test_what_does_not_fit_is_passed_by_no_shorter_one_of_its_payer() -> None:
    queue = FairQueue[QueuedRequest]({}, rank=lambda each: each.rank(1.0))
    long, short = queued("one", 100), queued("one", 1)
    long.rows, short.rows = 100, 1
    queue.add(long, ())
    assert queue.next(lambda each: each.capacity < 50, running={}) is None
    queue.add(short, ())
    assert queue.next(lambda each: each.capacity < 50, running={}) is None
    assert [queue.next(lambda _: True, running={}) for _ in range(2)] == [long, short]


@pytest.mark.parametrize(
    ("spent", "since_s", "without"),
    [
        ({"one": 5.0}, 150.0, [None]),  # alone
        ({"one": 5.0}, 50.0, []),
        ({"one": 5.0, "many": 9.0}, 150.0, []),  # who had less has two thirds of the time
        ({"one": 5.0, "many": 9.0}, 250.0, [None]),
        ({"one": 9.0, "many": 5.0}, 150.0, ["one", "one"]),
    ],
)
def test_a_fuse_of_who_had_less_has_more_of_the_time(
    spent: dict[str, float], since_s: float, without: list[str | None]
) -> None:
    """A step takes 100 s, and the fuse of one went on for `since_s` since the last."""
    queue, steps, now = FairQueue({}), list[str | None](), time.perf_counter()
    for payer, seconds in spent.items():
        queue.spend(payer, seconds)
    at = SimpleNamespace(_running=[object()], _stepped=now - since_s, _step_s=100.0, _steps_s=0.0, _fuse_began=now)
    at._changed, at._waiting, at._payers = threading.Condition(), queue, lambda: set(spent)

    def step(without: str | None) -> None:
        steps.append(without)

    at._step = step
    LocalEngine._let_others(cast(LocalEngine, at), queued("one"))
    assert steps == without


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 40), st.integers(0, 40), COSTS), min_size=2))
def test_nothing_of_many_begins_while_one_of_few_runs_that_had_less(payers: dict[str, tuple[int, int, float]]) -> None:
    """Each payer has requests that run, others that wait, and time that it had."""
    queue = FairQueue({})
    for payer, (_, waits, _) in payers.items():
        for _ in range(waits):
            queue.add(queued(payer), ())
    queue._spent.update({payer: had for payer, (_, _, had) in payers.items()})
    running = {payer: runs for payer, (runs, _, _) in payers.items() if runs}
    may = {
        payer: had
        for payer, (runs, waits, had) in payers.items()
        if waits
        and not any(
            8 * (payers[other][0] + payers[other][1]) <= runs + waits and payers[other][2] < had for other in running
        )
    }
    found = queue.next(lambda _: True, running=running)
    if found is None:
        assert not may and (running or not any(waits for _, waits, _ in payers.values()))
    else:
        assert may[found.request.payer] == min(may.values())


def test_a_request_that_does_not_fit_lets_others_by_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FairQueue({})
    large, small = queued("large", 100), [queued("small") for _ in range(3)]
    queue.add(large, ())
    for entry in small:
        queue.add(entry, ())

    def fits(entry: QueuedRequest) -> bool:
        return entry.capacity == 1

    assert queue.next(fits, running={}) is small[0]
    monkeypatch.setattr("blend.engine.fair_queue.PATIENCE_S", -1.0)
    assert queue.next(fits, running={}) is None
    assert queue.next(lambda entry: True, running={}) is large


def test_one_request_of_another_goes_before_many_of_one() -> None:
    held, order = Held(), list[str]()
    with engine(ours("llama"), EngineLimits(running=1)) as to:
        first = Asked(to, EngineRequest(PLAIN, Sampling(max_tokens=1, processor=held), payer="many"))
        assert held.reached.wait(60)
        over = threading.Semaphore(0)

        def note(payer: str, event: object) -> None:
            order.extend([payer] if isinstance(event, Ready) else [])
            if isinstance(event, Done | Failed):
                over.release()

        for payer in [*["many"] * 10, "one", *["many"] * 3]:
            request = EngineRequest(PLAIN, GREEDY, payer=payer)
            to.submit(request, lambda event, payer=payer: note(payer, event))
        held.release.set()
        first.wait()
        for _ in range(14):
            assert over.acquire(timeout=60)
    assert order == ["one", *["many"] * 13]


def test_a_long_prompt_whose_beginning_is_kept_goes_before_a_shorter_new_one() -> None:
    held, (long, short) = Held(), (Prompt(PREFIX, (), each) for each in draw(5, 600, 100))
    further = Prompt(PREFIX, (), (*long.suffix, *A))
    with engine(ours("llama"), EngineLimits(running=1)) as to:
        Asked(to, EngineRequest(long, GREEDY)).wait()
        Asked(to, EngineRequest(PLAIN, Sampling(max_tokens=1, processor=held)))
        assert held.reached.wait(60)
        asked = [Asked(to, EngineRequest(prompt, GREEDY)) for prompt in (short, further)]
        held.release.set()
        waits = [each.wait().ready.queued_s for each in asked]
    assert waits[1] < waits[0]


@pytest.mark.parametrize("weight", [1.0, 1000.0])
def test_one_payer_leaves_room_where_another_was_here(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever of the two had less time, and however long those wait that it leaves no room for itself."""
    monkeypatch.setattr("blend.engine.fair_queue.PATIENCE_S", -1.0)
    endless = Sampling(max_tokens=2000, ignore_eos=True)
    with engine(ours("llama"), EngineLimits(running=8, weights={"many": weight})) as to:
        Asked(to, EngineRequest(PLAIN, GREEDY, payer="one")).wait()
        many = [Asked(to, EngineRequest(PLAIN, endless, payer="many")) for _ in range(12)]
        for asked in many[:7]:
            asked.next()
        late = [Asked(to, EngineRequest(PLAIN, GREEDY, payer="one")).wait() for _ in range(3)]
        for asked in many:
            asked.ticket.cancel()
        begun = sum(isinstance(asked.wait().events[0], Ready) for asked in many)
    assert ([each.done.reason for each in late], begun) == (["length"] * 3, 7)


def test_a_capture_ends_where_requests_never_do() -> None:
    """Each listener asks again before its request has ended."""
    stopped = threading.Event()
    with engine(ours("llama")) as to:

        def again(event: object) -> None:
            if isinstance(event, Ready) and not stopped.is_set():
                ask()

        def ask() -> None:
            to.submit(EngineRequest(PLAIN, GREEDY), again)

        for _ in range(4):
            ask()
        try:
            assert len(to.capture(PREFIX, draw(17, *[200] * 20)).result(60)) == 20
        finally:
            stopped.set()


def test_a_request_waits_for_one_part_of_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "TURN_S", 60.0)  # a turn has room for all of it
    order = list[str]()
    with engine(ours("llama")) as to:
        to.compute([lambda: None]).result(60)  # what a part takes is known then

        def part(number: int) -> int:
            if number == 1:
                to.submit(EngineRequest(PLAIN, GREEDY), lambda event: order.append(type(event).__name__))
            order.append(str(number))
            return number

        assert to.compute([partial(part, number) for number in range(4)]).result(60) == [0, 1, 2, 3]
        failed = to.compute([lambda: 1 // 0, lambda: 1])
        with pytest.raises(ZeroDivisionError):
            failed.result(60)
        assert to.compute([lambda: 7]).result(60) == [7], "others go on"
    assert order[:3] == ["0", "1", "Ready"]


def test_captures_of_several_take_turns_and_short_ones_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "TURN_S", 0.0)  # a pass each
    order = list[str]()
    with engine(ours("llama"), EngineLimits(weights={"heavy": 8.0})) as to:
        with to._changed:  # pyright: ignore[reportPrivateUsage] (nothing begins before all are there)
            for name, payer, count in [
                ("large", "many", 60), ("next", "many", 60), ("small", "many", 1), ("other", "one", 1),
                ("half", "light", 30), ("whole", "heavy", 60),
            ]:  # fmt: skip
                job = to.capture(PREFIX, draw(17, *[200] * count), payer=payer)
                job.add_done_callback(lambda _, name=name: order.append(name))
        assert len(to.capture(PREFIX, [A], payer="many").result(60)) == 1
        assert {*order} <= {"small", "other"}
    assert {*order[:2]} == {"small", "other"}
    assert order.index("whole") < order.index("half")  # twice the chunks, and eight times the weight
    assert order[-2:] == ["large", "next"]


def test_what_cannot_be_in_time_is_refused_before_it_waits() -> None:
    held = Held()
    with engine(ours("llama"), EngineLimits(running=1)) as to:
        first = Asked(to, EngineRequest(PLAIN, Sampling(max_tokens=1, processor=held)))
        assert held.reached.wait(60)
        waiting = [Asked(to, EngineRequest(PLAIN, GREEDY)) for _ in range(20)]
        to._waiting._start_s = 60.0  # pyright: ignore[reportPrivateUsage] (seconds that a request took, lately)
        with pytest.raises(Late, match=r"20 requests go before this one.*give it more time") as refused:
            to.submit(EngineRequest(PLAIN, GREEDY, within_s=100.0), lambda event: None)
        assert refused.value.retry_after_s > 0
        with pytest.raises(Late, match="20 requests go before"):
            to.refuse_late("", 100.0)
        to.refuse_late("another", 100.0)
        assert (to.waits_s(""), to.waits_s("another")) == (20 * 60.0, 60.0)
        of_another = Asked(to, EngineRequest(PLAIN, GREEDY, payer="another", within_s=100.0))
        held.release.set()
        for asked in [first, *waiting, of_another]:
            assert asked.wait().done


def test_an_answer_ends_with_its_time_wherever_it_is() -> None:
    endless = Sampling(max_tokens=2000, ignore_eos=True)
    with engine(ours("llama"), EngineLimits(running=1, piece_rows=16)) as to:
        decoding = Asked(to, EngineRequest(PLAIN, endless, within_s=0.3))
        waiting = Asked(to, EngineRequest(PLAIN, GREEDY, within_s=0.2))
        long = dataclasses.replace(PLAIN, segments=(TextSegment(LONG),))
        for asked in (decoding.wait(), waiting.wait(), Asked(to, EngineRequest(long, GREEDY, within_s=0.01)).wait()):
            assert isinstance(asked.error, Late) and "the time that it was given" in str(asked.error)
        assert Asked(to, EngineRequest(PLAIN, GREEDY)).wait().done.reason == "length"


def test_of_what_is_cancelled_no_turn_is_computed_behind_the_one_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    held, begun = Held(), list[int]()

    def part(number: int) -> None:
        begun.append(number)
        held.reached.set()
        assert held.release.wait(60)

    monkeypatch.setattr(local_engine, "TURN_S", 0.0)  # of one part
    with engine(ours("llama")) as to:
        work = to.compute([partial(part, number) for number in range(3)])
        assert held.reached.wait(60)
        is_cancelled = work.cancel()
        held.release.set()
        assert to.capture(PREFIX, [A]).result(60)[0].tokens == len(A)

    assert is_cancelled and begun == [0]
