"""Which beginnings of prompts are kept, and that they come back as they were: against a list of all ever kept."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import ParamSpec, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blend.run.context import Context, LayerShape
from blend.run.prefixes import KEPT_S, Prefixes, Session
from blend.run.spill import Spill
from blend.run.states import LayerState

SHAPES = (LayerShape(2, 4, 1, 6), None, LayerShape(1, 3, 1, 3))
TOKEN_BYTES = (8 + 6 + 3 + 3) * 4
ROOM = 8

P = ParamSpec("P")
R = TypeVar("R")

Ids = tuple[int, ...]
Step = tuple[str, str, Ids]

IDS = st.lists(st.integers(0, 2), min_size=1, max_size=ROOM).map(tuple)
STEPS = st.lists(st.tuples(st.sampled_from(["keep", "restore"]), st.sampled_from(["a", "b"]), IDS), max_size=30)


def context(owner: str = "", ids: Ids = ()) -> Context:
    """One whose row at a slot tells whose it is, and all tokens up to there."""
    made = Context(SHAPES, capacity=ROOM, dtype=torch.float32, device=torch.device("cpu"))
    for layer in made.layers:
        for slot in range(ROOM):
            said = float(hash((owner, layer, ids[: slot + 1])) % (1 << 20)) if slot < len(ids) else 0.0
            made.keys(layer)[:, slot], made.values(layer)[:, slot] = said, -said
    return made


def restored(prefixes: Prefixes, ids: Ids, owner: str) -> int:
    """How many tokens came back, each the owner's own behind the same tokens."""
    found, wanted = context(), context(owner, ids)
    prefixes.restore(ids, found, owner=owner)
    for layer in found.layers:
        rows = [each.part(layer, slice(found.placed)) for each in (found, wanted)]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*rows, strict=True))
    return found.placed


def common(one: Ids, other: Ids) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def take(step: Step, prefixes: Prefixes, kept: list[tuple[str, Ids]]) -> None:
    """Keeps a beginning, or restores the longest of all that its owner ever kept."""
    what, owner, ids = step
    if what == "keep":
        prefixes.keep(ids, context(owner, ids), owner=owner)
        kept.append((owner, ids))
    else:
        longest = max((common(ids, each) for whose, each in kept if whose == owner), default=0)
        assert restored(prefixes, ids, owner) == longest


@given(STEPS)
def test_a_prompt_begins_with_the_longest_beginning_that_its_owner_has(steps: list[Step]) -> None:
    prefixes, kept = Prefixes(1 << 20), list[tuple[str, Ids]]()
    for step in steps:
        take(step, prefixes, kept)
    of_each = [[ids for whose, ids in set(kept) if whose == owner] for owner in ("a", "b")]
    ends = [sum(all(one == each or common(each, one) < len(each) for one in own) for each in own) for own in of_each]
    assert len(prefixes._kept) == sum(ends)  # what another one begins with takes no room


@given(STEPS)
def test_they_stay_within_the_budget_and_one_owner_costs_another_nothing(
    steps: list[Step],
) -> None:
    prefixes, quiet = Prefixes(2 * ROOM * TOKEN_BYTES), (9, 9, 9)
    prefixes.keep(quiet, context("quiet", quiet), owner="quiet")
    for what, owner, ids in steps:
        if what == "keep":
            prefixes.keep(ids, context(owner, ids), owner=owner)
            assert restored(prefixes, ids, owner) == len(ids)
        sizes = Counter[str]()
        for each in prefixes._kept:
            sizes[each.owner] += each.context.nbytes
        assert sum(sizes.values()) <= 2 * ROOM * TOKEN_BYTES
    assert restored(prefixes, quiet, "quiet") == len(quiet)


def test_what_is_larger_than_the_budget_costs_the_others_nothing() -> None:
    prefixes = Prefixes(3 * TOKEN_BYTES)
    for ids in ((1, 2, 3), (1, 2, 3, 4)):
        prefixes.keep(ids, context("a", ids), owner="a")
    assert restored(prefixes, (1, 2, 3, 4), "a") == 3


