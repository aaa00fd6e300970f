"""Measures whose turn it is within one payer: `python -m tests.bench.queueing` prints JSON.

Prompts of 200 to 4,000 tokens, short ones more often, come by chance to `--load` of what the engine can do,
the same ones in order of their coming and by their expected time (`--requests`, in turn for `--rounds`): seconds to the
first token: mean, 95 of 100, most.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import numpy as np

from blend.adopt.load import LoadedModel
from blend.engine import answer_builder
from blend.engine.local_engine import LocalEngine
from service.app.composition import compose_model
from service.settings import load_settings
from tests.bench.engine_requests import FULL, Asked, ask, drawn, plain
from tests.bench.models import random_model

SEED = 5
SHORTEST, SHORT, LONG, LONGEST = 200, 600, 3000, 4000
Json = dict[str, object]


def by_order(model: LoadedModel, options: argparse.Namespace) -> Json:
    chance, usual = random.Random(SEED), answer_builder.OVERTAKES
    sizes = [round(SHORTEST * (LONGEST / SHORTEST) ** chance.random()) for _ in range(options.requests)]
    prompts = [drawn(size, chance, vocabulary=model.decoder.vocabulary) for size in sizes]
    with closing(LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint)) as engine:
        began = time.perf_counter()
        for each in prompts:
            ask(engine, plain(each), order=FULL).over.wait()
        gaps = [chance.expovariate(options.load * len(prompts) / (time.perf_counter() - began)) for _ in prompts]
        found: dict[str, list[Asked]] = {"as they come": [], "by time": []}
        for name in [*found] * options.rounds:
            answer_builder.OVERTAKES = usual if name == "by time" else 0.0
            running = list[Asked]()
            for ids, gap in zip(prompts, gaps, strict=True):
                time.sleep(gap)
                running.append(ask(engine, plain(ids), order=FULL))
            for each in running:
                each.over.wait()
            found[name] += running
    return {name: first_tokens(each) for name, each in found.items()}


def first_tokens(asked: Sequence[Asked]) -> Json:
    found: Json = {}
    for name, least, most in (("all", 0, LONGEST), ("short", 0, SHORT), ("long", LONG, LONGEST)):
        seconds = [each.first_s for each in asked if least <= each.tokens <= most]
        found[name] = [round(each, 3) for each in (mean(seconds), float(np.percentile(seconds, 95)), max(seconds))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        settings = load_settings(model=random_model(options.shape, Path(folder)), dtype="float32", device="cpu")
        model = compose_model(settings)
        print(json.dumps(by_order(model, options), indent=2))


if __name__ == "__main__":
    main()
