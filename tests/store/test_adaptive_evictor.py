"""Whether the last use alone decides where it should, and nowhere else."""

import pytest

from store.tiers.adaptive_evictor import AdaptiveEvictor
from store.tiers.eviction import Evictor
from tests.bench.block_traces import CONVERSATIONS, conversations, equal_blocks, zipf
from tests.bench.eviction import Lru, Ours, replay


@pytest.mark.parametrize("share", [0.15, 0.25])
def test_conversations_that_go_on_with_what_they_used_last_are_kept_by_it(share: float) -> None:
    blocks = equal_blocks(conversations(5, **{**CONVERSATIONS["short"], "sessions": 1000}))
    budget = int(len(set(blocks)) * share)
    by_uses, by_both, by_last = (
        replay(cache, blocks, budget) for cache in (Ours(budget, Evictor), Ours(budget), Lru(budget))
    )
    assert by_both - by_uses > (by_last - by_uses) / 2 > 0.02


def test_popularity_that_drifts_is_ranked_by_uses_as_before() -> None:
    blocks = equal_blocks(zipf(8, alpha=0.9, drift=10, scans=0, length=20_000))
    budget = len(set(blocks)) // 5
    assert replay(Ours(budget), blocks, budget) == replay(Ours(budget, Evictor), blocks, budget)


def test_a_small_tier_finds_out_too() -> None:
    blocks = equal_blocks(conversations(6, **{**CONVERSATIONS["long"], "sessions": 300}))
    by_uses, by_both, by_last = (replay(cache, blocks, 1000) for cache in (Ours(1000, Evictor), Ours(1000), Lru(1000)))
    assert by_both - by_uses > (by_last - by_uses) / 2 > 0.02


@pytest.mark.parametrize(("alpha", "budget"), [(0, 32), (0.9, 100), (0.9, 300), (0, 1000)])
def test_chance_moves_no_tier(alpha: float, budget: int) -> None:
    blocks = equal_blocks(zipf(9, alpha=alpha, drift=0, scans=0, length=20_000))
    assert replay(Ours(budget), blocks, budget) == replay(Ours(budget, Evictor), blocks, budget)


def test_nothing_is_kept_of_what_was_removed_and_memory_follows_the_residents() -> None:
    evictor = AdaptiveEvictor[int]()
    for key in range(5_000):
        evictor.inserted(key, 1, cost=1.0 + key % 97)
        evictor.used(key)
        if len(evictor) > 100:
            evictor.evicted(evictor.victims(1)[0])
    assert evictor.entries < 10 * 100
    for key in range(5_000):
        evictor.removed(key)
    assert len(evictor) == evictor.bytes == 0
    assert evictor.entries <= 3 * 80
