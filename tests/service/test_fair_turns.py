"""Turns: one piece of work of each owner at a time, whoever gives up meanwhile."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from service.answers.fair_turns import FairTurns
from service.errors import Exhausted

WITHIN_S = 30  # for broken products alone


class Held:
    """Work that lasts until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        assert self.let_go.wait(WITHIN_S)
        return 7


async def begun(work: Held) -> None:
    assert await asyncio.to_thread(work.begun.wait, WITHIN_S)


def played(play: Callable[[FairTurns], Awaitable[None]], *, threads: int = 2, longest: int = 3) -> None:
    async def run() -> None:
        turns = FairTurns(threads, longest=longest, waiting="pieces of work wait")
        try:
            await asyncio.wait_for(play(turns), WITHIN_S)
        finally:
            turns.close()

    asyncio.run(run())


def test_who_asks_for_much_waits_behind_itself_alone() -> None:
    async def play(turns: FairTurns) -> None:
        held = [Held() for _ in range(3)]
        much = [asyncio.create_task(turns.run("a", work)) for work in held]
        await begun(held[0])
        assert await turns.run("b", lambda: 8) == 8  # there is a thread for it
        assert not held[1].begun.is_set()
        for work in held:
            work.let_go.set()
        assert await asyncio.gather(*much) == [7, 7, 7]

    played(play)


def test_a_line_that_is_too_long_is_refused_until_it_is_shorter() -> None:
    async def play(turns: FairTurns) -> None:
        held = [Held(), Held()]
        much = [asyncio.create_task(turns.run("a", work)) for work in held]
        await begun(held[0])
        with pytest.raises(Exhausted, match="2 pieces of work wait") as refusal:
            await turns.run("a", lambda: 8)
        assert refusal.value.retry_after_s
        much.pop().cancel()
        await asyncio.sleep(0)
        late = asyncio.create_task(turns.run("a", lambda: 8))
        held[0].let_go.set()
        assert (await much[0], await late) == (7, 8)
        assert not held[1].begun.is_set()

    played(play, longest=2)


def test_work_goes_on_and_keeps_its_turn_when_who_asked_is_gone() -> None:
    async def play(turns: FairTurns) -> None:
        held = Held()
        gone = asyncio.create_task(turns.run("a", held))
        await begun(held)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        with pytest.raises(Exhausted):
            await turns.run("a", lambda: 8)
        held.let_go.set()
        while True:
            try:
                assert await turns.run("a", lambda: 8) == 8
                return
            except Exhausted:
                await asyncio.sleep(0)

    played(play, longest=1)


def test_what_fails_raises_and_leaves_the_turn_to_the_next() -> None:
    async def play(turns: FairTurns) -> None:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await turns.run("a", lambda: 1 // 0)

    played(play, threads=1, longest=1)
