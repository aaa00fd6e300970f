"""Prompts that begin alike: what of them is computed once, and that they are answered as transformers answers."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from blend.engine.engine import EngineLimits, EngineRequest
from blend.engine.local_engine import LocalEngine
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import ChunkSegment, Prompt, TextSegment
from blend.run import context
from tests.blend import dense
from tests.blend.asking import Asked, engine
from tests.blend.families import HYBRIDS, draw, halved, native, ours
from tests.blend.fusing import source
from tests.blend.test_engine import GREEDY, MIXED, PLAIN, PREFIX, SUFFIX, A, B


@pytest.mark.parametrize("name", ["llama", *HYBRIDS])
def test_a_prefix_is_computed_once_and_stays_exact(name: str) -> None:
    model, prompt = ours(name), MIXED.prompt(ours(name))
    with engine(model) as to:
        first = Asked(to, EngineRequest(prompt, GREEDY, BlendOrder("heads", 0.3))).wait()
        second = Asked(to, EngineRequest(prompt, GREEDY, BlendOrder("heads", 0.3))).wait()
        exact = Asked(to, EngineRequest(prompt, GREEDY, BlendOrder(ratio=1.0))).wait()

    assert dense.is_greedy(native(name), prompt.ids, exact.ids)
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
        assert dense.is_greedy(native(name), prompt.ids, asked.ids, tie=1e-4)
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
                assert dense.is_greedy(native(name), prompt.ids, asked.ids, tie=1e-4)
                said[whose] = (*prompt.ids, *asked.ids, *turns[0])
        assert {each.on_disk for each in to._prefixes._kept} == {True, False}
    first = len(PLAIN.ids) + 12 + 16 - 1
    assert reused[2:4] == [first, first + 1]
    assert reused[4] > first


def turns(to: LocalEngine, first: EngineRequest, turn: Sequence[int]) -> tuple[Asked, EngineRequest]:
    """What answers a request, and the request that goes on behind the answer."""
    asked, prompt = Asked(to, first).wait(), first.prompt
    said = TextSegment((*prompt.suffix, *asked.ids))
    return asked, dataclasses.replace(first, prompt=Prompt(PREFIX, (*prompt.segments, said), tuple(turn)))


@pytest.mark.parametrize(
    ("name", "policy"), halved(["llama", "gemma3", "deepseek-v3", *HYBRIDS], ["reuse", "heads", "exact", "replay"])
)
def test_a_session_answers_as_if_each_turn_were_blended_anew_and_computes_what_is_new(name: str, policy: str) -> None:
    """By orders whose choice is the documents' alone, so that both compute the same rows."""
    model, (turn, third) = ours(name), draw(8, 12, 13)
    order = BlendOrder(ratio=1.0) if policy == "exact" else BlendOrder(policy, 0.3)
    if policy == "replay" and not model.decoder.model_layers.stretches:
        return
    first = EngineRequest(MIXED.prompt(model), GREEDY, order, owner="one", session="s")
    anew = dataclasses.replace(first, session="")
    with engine(model) as to:
        one, two = turns(to, first, turn)
        second, three = turns(to, two, third)
        last = Asked(to, three).wait()
        for asked, request in ((one, first), (second, two), (last, three)):
            again = Asked(to, dataclasses.replace(anew, prompt=request.prompt)).wait()
            assert asked.ids == again.ids
            if order.ratio == 1.0:
                assert dense.is_greedy(native(name), request.prompt.ids, asked.ids)
    fresh = [each.ready.report.fresh + each.ready.report.recomputed for each in (second, last)]
    assert fresh == [len(turn) + 1, len(third) + 1]