def test_what_nobody_uses_goes_after_its_time() -> None:
    now = [0.0]
    prefixes = Prefixes(1 << 20, clock=lambda: now[0])
    for ids in ((1, 2), (2, 1)):
        prefixes.keep(ids, context("a", ids), owner="a")
    now[0] = 0.9 * KEPT_S
    assert restored(prefixes, (1, 2), "a") == 2
    now[0] = 1.1 * KEPT_S
    assert (restored(prefixes, (2, 1), "a"), restored(prefixes, (1, 2), "a")) == (0, 2)
    now[0] = 2 * KEPT_S
    assert prefixes.left_s == pytest.approx(0.1 * KEPT_S)
    now[0] = 2.2 * KEPT_S
    prefixes.expire()
    assert (len(prefixes._kept), prefixes.left_s) == (0, None)


def test_a_session_has_its_last_prompt_alone_and_ends_for_those_that_were_looked_up_before() -> None:
    now = [10.0]
    prefixes = Prefixes(1 << 20, clock=lambda: now[0])
    one, later, other = (Session(payer, "s", "reuse", as_of=at) for payer, at in (("a", 9.0), ("a", 11.0), ("b", 9.0)))
    for ids in ((1, 2), (2, 1, 1)):
        prefixes.keep(ids, context("a", ids), owner="a", session=one, least=2)
    prefixes.keep((1, 2), context("b", (1, 2)), owner="b", session=other, least=2)
    kept = [prefixes.tokens(ids, owner="a", session=later) for ids in ((1, 2), (2, 1, 1), (2, 1), (2, 2, 1))]
    assert (kept, prefixes.tokens((2, 1, 1), owner="a")) == ([0, 3, 2, 0], 0)
    prefixes.end_sessions("a")
    prefixes.keep((2, 2), context("a", (2, 2)), owner="a", session=one)
    assert (prefixes.left_s, prefixes.tokens((2, 1, 1), owner="a", session=later)) == (0.0, 0)
    prefixes.expire()
    assert [each.owner for each in prefixes._kept] == ["b"]
    prefixes.keep((2, 2), context("a", (2, 2)), owner="a", session=later)
    assert prefixes.tokens((2, 2), owner="a", session=later) == 2


def test_a_session_that_is_ended_by_its_name_leaves_nothing_blended_or_exact_and_others_stay() -> None:
    now = [10.0]
    prefixes = Prefixes(1 << 20, clock=lambda: now[0])
    orders = ("reuse 0.15", "ask 0.3", "")
    for name, order in product("st", orders):
        ids = (1, ord(name), len(order))
        prefixes.keep(ids, context("a", ids), owner="a", session=Session("p", name, order, as_of=9.0))
    prefixes.end_sessions("p", "s")
    late = Session("p", "s", "reuse 0.15", as_of=9.5)
    prefixes.keep((1, 2), context("a", (1, 2)), owner="a", session=late)
    prefixes.expire()
    assert [(each.session.name, each.session.order) for each in prefixes._kept if each.session] == [
        ("t", order) for order in orders
    ]
    now[0] += KEPT_S + 1
    prefixes.expire()
    assert not prefixes._kept


def test_of_many_that_ended_few_names_are_known_and_what_is_on_its_way_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blend.run.prefixes.ENDED", 2)
    now = [10.0]
    prefixes = Prefixes(1 << 20, clock=lambda: now[0])

    def left(name: str, as_of: float) -> int:
        session = Session("a", name, "reuse", as_of=as_of)
        prefixes.keep((1, 2), context("a", (1, 2)), owner="a", session=session)
        return prefixes.tokens((1, 2), owner="a", session=session)

    assert left("0", 9.0) == left("stays", 9.0) == 2
    for name in "0123":
        now[0] += 1.0
        prefixes.end_sessions("a", name)
    assert len(prefixes._ended["a"]) > 2, "what is kept is known to have ended"
    prefixes.expire()
    prefixes.end_sessions("a", "4")
    assert [*prefixes._ended["a"]] == ["3", "4"]
    assert (left("0", 9.0), left("0", 13.5)) == (0, 2)
    assert prefixes.tokens((1, 2), owner="a", session=Session("a", "stays", "reuse")) == 2


