"""Turns on the event loop: how many begin in a round, and in which order."""

import asyncio

from service.api.turns import Turns


def order(callers: str) -> list[str]:
    """In which order requests begin that come together; a bar stands between two rounds."""
    begun: list[str] = []

    async def visit(turns: Turns, caller: str) -> None:
        await turns.wait(caller)
        begun.append(caller)

    async def scene() -> None:
        turns = Turns()
        visits = [asyncio.ensure_future(visit(turns, caller)) for caller in callers]
        while not all(each.done() for each in visits):
            await asyncio.sleep(0)
            begun.append("|")
        assert not any(turns.waiting(caller) for caller in callers)

    asyncio.run(scene())
    return "".join(begun).strip("|").split("|")


def test_one_begins_in_each_round() -> None:
    assert order("a" * 10) == ["a"] * 10


def test_a_crowd_is_not_in_front_of_others() -> None:
    begun = "".join(order("aaaaaaaabbc"))
    assert begun[:5] == "abcab" and sorted(begun) == list("aaaaaaaabbc")
