"""Block traces for replays: read, drawn by Zipf's law, and drawn as conversations. Knows no policy."""

import bisect
import csv
import heapq
import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path

# Short and long pauses between turns, many turns, and long first prompts.
CONVERSATIONS = {
    "short": {"sessions": 2000, "think_s": 60},
    "long": {"sessions": 1250, "think_s": 600, "turns": 6},
    "many": {"sessions": 1250, "think_s": 120, "turns": 4, "lone": 20},
    "big": {"sessions": 1000, "think_s": 300, "lone": 60, "first": 30},
}


@dataclass(frozen=True, slots=True)
class Block:
    key: int
    bytes: int
    tokens: int


def equal_blocks(keys: list[int]) -> list[Block]:
    return [Block(key, 1, 1) for key in keys]


def mixed_blocks(keys: list[int], seed: int) -> list[Block]:
    """Sizes depend on seed and key alone, so a key keeps its size wherever it occurs."""
    blocks: dict[int, Block] = {}
    for key in set(keys):
        draw = random.Random(f"{seed}:{key}")
        tokens = round(64 * 8 ** draw.random())
        blocks[key] = Block(key, tokens * draw.choice((1, 4, 16)), tokens)
    return [blocks[key] for key in keys]


def mooncake(path: Path) -> list[int]:
    """The block ids of all requests, in order."""
    keys: list[int] = []
    with path.open() as lines:
        for line in lines:
            keys += json.loads(line)["hash_ids"]
    return keys


def arrivals(path: Path) -> list[float]:
    """When requests came, in seconds from the first on: of Mooncake's lines, or of BurstGPT's table."""
    with path.open(newline="") as lines:
        if path.suffix == ".csv":
            times = [float(row["Timestamp"]) for row in csv.DictReader(lines)]
        else:
            times = [json.loads(line)["timestamp"] / 1000 for line in lines]
    return [each - min(times) for each in sorted(times)]


def zipf(seed: int, *, alpha: float, drift: int, scans: int, length: int = 60_000) -> list[int]:
    """Zipf's law over 10,000 keys. `drift` rank swaps per 100 draws; `scans` runs of 500 new keys."""
    draw = random.Random(seed)
    ranked = list(range(10_000))
    mass = list(itertools.accumulate((rank + 1) ** -alpha for rank in ranked))
    fresh = itertools.count(len(ranked))
    keys: list[int] = []
    for position in range(length):
        if position % 100 == 0:
            for _ in range(drift):
                one = draw.randrange(len(ranked))
                other = draw.randrange(one + 1)  # towards the head, where it matters
                ranked[one], ranked[other] = ranked[other], ranked[one]
        if scans and position % (length // scans) == 0:
            keys += itertools.islice(fresh, 500)
        keys.append(ranked[bisect.bisect(mass, draw.random() * mass[-1])])
    return keys


def conversations(
    seed: int, *, sessions: int, think_s: int, turns: int = 3, lone: int = 50, first: int = 12
) -> list[int]:
    """Sessions that begin one a second; each turn asks for the blocks of all turns before, and for new ones.

    `lone` percent of them have one turn, the others 2 and more, `turns` more on average. `think_s`: the median pause.
    `first`: the new blocks of a first turn, on average; later ones have some 3.
    """
    draw = random.Random(seed)
    fresh = itertools.count(8)
    begins = itertools.accumulate(draw.expovariate(1) for _ in range(sessions))
    waiting: list[tuple[float, int, int, list[int]]] = []  # when, the session, its turns left, its blocks
    for number, at_s in enumerate(begins):
        left = 1 if draw.random() < lone / 100 else 2 + int(draw.expovariate(1 / turns))
        app = draw.choices(range(4), [1, 1 / 2, 1 / 3, 1 / 4])[0]
        waiting.append((at_s, number, left, [2 * app, 2 * app + 1]))
    heapq.heapify(waiting)
    keys: list[int] = []
    while waiting:
        at_s, number, left, blocks = heapq.heappop(waiting)
        size = first if len(blocks) == 2 else 3
        blocks = [*blocks, *itertools.islice(fresh, 1 + int(draw.expovariate(1 / size)))]
        keys += blocks
        if left > 1:
            heapq.heappush(waiting, (at_s + think_s * draw.lognormvariate(0, 1.2), number, left - 1, blocks))
    return keys


def replays(trace: list[int]) -> dict[str, list[int]]:
    """The trace, and orders of it that no policy was tried on first."""
    half = len(trace) // 2
    return {
        "trace": trace,
        "trace_first_half": trace[:half],
        "trace_second_half": trace[half:],
        "trace_reversed": trace[::-1],
    }