@pytest.mark.parametrize("name", ["llama", "qwen3.5"])
@pytest.mark.parametrize("kind", ["exact", "blended"])
def test_a_chunk_that_begins_in_what_a_session_holds_and_ends_behind_it_is_text(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a text grows, or an answer quotes one. Memory is not empty: who reads of it answers otherwise."""
    model, rooms = ours(name), context._rooms
    monkeypatch.setattr(context, "_rooms", lambda *args, **more: [each.fill_(7.0) for each in rooms(*args, **more)])
    held = [ChunkSegment(each, source(model, PREFIX, each)) for each in (A[:20], A, B)]
    first, whole, begun = (held[:1], held[1:2], A[20:]) if kind == "exact" else (held[1:2], held[1:], B)
    ask = EngineRequest(Prompt(PREFIX, tuple(first), begun[:15]), GREEDY, BlendOrder("reuse"), owner="one", session="s")
    grown = dataclasses.replace(ask, prompt=Prompt(PREFIX, tuple(whole), SUFFIX))
    text = dataclasses.replace(ask, prompt=Prompt(PREFIX, tuple(first), (*begun, *SUFFIX)), session="")
    with engine(model) as to:
        Asked(to, dataclasses.replace(ask, sampling=dataclasses.replace(GREEDY, max_tokens=1))).wait()
        asked, anew = Asked(to, grown).wait(), Asked(to, text).wait()
    assert asked.ids == anew.ids
    assert asked.ready.report.fresh == len(begun) - 15 + len(SUFFIX)
    assert [str(miss) for _, miss in asked.ready.report.misses] == ["begun before"]


@pytest.mark.parametrize(
    "policy", ["ask/rows=question/layers=third", "ask/layers=2/check=1/times=2", "deviation", "hybrid"]
)
def test_what_a_session_computes_anew_for_each_question_adds_up(policy: str) -> None:
    """Rows that one question chose stay; the next one chooses among the others, in its budget, until none is left."""
    model, questions, chosen = ours("llama"), draw(9, 12, 11, 10, 12), list[set[int]]()
    request = EngineRequest(MIXED.prompt(model), GREEDY, BlendOrder(policy, 0.4), session="s")
    with engine(model) as to:
        for number, question in enumerate(questions):
            alone = Asked(to, dataclasses.replace(request, session="")).wait()
            asked, further = turns(to, request, question)
            chosen.append({*asked.ready.report.stages[-1]})
            assert len(chosen[-1]) <= len(alone.ready.report.stages[-1])
            assert number == 0 or asked.ready.report.fresh == len(request.prompt.suffix) + 1
            request = further
    cached = sum(
        len(each.ids) for each in MIXED.prompt(model).segments if isinstance(each, ChunkSegment) and each.source
    )
    assert len(set[int]().union(*chosen)) == sum(map(len, chosen)) <= cached
    assert chosen[0] and chosen[1] and not chosen[-1]


def test_a_turn_of_a_session_that_is_asked_again_computes_its_last_token() -> None:
    first = EngineRequest(MIXED.prompt(ours("llama")), GREEDY, BlendOrder("reuse"), session="s")
    with engine(ours("llama")) as to:
        once, again = [Asked(to, first).wait() for _ in range(2)]
    assert (again.ready.report.fresh, again.ids) == (1, once.ids)
    assert once.ready.report.fresh > 1


@pytest.mark.parametrize(
    "other",
    [
        {"session": "t"},
        {"owner": "another"},
        {"payer": "another"},
        {"order": BlendOrder("reuse", 0.3)},
        {"order": BlendOrder("full")},
        {"session": ""},
    ],
    ids=str,
)
def test_another_session_owner_payer_or_order_gains_nothing(other: dict[str, Any]) -> None:
    model, (turn,) = ours("llama"), draw(8, 12)
    first = EngineRequest(MIXED.prompt(model), GREEDY, BlendOrder("heads", 0.3), "one", "tenant", session="s")
    with engine(model) as to:
        _, further = turns(to, first, turn)
        theirs = dataclasses.replace(further, **other)
        before = Asked(to, dataclasses.replace(theirs, owner="nobody", session="")).wait()
        assert Asked(to, theirs).wait().ready.report.reused <= before.ready.report.reused + len(PREFIX)
        assert Asked(to, further).wait().ready.report.fresh == len(turn) + 1


def test_what_is_deleted_ends_its_payers_sessions_those_on_their_way_too() -> None:
    model, (turn,) = ours("llama"), draw(8, 12)
    first = EngineRequest(MIXED.prompt(model), GREEDY, BlendOrder("reuse"), "one", "tenant", session="s")
    other = dataclasses.replace(first, payer="other", owner="another")
    with engine(model) as to:
        _, further = turns(to, first, turn)
        _, theirs = turns(to, other, turn)
        late = dataclasses.replace(first, prompt=MIXED.prompt(model), as_of=time.monotonic(), session="late")
        to.end_sessions("tenant")
        _, behind = turns(to, late, turn)
        further, behind, theirs = (
            dataclasses.replace(each, as_of=time.monotonic()) for each in (further, behind, theirs)
        )
        assert all(
            to._prefixes.tokens(each.prompt.ids, owner="one", session=each.of_session) == 0
            for each in (further, behind)
        )
        of_it = [each.session for each in to._prefixes._kept if each.session and each.session.payer == "tenant"]
        assert not [each for each in of_it if each.order], "what is exact holds no document"
        assert Asked(to, theirs).wait().ready.report.fresh == len(turn) + 1
        again, more = turns(to, dataclasses.replace(first, as_of=time.monotonic()), turn)
        assert again.ready.report.fresh > len(turn) + 1
        assert Asked(to, more).wait().ready.report.fresh == len(turn) + 1
