"""Counts the tokens that a RAG trace makes be computed, by way and budget: `python -m tests.bench.accounting`, JSON.

The trace has the shape that Cache-Craft reports: 5 of 100 chunks have 60 of 100 uses, and a prompt is a system prompt,
its five chunks in order of their score, and a question. `full` computes all. `prefix` keeps the beginnings of prompts,
chunk by chunk, those used last. `ours` keeps records by the product's own rule, and computes what is missing, the
question, and `--ratio` of what is cached. Budgets are parts of what all chunks take as a prefix cache keeps them; a
record takes `--packed` of that. No model, no time.
"""

import argparse
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tests.bench.block_traces import Block
from tests.bench.eviction import Lru, Ours

CHUNKS, USED = 2000, 5
HOT, USES = 0.05, 0.6
SYSTEM, QUESTION = 60, 40  # tokens
BUDGETS = (0.05, 0.25, 1.0)


@dataclass(frozen=True, slots=True)
class Trace:
    """Prompts by their chunks' numbers, and the tokens of each chunk."""

    tokens: Sequence[int]
    prompts: Sequence[tuple[int, ...]]

    @property
    def total(self) -> int:
        return sum(SYSTEM + QUESTION + sum(self.tokens[each] for each in prompt) for prompt in self.prompts)


def drawn(seed: int, prompts: int, *, chunks: int = CHUNKS, hot: float = HOT, used: int = USED) -> Trace:
    """Popularity by a power of the rank, the one by which the hottest chunks have their share of uses."""
    chance = random.Random(seed)
    low, high = 0.0, 3.0
    for _ in range(40):
        power = (low + high) / 2
        weights = [(rank + 1) ** -power for rank in range(chunks)]
        low, high = (power, high) if sum(weights[: int(hot * chunks)]) < USES * sum(weights) else (low, power)
    mass = [*itertools.accumulate(weights)]
    tokens = [chance.randint(100, 300) for _ in range(chunks)]

    def prompt() -> tuple[int, ...]:
        found = dict[int, None]()
        while len(found) < used:
            found[chance.choices(range(chunks), cum_weights=mass)[0]] = None
        return tuple(found)

    return Trace(tokens, [prompt() for _ in range(prompts)])


def by_prefix(trace: Trace, budget: int) -> int:
    """Each part of a beginning is a block of its own, used with all before it."""
    cache, names = Lru(budget), dict[tuple[int, ...], int]()
    computed = SYSTEM
    for prompt in trace.prompts:
        computed += QUESTION
        is_kept = True
        for stop in range(1, len(prompt) + 1):
            size = trace.tokens[prompt[stop - 1]]
            name = names.setdefault(prompt[:stop], len(names))
            is_kept = size <= budget and cache.access(Block(name, size, size)) and is_kept
            computed += 0 if is_kept else size
    return computed


def by_records(trace: Trace, budget: int, *, ratio: float, packed: float) -> int:
    cache, computed = Ours(budget), float(SYSTEM)
    for prompt in trace.prompts:
        computed += QUESTION
        for each in prompt:
            size = trace.tokens[each]
            block = Block(each, max(1, round(packed * size)), size)
            computed += ratio * size if block.bytes <= budget and cache.access(block) else size
    return round(computed)


def rows(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    for seed, share in itertools.product(range(options.seeds), BUDGETS):
        trace = drawn(seed, options.prompts)
        budget = round(share * sum(trace.tokens))
        ours = partial(by_records, trace, budget, ratio=options.ratio)
        prefix, packed, plain = by_prefix(trace, budget), ours(packed=options.packed), ours(packed=1.0)
        yield {
            "seed": seed,
            "budget": share,
            "of full": {
                "prefix": round(prefix / trace.total, 3),
                "ours": round(packed / trace.total, 3),
                "ours, not packed": round(plain / trace.total, 3),
            },
            "ours of prefix": round(packed / prefix, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ratio", type=float, default=0.15)
    parser.add_argument("--packed", type=float, default=0.27, help="bytes of a record, of 16 bits a number")
    print(json.dumps([*rows(parser.parse_args())], indent=1))


if __name__ == "__main__":
    main()