def test_a_lease_is_as_long_as_it_was_named_and_goes_before_what_else_its_owner_has() -> None:
    """A pin takes no other owner's share."""
    now = [10.0]
    size = context("a", (1,) * 8).nbytes
    prefixes = Prefixes(4 * size, clock=lambda: now[0])

    def keep(owner: str, first: int, keep_s: float | None = None) -> None:
        ids = (first,) * 8
        prefixes.keep(ids, context(owner, ids), owner=owner, session=Session(owner, f"{first}", "o", keep_s))

    def kept() -> str:
        prefixes.expire()
        return "".join(sorted(f"{each.owner}{each.ids[0]}" for each in prefixes._kept))

    keep("a", 1, 3 * KEPT_S)
    keep("a", 2, 60.0)
    for first in (3, 4, 5):
        keep("a", first)
    assert kept() == "a1a2a4a5"
    keep("b", 1)
    keep("b", 2)
    assert kept() == "a1a2b1b2"
    keep("a", 3)
    assert kept() == "a1a2b1b2", "what is pinned stays, and what is not goes, even if it came last"
    keep("b", 3, 0.0)
    assert kept() == "a1a2b1b2"
    now[0] += 61.0
    assert kept() == "a1b1b2"
    now[0] += KEPT_S
    assert kept() == "a1"
    prefixes.restore((1,) * 9, context("a", (1,) * 9), owner="a", session=Session("a", "1", "o"))
    now[0] += 2 * KEPT_S
    assert kept() == "a1", "a turn begins its lease anew"
    keep("a", 1, 60.0)
    now[0] += 61.0
    assert not kept(), "and the same turn again, as long as that says"


def test_a_longer_prompt_takes_the_place_of_what_another_session_pinned_never() -> None:
    now = [10.0]
    prefixes = Prefixes(1 << 20, clock=lambda: now[0])
    week, hour = Session("a", "week", keep_s=9 * KEPT_S, as_of=9.0), Session("a", "hour", as_of=9.0)
    for ids, session in (((1,), week), ((1, 2), week), ((1, 2, 3), None), ((1, 2, 3, 4), hour)):
        prefixes.keep(ids, context("a", ids), owner="a", session=session)
    assert [len(each.ids) for each in prefixes._kept] == [2, 4]
    now[0] += 2 * KEPT_S
    assert restored(prefixes, (1, 2, 3, 4), "a") == 2
    prefixes.keep((1, 2, 3), context("a", (1, 2, 3)), owner="a", session=week)
    assert [len(each.ids) for each in prefixes._kept] == [3]


def test_an_owner_has_so_many_and_what_is_pinned_goes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blend.run.prefixes.MOST", 3)
    prefixes = Prefixes(1 << 20)
    prefixes.keep((9,), context("a", (9,)), owner="a")
    for first in range(6):
        pin = Session("b", "s", keep_s=60.0) if first == 1 else None
        prefixes.keep((first,), context("b", (first,)), owner="b", session=pin)
    assert [(each.owner, *each.ids) for each in prefixes._kept] == [("a", 9), ("b", 1), ("b", 4), ("b", 5)]


class AtOnce(Executor):
    """Does what it gets before it returns, so that a test knows when it is done; or when it is told to."""

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self._waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future = Future[R]()
        self._waiting.append(lambda: future.set_result(fn(*args, **kwargs)))
        if not self._waits:
            self.work()
        return future

    def work(self) -> None:
        while self._waiting:
            self._waiting.pop()()


@given(STEPS)
def test_what_memory_has_no_room_for_comes_back_from_the_disk(steps: list[Step]) -> None:
    """Memory has room for one beginning, the disk for all."""
    disk = Spill(Path.cwd(), 1 << 20, writer=AtOnce())
    prefixes, kept = Prefixes(ROOM * TOKEN_BYTES, spill=disk), list[tuple[str, Ids]]()
    for step in steps:
        take(step, prefixes, kept)
        sizes = [each.context.nbytes for each in prefixes._kept if isinstance(each.context, Context)]
        assert sum(sizes) <= ROOM * TOKEN_BYTES


@given(STEPS)
def test_the_disk_gets_no_more_than_its_budget(steps: list[Step]) -> None:
    disk = Spill(Path.cwd(), 2 * ROOM * TOKEN_BYTES, writer=AtOnce())
    prefixes = Prefixes(ROOM * TOKEN_BYTES, spill=disk)
    for what, owner, ids in steps:
        if what == "keep":
            prefixes.keep(ids, context(owner, ids), owner=owner)
        assert restored(prefixes, ids, owner) == len(ids) or what == "restore"
        sizes = Counter[bool]()
        for each in prefixes._kept:
            sizes[each.on_disk] += each.context.nbytes
        assert sizes[False] <= ROOM * TOKEN_BYTES
        assert sizes[True] <= 2 * ROOM * TOKEN_BYTES


