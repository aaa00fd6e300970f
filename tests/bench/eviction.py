"""Replays block traces against eviction policies. Compares policies only: no tier, no I/O, no timing.

`python -m tests.bench.eviction --trace mooncake.jsonl` prints one JSON object. `equal` is the hit ratio with
equal blocks; `mixed` the share of requested tokens that hit, with tokens per block drawn log-uniformly from
64..512, a cost of one per token, and 1, 4 or 16 bytes per token. The reference `offline` sees the future and
may refuse a block: with equal blocks it is Belady's optimum; with mixed ones a greedy heuristic (gives up the
farthest next use weighted by bytes per cost), not a bound.
"""

import argparse
import heapq
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from store.tiers.adaptive_evictor import AdaptiveEvictor
from store.tiers.eviction import Evictor
from tests.bench.block_traces import (
    CONVERSATIONS,
    Block,
    conversations,
    equal_blocks,
    mixed_blocks,
    mooncake,
    replays,
    zipf,
)

BUDGETS = (0.01, 0.05, 0.10, 0.25)
NEVER = 1 << 60


class Cache(Protocol):
    def access(self, block: Block) -> bool:
        """Serves or admits one block no larger than the budget; true on a hit."""
        ...


class Lru:
    def __init__(self, budget: int) -> None:
        self.free = budget
        self.held: OrderedDict[int, int] = OrderedDict()

    def access(self, block: Block) -> bool:
        if block.key in self.held:
            self.held.move_to_end(block.key)
            return True
        while self.free < block.bytes:
            self.free += self.held.popitem(last=False)[1]
        self.held[block.key] = block.bytes
        self.free -= block.bytes
        return False


class Lfu:
    """In-cache counts, ties to the least recent."""

    def __init__(self, budget: int) -> None:
        self.free = budget
        self.now = 0
        self.held: dict[int, tuple[int, int, int]] = {}  # key -> uses, last use, bytes
        self.queue: list[tuple[int, int, int]] = []  # uses, last use, key

    def access(self, block: Block) -> bool:
        self.now += 1
        hit = block.key in self.held
        uses = self.held[block.key][0] + 1 if hit else 1
        if not hit:
            while self.free < block.bytes:
                self._evict()
            self.free -= block.bytes
        self.held[block.key] = (uses, self.now, block.bytes)
        heapq.heappush(self.queue, (uses, self.now, block.key))
        return hit

    def _evict(self) -> None:
        _, last, key = heapq.heappop(self.queue)
        if key in self.held and self.held[key][1] == last:
            self.free += self.held.pop(key)[2]


class Fifo:
    """An ordered set of sized keys: the building block of ARC and S3-FIFO."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[int, int] = OrderedDict()
        self.bytes = 0

    def __contains__(self, key: int) -> bool:
        return key in self.sizes

    def push(self, key: int, size: int) -> None:
        self.sizes[key] = size
        self.bytes += size

    def take(self, key: int) -> int:
        size = self.sizes.pop(key)
        self.bytes -= size
        return size

    def pop(self) -> tuple[int, int]:
        key, size = self.sizes.popitem(last=False)
        self.bytes -= size
        return key, size


class Arc:
    """Megiddo and Modha, FAST 2003; list lengths counted in bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.target = 0.0  # of t1
        self.t1, self.t2, self.b1, self.b2 = Fifo(), Fifo(), Fifo(), Fifo()

    def access(self, block: Block) -> bool:
        key, size = block.key, block.bytes
        for resident in (self.t1, self.t2):
            if key in resident:
                resident.take(key)
                self.t2.push(key, size)
                return True
        if key in self.b1:
            self.target = min(self.budget, self.target + size * max(1.0, self.b2.bytes / self.b1.bytes))
            self._return(self.b1, block, frequent=False)
        elif key in self.b2:
            self.target = max(0.0, self.target - size * max(1.0, self.b1.bytes / self.b2.bytes))
            self._return(self.b2, block, frequent=True)
        else:
            self._admit(block)
        return False

    def _return(self, ghosts: Fifo, block: Block, *, frequent: bool) -> None:
        self._replace(block.bytes, frequent=frequent)
        if block.key in ghosts:
            ghosts.take(block.key)
        self.t2.push(block.key, block.bytes)

    def _admit(self, block: Block) -> None:
        while self.b1.sizes and self.t1.bytes + self.b1.bytes + block.bytes > self.budget:
            self.b1.pop()
        while self.t1.bytes + block.bytes > self.budget:
            self.t1.pop()
        while self.b2.sizes and self._total() + block.bytes > 2 * self.budget:
            self.b2.pop()
        self._replace(block.bytes, frequent=False)
        self.t1.push(block.key, block.bytes)

    def _total(self) -> int:
        return self.t1.bytes + self.t2.bytes + self.b1.bytes + self.b2.bytes

    def _replace(self, size: int, *, frequent: bool) -> None:
        while self.t1.bytes + self.t2.bytes + size > self.budget:
            over = self.t1.bytes > self.target or (frequent and self.t1.bytes == self.target)
            if self.t1.sizes and (over or not self.t2.sizes):
                self.b1.push(*self.t1.pop())
            else:
                self.b2.push(*self.t2.pop())


