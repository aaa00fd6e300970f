"""What an evictor promises its tier, against a model that ranks every key by the published rule."""

import math
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.tiers.eviction import (
    FIRST_INTERVAL,
    INTERVAL_SHARE,
    LEAST_AGE,
    REMEMBERED,
    STEPS_PER_DOUBLING,
    USES_COUNTED,
    Evictor,
    Rule,
)
from tests.bench.eviction import Arc, Lfu, Lru, Ours, S3Fifo, equal_blocks, mixed_blocks, replay, zipf


@dataclass(frozen=True)
class Known:
    uses: int
    last: int
    interval: int
    bytes: int = 0
    cost: float = 0.0


class Model:
    """The rule, computed for every key on every question."""

    def __init__(self) -> None:
        self.now = 0
        self.residents: dict[int, Known] = {}
        self.past: dict[int, Known] = {}

    def inserted(self, key: int, size: int, *, cost: float) -> None:
        if key not in self.residents:
            self.now += 1
            self.residents[key] = self.again(self.past.pop(key, Known(0, 0, 0)))
            self.forget()
        self.residents[key] = replace(self.residents[key], bytes=size, cost=cost)

    def used(self, key: int) -> None:
        if key in self.residents:
            self.now += 1
            self.residents[key] = self.again(self.residents[key])

    def again(self, known: Known) -> Known:
        uses = min(known.uses + 1, USES_COUNTED)
        return replace(known, uses=uses, last=self.now, interval=self.now - known.last)

    def evicted(self, key: int) -> None:
        if key in self.residents:
            self.past[key] = self.residents.pop(key)

    def removed(self, key: int) -> None:
        self.residents.pop(key, None)
        self.past.pop(key, None)
        self.forget()

    def forget(self) -> None:
        for key in list(self.past)[: max(0, len(self.past) - REMEMBERED * max(1, len(self.residents)))]:
            del self.past[key]

    def worth(self, key: int, rule: Rule = Rule.USES) -> float:
        known = self.residents[key]
        counted = math.sqrt(known.uses) if rule is Rule.USES else 1.0
        weight = max(counted * known.cost / max(1, known.bytes), 2.0**-64)
        step = round(STEPS_PER_DOUBLING * math.log2(weight))
        if rule is Rule.LAST_USE:
            return 2.0 ** (step / STEPS_PER_DOUBLING) / (self.now - known.last + LEAST_AGE * len(self.residents))
        interval = known.interval if known.uses > 1 else FIRST_INTERVAL * len(self.residents)
        unused = self.now - known.last + INTERVAL_SHARE * interval + LEAST_AGE * len(self.residents)
        return 2.0 ** (step / STEPS_PER_DOUBLING) / unused


KEYS = st.integers(0, 11)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("inserted"), KEYS, st.integers(0, 4096), st.floats(0, 1e6)),
        st.tuples(st.sampled_from(["used", "used", "evicted", "removed"]), KEYS),
    ),
    max_size=120,
)


def play(calls: list[tuple[object, ...]]) -> tuple[Evictor[int], Model]:
    evictor, model = Evictor[int](), Model()
    for call in calls:
        match call:
            case ("inserted", int(key), int(size), float(cost)):
                evictor.inserted(key, size, cost=cost)
                model.inserted(key, size, cost=cost)
            case (str(name), int(key)):
                getattr(evictor, name)(key)
                getattr(model, name)(key)
            case _:
                raise AssertionError(call)
    return evictor, model


@given(CALLS)
@settings(max_examples=300, deadline=None)
def test_victims_come_in_the_order_of_the_published_rule(calls: list[tuple[object, ...]]) -> None:
    evictor, model = play(calls)
    order = evictor.victims(1 << 60)
    assert sorted(order) == sorted(model.residents)
    assert [model.worth(key) for key in order] == pytest.approx(sorted(map(model.worth, order)))
    assert evictor.bytes == sum(known.bytes for known in model.residents.values())
    evictor.follow(Rule.LAST_USE)
    worths = [model.worth(key, Rule.LAST_USE) for key in evictor.victims(1 << 60)]
    assert worths == pytest.approx(sorted(worths))
    evictor.follow(Rule.USES)
    assert [model.worth(key) for key in evictor.victims(1 << 60)] == pytest.approx(sorted(map(model.worth, order)))


@given(CALLS, st.integers(-1, 20_000), st.sets(KEYS))
@settings(max_examples=300, deadline=None)
def test_victims_free_just_enough_from_the_keys_allowed(
    calls: list[tuple[object, ...]], wanted: int, allowed: set[int]
) -> None:
    evictor, model = play(calls)
    every = evictor.victims(1 << 60)
    victims = evictor.victims(wanted, allowed.__contains__)
    eligible = [key for key in every if key in allowed]
    sizes = [model.residents[key].bytes for key in victims]
    assert victims == eligible[: len(victims)]
    assert sum(sizes) >= wanted or victims == eligible
    assert not victims or sum(sizes[:-1]) < wanted
    assert evictor.victims(1 << 60) == every  # asking changes nothing


def test_a_failing_filter_leaves_every_key_in_place() -> None:
    evictor = Evictor[int]()
    for key in range(8):
        evictor.inserted(key, 1, cost=1.0)
    every = evictor.victims(8)
    with pytest.raises(ZeroDivisionError):
        evictor.victims(8, lambda key: 1 // (key - 5) > 0)
    assert evictor.victims(8) == every


def test_evicted_keys_are_remembered_and_deleted_ones_are_not() -> None:
    def next_victim(goes: str) -> str:
        evictor = Evictor[str]()
        evictor.inserted("filler", 1, cost=1e9)
        evictor.inserted("back", 1, cost=1.0)
        evictor.evicted("back")
        getattr(evictor, goes)("back")
        evictor.inserted("back", 1, cost=1.0)
        evictor.inserted("new", 1, cost=1.0)
        return evictor.victims(1)[0]

    assert next_victim("evicted") == "new"  # the second time there is nothing to evict
    assert next_victim("removed") == "back"  # older than "new", and no more is known of it


@pytest.mark.parametrize("rival", [Lru, Lfu, Arc, S3Fifo])
def test_more_tokens_hit_than_with_policies_blind_to_cost(rival: type[Lru | Lfu | Arc | S3Fifo]) -> None:
    blocks = mixed_blocks(zipf(7, alpha=0.9, drift=10, scans=5, length=8000), seed=7)
    budget = sum({block.key: block.bytes for block in blocks}.values()) // 10
    assert replay(Ours(budget), blocks, budget) > replay(rival(budget), blocks, budget)


def test_equal_blocks_hit_more_than_with_lru_or_lfu_when_popularity_drifts() -> None:
    blocks = equal_blocks(zipf(8, alpha=0.9, drift=10, scans=0, length=8000))
    budget = len(set(blocks)) // 20
    ours = replay(Ours(budget), blocks, budget)
    assert ours > max(replay(Lru(budget), blocks, budget), replay(Lfu(budget), blocks, budget))


def test_the_order_of_use_decides_nothing_but_itself() -> None:
    draw = random.Random(3)
    calls = [(draw.randrange(40), draw.randrange(1, 500)) for _ in range(500)]
    orders: list[list[str]] = []
    for name in ("a", "b"):
        evictor = Evictor[str]()
        for key, size in calls:
            evictor.inserted(f"{name}{key}", size, cost=float(size % 7))
            evictor.used(f"{name}{key}")
        orders.append([key[1:] for key in evictor.victims(1 << 60)])
    assert orders[0] == orders[1]
