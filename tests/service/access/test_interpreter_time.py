"""The interpreter's time: who has how much of it while others' answers are computed, and what is counted."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.access.interpreter_time import (
    AHEAD_S,
    INTERPRETER,
    LATELY_S,
    LONGEST_S,
    SHARE,
    InterpreterTime,
    counted,
    elsewhere,
    metered,
)
from tests.service.serving import good, in_process, settings_in, wait_for

WORK_S = 0.02


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@settings(max_examples=25)
@given(st.lists(st.floats(0.0005, 0.05), min_size=1, max_size=4))
def test_owners_that_always_want_more_have_the_share_alike(pieces: Sequence[float]) -> None:
    """Each works in pieces of one length, one at a time has the processor; who rests looks again when that is over."""
    clock, had, end = Clock(), [0.0] * len(pieces), 30.0
    interpreter = InterpreterTime(clock=clock)
    with interpreter.answering("asks"):
        while clock.now < end:
            soonest_s = LONGEST_S
            for number, took in enumerate(pieces):
                rests_s = interpreter.rests_s(str(number))
                soonest_s = min(soonest_s, rests_s)
                if not rests_s:
                    interpreter.took(str(number), took)
                    had[number] += took
                    clock.now += took
            assert interpreter.rests_s("asks") == 0
            clock.now += max(0.001, soonest_s)
    assert sum(had) <= clock.now * SHARE + len(pieces) * (AHEAD_S + max(pieces))
    assert min(had) >= 0.8 * clock.now * SHARE / len(pieces) - max(pieces)


def test_nobody_rests_beside_his_own_answers_or_none() -> None:
    clock = Clock()
    interpreter = InterpreterTime(clock=clock)
    interpreter.took("a", 100)
    with interpreter.answering("a"):
        interpreter.took("a", 100)
        assert interpreter.rests_s("a") == 0
    with interpreter.answering("b"):
        assert interpreter.rests_s("a") == 0
        interpreter.took("a", 100)
        assert interpreter.rests_s("a") == LONGEST_S and interpreter.rests_s("b") == 0
    assert interpreter.rests_s("a") == LONGEST_S, "who was answered just now asks again"
    assert interpreter.rests_s("a", shortly_after=False) == 0
    interpreter.took("a", 100)
    assert interpreter.rests_s("a") == LONGEST_S
    clock.now += LATELY_S
    assert interpreter.rests_s("a") == 0


def work() -> str:
    end = time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass
    return threading.current_thread().name


def test_steps_and_threads_are_counted_and_waiting_is_not() -> None:
    took: list[float] = []

    async def task(pool: ThreadPoolExecutor) -> str:
        work()
        await asyncio.sleep(4 * WORK_S)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(1)
        work()
        return await asyncio.get_running_loop().run_in_executor(pool, elsewhere(work))

    with ThreadPoolExecutor(1, "other") as pool:
        assert asyncio.run(metered(task(pool), took.append)) == "other_0"
    assert 3 * WORK_S <= sum(took) < 5 * WORK_S
    assert counted(work) and sum(took) < 5 * WORK_S, "it is nobody's"


def test_what_a_task_raises_comes_through_and_an_answer_is_not_counted() -> None:
    interpreter, took = InterpreterTime(), list[float]()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError

    async def answers() -> None:
        with interpreter.answering("a"):
            work()

    with pytest.raises(KeyError):
        asyncio.run(metered(fails(), took.append))
    asyncio.run(metered(answers(), took.append))
    assert sum(took) < WORK_S


def test_a_tenant_who_had_his_share_waits_and_probes_do_not(tmp_path: Path) -> None:
    with in_process(settings_in(tmp_path)) as inside, inside.client() as client, ThreadPoolExecutor(3) as pool:
        with INTERPRETER.answering("other"):
            INTERPRETER.took("default", 1000.0)
            INTERPRETER.share = 1e-9  # so little that nobody's rest ends
            try:
                waiting = [pool.submit(client.get, "/v1/documents", timeout=30) for _ in range(3)]
                assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
                time.sleep(0.3)
                assert not any(each.done() for each in waiting)
            finally:
                INTERPRETER.share = SHARE
        assert [each.result().status_code for each in waiting] == [200] * 3


def test_requests_and_the_cutting_of_uploads_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    had, took = Counter[str](), INTERPRETER.took

    def noted(owner: str, seconds: float) -> None:
        had[owner] += 1
        took(owner, seconds)

    monkeypatch.setattr(INTERPRETER, "took", noted)
    text = "".join(f"Kelo {number} lives in house {number} of Sunel. " for number in range(2000))
    with in_process(settings_in(tmp_path)) as inside, inside.client() as client, INTERPRETER.answering("other"):
        job = good(client.post("/v1/documents", json={"documents": [{"id": "long", "text": text}]}))["job_id"]
        assert had["default"]
        wait_for(lambda: had["uploads of default"] > 5, "its cutting is counted")
        good(client.delete(f"/v1/jobs/{job}"))