class S3Fifo:
    """Yang et al., SOSP 2023: small queue of 10 %, main queue, ghosts as large as main, two-bit counts."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.small_budget = budget // 10
        self.small, self.main, self.ghosts = Fifo(), Fifo(), Fifo()
        self.uses: dict[int, int] = {}

    def access(self, block: Block) -> bool:
        key = block.key
        if key in self.uses:
            self.uses[key] = min(3, self.uses[key] + 1)
            return True
        returns = key in self.ghosts
        if returns:
            self.ghosts.take(key)
        while self.small.bytes + self.main.bytes + block.bytes > self.budget:
            if self.small.sizes and (self.small.bytes >= self.small_budget or not self.main.sizes):
                self._evict_small()
            else:
                self._evict_main()
        (self.main if returns else self.small).push(key, block.bytes)
        self.uses[key] = 0
        return False

    def _evict_small(self) -> None:
        main_budget = self.budget - self.small_budget
        while self.small.sizes:
            key, size = self.small.pop()
            if self.uses[key] <= 1:
                del self.uses[key]
                self.ghosts.push(key, size)
                while self.ghosts.bytes > main_budget:
                    self.ghosts.pop()
                return
            self.uses[key] = 0
            self.main.push(key, size)
            if self.main.bytes > main_budget:
                self._evict_main()

    def _evict_main(self) -> None:
        while self.main.sizes:
            key, size = self.main.pop()
            if self.uses[key] == 0:
                del self.uses[key]
                return
            self.uses[key] -= 1
            self.main.push(key, size)


class Ours:
    """The product's policy, driven as a tier drives it."""

    def __init__(self, budget: int, evictor: Callable[[], Evictor[int]] = AdaptiveEvictor) -> None:
        self.free = budget
        self.held: dict[int, int] = {}
        self.evictor = evictor()

    def access(self, block: Block) -> bool:
        if block.key in self.held:
            self.evictor.used(block.key)
            return True
        for victim in self.evictor.victims(block.bytes - self.free):
            self.free += self.held.pop(victim)
            self.evictor.evicted(victim)
        self.held[block.key] = block.bytes
        self.free -= block.bytes
        self.evictor.inserted(block.key, block.bytes, cost=block.tokens)
        return False


