"""Prompts that begin alike: what of them is computed once, and that they are answered as transformers answers."""

import dataclasses
from pathlib import Path

import pytest

from blend.engine.engine import EngineLimits, EngineRequest
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import ChunkSegment, Prompt
from tests.blend import dense
from tests.blend.asking import Asked, engine
from tests.blend.families import HYBRIDS, draw, native, ours
from tests.blend.test_engine import GREEDY, MIXED, PLAIN, PREFIX, SUFFIX, A


@pytest.mark.parametrize("name", ["llama", *HYBRIDS])
def test_a_prefix_is_computed_once_and_stays_exact(name: str) -> None:
    model, prompt = ours(name), MIXED.prompt(ours(name))
    reference = dense.greedy(native(name), prompt.ids, 16)[0]
    with engine(model) as to:
        first = Asked(to, EngineRequest(prompt, GREEDY, BlendOrder("heads", 0.3))).wait()
        second = Asked(to, EngineRequest(prompt, GREEDY, BlendOrder("heads", 0.3))).wait()
        assert Asked(to, EngineRequest(prompt, GREEDY, BlendOrder(ratio=1.0))).wait().ids == reference

    assert second.ready.report.reused == first.ready.report.reused + len(PREFIX)
    assert second.ids == first.ids


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek-v3", *HYBRIDS])
def test_a_turn_that_goes_on_computes_what_is_new_and_answers_as_transformers(name: str) -> None:
    """Without chunks all that a prompt shares with one before it is exact, the answer of that one too."""
    model, (turn, other) = ours(name), draw(2, 12, 13)
    ask, aside = EngineRequest(PLAIN, GREEDY, BlendOrder("reuse"), owner="one"), Prompt(PREFIX, (), (*A, *other))
    with engine(model) as to:
        first = Asked(to, ask).wait()
        said = (*PLAIN.ids, *first.ids)
        further = dataclasses.replace(ask, prompt=Prompt(PREFIX, (), (*said[len(PREFIX) :], *turn)))
        elsewhere = dataclasses.replace(further, owner="another")
        second, stranger = (Asked(to, each).wait() for each in (further, elsewhere))
        branch = Asked(to, dataclasses.replace(ask, prompt=aside)).wait()
        behind = Prompt((*said, *turn), MIXED.prompt(model).segments, SUFFIX)
        chunks = Asked(to, EngineRequest(behind, GREEDY, BlendOrder("reuse"), owner="one")).wait()
        again = Asked(to, EngineRequest(behind, GREEDY, BlendOrder("full"), owner="one")).wait()

    for asked, prompt in ((second, further.prompt), (stranger, further.prompt), (branch, aside)):
        tokens, leads = dense.greedy(native(name), prompt.ids, 16)
        certain = next((count for count, lead in enumerate(leads) if lead < 1e-4), 16)
        assert asked.ids[:certain] == tokens[:certain]
    reused = [each.ready.report.reused for each in (second, stranger, branch)]
    assert reused == [len(said) - 1, 0, len(PREFIX) if name in HYBRIDS else len(PREFIX) + len(A)]
    spans = sum(len(each.ids) for each in behind.segments if isinstance(each, ChunkSegment))
    assert chunks.ready.report.reused >= len(said) - 1 + spans / 2
    assert again.ready.report.reused == 0


@pytest.mark.parametrize("name", ["llama", *HYBRIDS])
def test_turns_go_on_from_the_disk_where_memory_has_room_for_one_conversation(name: str, tmp_path: Path) -> None:
    model, turns = ours(name), draw(2, 12, 13)
    room = (160 + model.decoder.state_tokens) * model.decoder.token_bytes
    said = {whose: (*PLAIN.ids, *turns[at]) for at, whose in enumerate(("one", "another"))}
    reused = list[int]()
    with engine(model, EngineLimits(prefix_bytes=room, spill=tmp_path)) as to:
        for _ in range(3):
            for whose in said:
                prompt = Prompt(PREFIX, (), said[whose][len(PREFIX) :])
                asked = Asked(to, EngineRequest(prompt, GREEDY, BlendOrder("reuse"), owner=whose)).wait()
                reused.append(asked.ready.report.reused)
                tokens, leads = dense.greedy(native(name), prompt.ids, 16)
                certain = next((count for count, lead in enumerate(leads) if lead < 1e-4), 16)
                assert asked.ids[:certain] == tokens[:certain]
                said[whose] = (*prompt.ids, *asked.ids, *turns[0])
        assert {each.on_disk for each in to._prefixes._kept} == {True, False}
    first = len(PLAIN.ids) + 12 + 16 - 1
    assert reused[2:4] == [first, first + 1]
    assert reused[4] > first
