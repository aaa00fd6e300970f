"""Which beginnings of prompts stay in memory, and that they come back as they were: against a list of all ever kept."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blend.run.context import Context, LayerShape
from blend.run.prefixes import KEPT_S, Prefixes

SHAPES = (LayerShape(2, 4, 1, 6), None, LayerShape(1, 3, 1, 3))
TOKEN_BYTES = (8 + 6 + 3 + 3) * 4
ROOM = 8

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
        rows = [each.part(layer, slice(found.exact)) for each in (found, wanted)]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*rows, strict=True))
    return found.exact


def common(one: Ids, other: Ids) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(STEPS)
def test_a_prompt_begins_with_the_longest_beginning_that_its_owner_has(steps: list[Step]) -> None:
    prefixes, kept = Prefixes(1 << 20), list[tuple[str, Ids]]()
    for what, owner, ids in steps:
        if what == "keep":
            prefixes.keep(ids, context(owner, ids), owner=owner)
            kept.append((owner, ids))
        else:
            longest = max((common(ids, each) for whose, each in kept if whose == owner), default=0)
            assert restored(prefixes, ids, owner) == longest
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
