"""Measures the order of one payer's prompts: `python -m tests.bench.turns` prints a table.

Prompts of 1 to `--longest` chunks of 256 tokens, as many of each doubling, come by chance (Poisson) at `--rate` of what
the engine can compute, all in full. `first come`: in the order in which they came; `expected`: as the engine goes, by
the time that each is expected to take, with ageing. Both serve the same `--draws` draws. `stretch`: the longest
time to a first token over what that prompt takes alone. A model of `--shape` with random weights.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np

from blend.engine import answer_builder
from blend.engine.engine import EngineLimits
from blend.engine.local_engine import LocalEngine
from service.app.composition import compose_model
from service.settings import load_settings
from tests.bench.engine_requests import FULL, ask, drawn, open_loop, plain
from tests.bench.models import random_model

SEED, CHUNK = 6, 256
ORDERS = {"first come": 0.0, "expected": answer_builder.OVERTAKES}


def row(order: str, first_s: Sequence[float], alone_s: Sequence[float]) -> str:
    stretch = max(each / lone for each, lone in zip(first_s, alone_s, strict=True))
    numbers = [statistics.mean(first_s), *np.percentile(first_s, (50, 95)), stretch]
    return f"| {order} | {' | '.join(f'{each:.2f}' for each in numbers)} |"


def measure(engine: LocalEngine, options: argparse.Namespace, *, draw: int, vocabulary: int) -> None:
    """Prints a row for each order."""
    chance = random.Random(SEED + draw)
    sizes = [CHUNK * round(options.longest ** chance.random()) for _ in range(options.prompts)]
    prompts = [plain(drawn(each, chance, vocabulary=vocabulary)) for each in sizes]
    asks = [partial(ask, engine, each, order=FULL) for each in prompts]
    by_size = dict(zip(sizes, asks, strict=True))
    alone = {size: open_loop([each], [0.0])[0].first_s for size, each in by_size.items()}
    alone_s = [alone[each] for each in sizes]
    gaps = [chance.expovariate(options.rate / statistics.mean(alone_s)) for _ in sizes]
    for order in [*ORDERS][:: -1 if draw % 2 else 1]:
        with patch.object(answer_builder, "OVERTAKES", ORDERS[order]):
            print(row(order, [each.first_s for each in open_loop(asks, gaps)], alone_s), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="24x256")
    parser.add_argument("--longest", type=int, default=15)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.8)
    parser.add_argument("--draws", type=int, default=3)
    options = parser.parse_args()
    print("| order | mean first token, s | p50 | p95 | stretch |\n" + "|---" * 5 + "|")
    with TemporaryDirectory() as folder:
        path = random_model(options.shape, Path(folder) / "model")
        model = compose_model(load_settings(model=path, dtype="float32", device="cpu"))
        limits = EngineLimits(prefix_bytes=0, waiting=1000)
        with closing(
            LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint, limits=limits)
        ) as engine:
            for draw in range(options.draws):
                measure(engine, options, draw=draw, vocabulary=model.decoder.vocabulary)


if __name__ == "__main__":
    main()