def test_the_states_behind_a_beginning_come_back_from_the_disk(tmp_path: Path) -> None:
    prefixes, ids = Prefixes(3 * TOKEN_BYTES + 64, spill=Spill(tmp_path, 1 << 20, writer=AtOnce())), (1, 2, 3)
    made, state = context("a", ids), LayerState(0, 3, (torch.arange(6.0).view(1, 2, 3), None))
    made.states.keep(1, state)
    prefixes.keep(ids, made, owner="a")
    prefixes.keep((4, 5, 6), context("a", (4, 5, 6)), owner="a")
    assert [each.on_disk for each in prefixes._kept] == [True, False]

    found = context()
    prefixes.restore(ids, found, owner="a")
    back = found.states.before(1, 3)
    assert found.placed == 3 and back is not None
    assert (back.first, back.stop, back.parts[1]) == (0, 3, None)
    assert back.parts[0] is not None and state.parts[0] is not None and torch.equal(back.parts[0], state.parts[0])
    assert restored(prefixes, (1, 2), "a") == 0  # a state is known behind the last token alone


def test_while_one_is_written_it_still_serves_and_another_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blend.run.spill.WAITING", 3 * TOKEN_BYTES)
    writer = AtOnce(waits=True)
    prefixes = Prefixes(2 * TOKEN_BYTES, spill=Spill(tmp_path, 1 << 20, writer=writer))
    for ids in ((1, 1), (2, 2), (3, 3)):
        prefixes.keep(ids, context("a", ids), owner="a")
    assert [restored(prefixes, ids, "a") for ids in ((1, 1), (2, 2), (3, 3))] == [2, 0, 2]
    writer.work()
    assert restored(prefixes, (1, 1), "a") == 2
    assert not list(tmp_path.iterdir())  # no file has a name


def test_a_disk_that_is_broken_or_full_costs_time_alone(tmp_path: Path) -> None:
    away = tmp_path / "away"
    prefixes = Prefixes(2 * TOKEN_BYTES, spill=Spill(away, 1 << 20, writer=AtOnce()))
    for ids in ((1, 1), (2, 2)):
        prefixes.keep(ids, context("a", ids), owner="a")
    assert [restored(prefixes, ids, "a") for ids in ((1, 1), (2, 2))] == [0, 2]

    away.mkdir()
    prefixes.keep((3, 3), context("a", (3, 3)), owner="a")
    spilled = next(each.context for each in prefixes._kept if each.on_disk)
    assert not isinstance(spilled, Context)
    spilled._file.seek(5)
    spilled._file.write(b"!")
    assert [restored(prefixes, ids, "a") for ids in ((2, 2), (3, 3))] == [0, 2]
    assert not any(each.on_disk for each in prefixes._kept)


def test_what_never_goes_to_the_disk_takes_nothing_from_it(tmp_path: Path) -> None:
    prefixes = Prefixes(2 * TOKEN_BYTES, spill=Spill(tmp_path, 4 * TOKEN_BYTES, writer=AtOnce()))
    for first in range(4):
        order = "reuse" if first > 1 else ""
        said = Session("a", f"{first}", order)
        prefixes.keep((first, first), context("a", (first, first)), owner="a", session=said)
    assert [(each.ids[0], each.on_disk) for each in prefixes._kept] == [(0, True), (1, True), (3, False)]


def test_a_full_disk_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=19 * TOKEN_BYTES))
    prefixes = Prefixes(2 * TOKEN_BYTES, spill=Spill(tmp_path, 1 << 20, writer=AtOnce()))
    for ids in ((1, 1), (2, 2)):
        prefixes.keep(ids, context("a", ids), owner="a")
    assert [restored(prefixes, ids, "a") for ids in ((1, 1), (2, 2))] == [0, 2]


def test_they_take_few_of_the_files_that_a_process_may_have_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blend.run.prefixes.FILES", 3)
    prefixes = Prefixes(2 * TOKEN_BYTES, spill=Spill(tmp_path, 1 << 20, writer=AtOnce()))
    for first in range(6):
        prefixes.keep((first, first), context("a", (first, first)), owner="a")
    assert [restored(prefixes, (first, first), "a") for first in range(6)] == [0, 0, 2, 2, 2, 2]