class Offline:
    """The reference that knows the sequence. Exact greedy: one queue per ratio of bytes to cost."""

    def __init__(self, budget: int, blocks: list[Block]) -> None:
        self.free = budget
        self.now = -1
        self.following = _next_uses(blocks)
        self.held: dict[int, tuple[int, int]] = {}  # key -> next use, bytes
        self.queues: dict[float, list[tuple[int, int]]] = {}  # bytes per token -> (-next use, key)

    def access(self, block: Block) -> bool:
        self.now += 1
        held = self.held.pop(block.key, None)
        if held is not None:
            self.free += block.bytes
        following = self.following[self.now]
        if following < NEVER:
            self.held[block.key] = (following, block.bytes)
            self.free -= block.bytes
            queue = self.queues.setdefault(block.bytes / block.tokens, [])
            heapq.heappush(queue, (-following, block.key))
        while self.free < 0:
            self._evict()
        return held is not None

    def _evict(self) -> None:
        for queue in self.queues.values():
            while queue and self.held.get(queue[0][1], (0, 0))[0] != -queue[0][0]:
                heapq.heappop(queue)
        ratios = [ratio for ratio, queue in self.queues.items() if queue]
        worst = max(ratios, key=lambda ratio: ratio * (-self.queues[ratio][0][0] - self.now))
        _, key = heapq.heappop(self.queues[worst])
        self.free += self.held.pop(key)[1]


def _next_uses(blocks: list[Block]) -> list[int]:
    seen: dict[int, int] = {}
    following = [NEVER] * len(blocks)
    for position in range(len(blocks) - 1, -1, -1):
        following[position] = seen.get(blocks[position].key, NEVER)
        seen[blocks[position].key] = position
    return following


ONLINE: dict[str, Callable[[int], Cache]] = {
    "lru": Lru,
    "lfu": Lfu,
    "arc": Arc,
    "s3fifo": S3Fifo,
    "uses": lambda budget: Ours(budget, Evictor),
    "ours": Ours,
}


def replay(cache: Cache, blocks: list[Block], budget: int) -> float:
    """The share of the requested tokens that hit. A block above the budget passes by."""
    hit = sum(block.tokens for block in blocks if block.bytes <= budget and cache.access(block))
    return hit / sum(block.tokens for block in blocks)


def compare(blocks: list[Block]) -> dict[str, dict[str, float]]:
    """Policy -> budget in percent of the footprint -> share that hit."""
    footprint = sum({block.key: block.bytes for block in blocks}.values())
    results: dict[str, dict[str, float]] = {name: {} for name in (*ONLINE, "offline")}
    for share in BUDGETS:
        budget = math.ceil(footprint * share)
        for name, policy in ONLINE.items():
            results[name][f"{share:.0%}"] = round(replay(policy(budget), blocks, budget), 4)
        results["offline"][f"{share:.0%}"] = round(replay(Offline(budget, blocks), blocks, budget), 4)
    return results


def mean(runs: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {share: round(sum(run[name][share] for run in runs) / len(runs), 4) for share in budgets}
        for name, budgets in runs[0].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="Mooncake trace, one JSON object per line")
    parser.add_argument("--seeds", type=int, default=3, help="draws of sizes and costs (default 3)")
    parser.add_argument("--drawn", type=int, default=0, help="added to the seeds of workloads (default 0)")
    parser.add_argument("--only", nargs="*", help="workloads to run (default all)")
    options = parser.parse_args()
    drawn = options.drawn
    workloads = {
        **(replays(mooncake(options.trace)) if options.trace else {}),
        "zipf_0.9_drift": zipf(1 + drawn, alpha=0.9, drift=10, scans=0),
        "zipf_1.1_drift": zipf(2 + drawn, alpha=1.1, drift=10, scans=0),
        "zipf_1.0_scans": zipf(3 + drawn, alpha=1.0, drift=0, scans=60),
        **{f"conversations_{name}": conversations(1 + drawn, **shape) for name, shape in CONVERSATIONS.items()},
    }
    report: dict[str, object] = {}
    for name, keys in workloads.items():
        if options.only and name not in options.only:
            continue
        runs = [compare(mixed_blocks(keys, seed)) for seed in range(options.seeds)]
        report[name] = {
            "accesses": len(keys),
            "distinct": len(set(keys)),
            "equal": compare(equal_blocks(keys)),
            "mixed": {"mean": mean(runs), "seeds": runs},
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
