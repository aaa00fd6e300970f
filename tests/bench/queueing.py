"""Measures whose turn it is within one payer, and turns that go on: `python -m tests.bench.queueing` prints JSON.

`order`: prompts of 200 to 4,000 tokens, short ones more often, come by chance to `--load` of what the engine can do,
the same ones in order of their coming and by their expected time (`--requests`, in turn for `--rounds`): seconds to the
first token: mean, 95 of 100, most. `turns`: `--conversations` of `--turns` each behind one system prompt, computed
whole, and behind what was said before: seconds to the first token, tokens computed, turns in a second.
"""

import argparse
import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import numpy as np

from blend.adopt.load import LoadedModel
from blend.engine import answer_builder
from blend.engine.engine import Done, EngineLimits, EngineRequest, Event, Failed, Ready, Token
from blend.engine.local_engine import LocalEngine
from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import Prompt
from service.app.composition import compose_model
from service.settings import load_settings
from tests.bench.models import random_model

SEED = 5
SHORTEST, SHORT, LONG, LONGEST = 200, 600, 3000, 4000
SYSTEM, SAID, ANSWER = 1000, 60, 24  # tokens
Json = dict[str, object]


@dataclass(slots=True)
class Asked:
    """A request under way."""

    tokens: int
    asked_s: float = field(default_factory=time.perf_counter)
    first_s: float = 0.0
    computed: int = 0
    answer: list[int] = field(default_factory=list[int])
    over: threading.Event = field(default_factory=threading.Event)

    def hear(self, event: Event) -> None:
        if isinstance(event, Ready):
            self.first_s, self.computed = time.perf_counter() - self.asked_s, event.report.fresh
        elif isinstance(event, Token):
            self.answer.append(event.id)
        elif isinstance(event, Done):
            self.over.set()
        elif isinstance(event, Failed):
            raise event.error


def ask(engine: LocalEngine, ids: Sequence[int], *, order: BlendOrder, most: int = 1) -> Asked:
    asked, prompt = Asked(len(ids)), Prompt((), (), tuple(ids))
    engine.submit(EngineRequest(prompt, Sampling(max_tokens=most, ignore_eos=True), order), asked.hear)
    return asked


def drawn(tokens: int, chance: random.Random, *, vocabulary: int) -> list[int]:
    return [chance.randrange(vocabulary // 2, vocabulary) for _ in range(tokens)]


def by_order(model: LoadedModel, options: argparse.Namespace) -> Json:
    chance, full, usual = random.Random(SEED), BlendOrder("full"), answer_builder.OVERTAKES
    sizes = [round(SHORTEST * (LONGEST / SHORTEST) ** chance.random()) for _ in range(options.requests)]
    prompts = [drawn(size, chance, vocabulary=model.decoder.vocabulary) for size in sizes]
    with closing(LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint)) as engine:
        began = time.perf_counter()
        for each in prompts:
            ask(engine, each, order=full).over.wait()
        gaps = [chance.expovariate(options.load * len(prompts) / (time.perf_counter() - began)) for _ in prompts]
        found: dict[str, list[Asked]] = {"as they come": [], "by time": []}
        for name in [*found] * options.rounds:
            answer_builder.OVERTAKES = usual if name == "by time" else 0.0
            running = list[Asked]()
            for ids, gap in zip(prompts, gaps, strict=True):
                time.sleep(gap)
                running.append(ask(engine, ids, order=full))
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


def by_turns(model: LoadedModel, options: argparse.Namespace) -> Json:
    """All conversations take their turns one after the other, so that each is as long ago as there are others."""
    found: dict[str, object] = {}
    for name, order in (("whole", BlendOrder("full")), ("behind what was said", BlendOrder("reuse"))):
        chance, done = random.Random(SEED), list[Asked]()
        system = drawn(SYSTEM, chance, vocabulary=model.decoder.vocabulary)
        said = [[*system] for _ in range(options.conversations)]
        limits = EngineLimits(prefix_bytes=1 << 30)
        with closing(
            LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint, limits=limits)
        ) as engine:
            began = time.perf_counter()
            for each in said * options.turns:
                each.extend(drawn(SAID, chance, vocabulary=model.decoder.vocabulary))
                done.append(ask(engine, each, order=order, most=ANSWER))
                done[-1].over.wait()
                each.extend(done[-1].answer)
            took = time.perf_counter() - began
        found[name] = {
            "first token s": round(mean(each.first_s for each in done), 4),
            "tokens computed": sum(each.computed for each in done),
            "turns a second": round(len(done) / took, 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        settings = load_settings(model=random_model(options.shape, Path(folder)), dtype="float32", device="cpu")
        model = compose_model(settings)
        print(json.dumps({"turns": by_turns(model, options), "order": by_order(model, options)}, indent=2))


if __name__ == "__main__":
    main()
