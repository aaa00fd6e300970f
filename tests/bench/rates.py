"""Measures the first token over the rate of requests: `python -m tests.bench.rates` ends in tables and a picture.

The picture is CacheBlend's: questions over `--used` of `--chunks` chunks of 256 tokens, where some chunks have most
uses and the order changes, come by chance (Poisson), whether those before are answered or not. `full` computes all,
`prefix` what is behind the longest beginning that a prompt before it had, kept in memory, `ask` has the chunks' records
in q4 in LMDB and computes a part of them anew. An engine in this process, a model of `--shape` with random weights,
`--requests` at each of `--rates`, told as parts of what full prefill alone can do; a line ends where its p95 passes
`GIVEN_UP` times full prefill's alone. The second table has the rate at which a line reaches the p95 of full's lowest
rate, between its points. `--arrivals FILE` takes the gaps of Mooncake's trace or BurstGPT's table, scaled to each rate.
`--real FOLDER` (`model` and `prose`, as `make real` fetches them) adds time and quality of SmolLM2-135M.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from blend.engine.engine import EngineLimits
from blend.engine.local_engine import LocalEngine
from service.app.composition import compose_model
from service.settings import load_settings
from tests.bench.accounting import drawn as drawn_trace
from tests.bench.block_traces import arrivals
from tests.bench.engine_requests import Asked, StoredChunks, Way, ask, drawn, open_loop, ways
from tests.bench.models import random_model
from tests.bench.picture import FOLDER, Line, Panel, draw
from tests.bench.real.results import MeasuredPrompt, Results

SEED = 57
CHUNK, PREFIX, QUESTION, ANSWER = 256, 32, 32, 8  # tokens
HOT = 0.2  # of the chunks have three fifths of the uses
GIVEN_UP = 8.0
MEASURED, CELL = Path("build/real"), "continuation"  # where the real bench goes on with what it had
QUALITY = {  # of the real model
    "prefix": "isolated:prefix:0:lossless",
    "reuse": "context:reuse:0:q4",
    "ask 15 %": "context:ask:0.15:q4",
}


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts, as chunks' numbers and a question, and the gaps between them at one request a second."""

    prompts: Sequence[tuple[int, ...]]
    questions: Sequence[Sequence[int]]
    gaps: Sequence[float]


@dataclass(frozen=True, slots=True)
class Point:
    """One line at one rate: the first tokens in seconds, the tokens computed, and the requests that ended a second."""

    rate: float
    first_s: Sequence[float]
    computed: float
    done: float

    @property
    def p50(self) -> float:
        return statistics.median(self.first_s)

    @property
    def p95(self) -> float:
        return float(np.percentile(self.first_s, 95))


def gaps(options: argparse.Namespace, chance: random.Random) -> list[float]:
    if options.arrivals is None:
        return [chance.expovariate(1) for _ in range(options.requests)]
    found = [later - sooner for sooner, later in pairwise(arrivals(options.arrivals)[: options.requests + 1])]
    return [each / statistics.mean(found) for each in found]


def at_rate(engine: LocalEngine, chunks: StoredChunks, way: Way, *, load: Load, rate: float) -> Point:
    """One line at one rate, by an open loop."""

    def asked_for(numbers: Sequence[int], question: Sequence[int]) -> Asked:
        return ask(engine, way.made(chunks, numbers, question), order=way.order, most=ANSWER)

    began = time.perf_counter()
    asks = [partial(asked_for, *each) for each in zip(load.prompts, load.questions, strict=False)]
    asked = open_loop(asks, [gap / rate for gap in load.gaps])
    took = max(each.ended_s for each in asked) - began
    share = statistics.mean(each.computed / each.tokens for each in asked)
    return Point(rate, [each.first_s for each in asked], share, len(asked) / took)


def measure(folder: Path, options: argparse.Namespace) -> tuple[float, dict[str, list[Point]]]:
    """Full prefill's seconds alone, and all lines, of which each rate's are measured one after another."""
    settings = load_settings(model=random_model(options.shape, folder / "model"), dtype="float32", device="cpu")
    model, chance = compose_model(settings), random.Random(SEED)
    words = model.decoder.vocabulary
    texts = [tuple(drawn(CHUNK, chance, vocabulary=words)) for _ in range(options.chunks)]
    prefix = tuple(drawn(PREFIX, chance, vocabulary=words))
    limits = EngineLimits(prefix_bytes=options.kept << 20, waiting=1000)
    with (
        closing(LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint, limits=limits)) as engine,
        closing(StoredChunks(model, engine, folder / "store", prefix=prefix)) as chunks,
    ):
        chunks.add(texts)
        count = options.requests * len(options.rates)
        prompts = drawn_trace(SEED, count, chunks=options.chunks, hot=HOT, used=options.used).prompts
        questions = [drawn(QUESTION, chance, vocabulary=words) for _ in prompts]
        apart = gaps(options, chance)
        found: dict[str, list[Point]] = {name: [] for name in ways(options.ratio)}
        lone = Load(prompts[:3], questions[:3], [0.0] * 3)
        for way in ways(options.ratio).values():
            at_rate(engine, chunks, way, load=lone, rate=1.0)  # warms
        alone_s = statistics.median(
            at_rate(engine, chunks, ways(options.ratio)["full"], load=each, rate=1.0).first_s[0]
            for each in (Load(prompts[at:], questions[at:], [0.0]) for at in range(3))
        )
        for at, part in enumerate(options.rates):
            own = slice(at * options.requests, (at + 1) * options.requests)
            load = Load(prompts[own], questions[own], apart)
            for name, way in ways(options.ratio).items():
                if found[name] and found[name][-1].p95 > GIVEN_UP * alone_s:
                    continue
                found[name].append(at_rate(engine, chunks, way, load=load, rate=part / alone_s))
                point = found[name][-1]
                print(f"{name} at {part:g}: p50 {point.p50:.2f}, p95 {point.p95:.2f} s", file=sys.stderr, flush=True)
    return alone_s, found


def reached(points: Sequence[Point], p95: float) -> tuple[str, float]:
    """The rate at which a line reaches this p95; `below` its first or `above` its last where it lies outside."""
    if points[0].p95 > p95:
        return "below ", points[0].rate
    for sooner, later in pairwise(points):
        if later.p95 > p95:
            part = (p95 - sooner.p95) / (later.p95 - sooner.p95)
            return "", sooner.rate + part * (later.rate - sooner.rate)
    return "above ", points[-1].rate


def table(alone_s: float, found: dict[str, list[Point]]) -> list[str]:
    """A row for each line and rate, and one for what a line can take at full's p95."""
    lines = [
        "| line | rate, parts of full's | p50 s | p95 s | computed, of the prompt | done a second |",
        "|---" * 6 + "|",
    ]
    for name, points in found.items():
        for each in points:
            row = [name, f"{each.rate * alone_s:.2f}", f"{each.p50:.2f}", f"{each.p95:.2f}", f"{each.computed:.2f}"]
            lines.append(f"| {' | '.join([*row, f'{each.done:.2f}'])} |")
    limit = found["full"][0].p95
    lines += ["", f"| line | requests a second at a p95 of {limit:.2f} s | times full's |", "|---" * 3 + "|"]
    for name, points in found.items():
        outside, rate = reached(points, limit)
        lines.append(f"| {name} | {outside}{rate:.2f} | {outside}{rate / found['full'][0].rate:.1f} |")
    return lines


def quality(folder: Path, options: argparse.Namespace) -> list[str]:
    """The real model's table: prompts that go on, their passages reused in each way."""
    command = [sys.executable, "-m", "tests.bench.real", "--seed", str(SEED), "--cells", CELL]
    command += ["--rows", ",".join(QUALITY.values()), "--prompts", str(options.real_prompts)]
    command += ["--model", str(folder / "model"), "--prose", str(folder / "prose"), "--folder", str(MEASURED)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    measured = Results(MEASURED / f"real-{SEED}.jsonl").of(CELL)[: options.real_prompts]
    lines = [
        f"| SmolLM2-135M, {len(measured)} prompts | processors' time, of full's | yardsticks | kept |",
        "|---" * 4 + "|",
    ]
    first = statistics.median(each.first_s for each in measured)
    lines.append(f"| full, {first:.2f} s | 1 | 0 | 1 |")
    return lines + [_row(name, row, measured) for name, row in QUALITY.items()]


def _row(name: str, row: str, measured: Sequence[MeasuredPrompt]) -> str:
    said = [each.rows[row] for each in measured]
    yardsticks = sum(each.kl for each in said) / sum(each.yardstick_kl for each in measured)
    saved = sum(each.none.nats - own.nats for each, own in zip(measured, said, strict=True))
    kept = saved / sum(each.none.nats - each.full.nats for each in measured)
    return f"| {name} | {statistics.median(each.work for each in said):.2f} | {yardsticks:.2f} | {kept:.3f} |"


def picture(alone_s: float, found: dict[str, list[Point]], path: Path) -> None:
    lines = [
        Line(name, [(each.rate * alone_s, each.p50 / alone_s) for each in points]) for name, points in found.items()
    ]
    tails = [
        Line(name, [(each.rate * alone_s, each.p95 / alone_s) for each in points]) for name, points in found.items()
    ]
    x, y = "requests, parts of what full prefill can do", "first token, parts of full prefill's alone"
    draw([Panel(x, f"{y}: p50", lines, log="y"), Panel(x, f"{y}: p95", tails, log="y")], path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="24x256")
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--used", type=int, default=4, help="chunks of a prompt")
    parser.add_argument("--ratio", type=float, default=0.15)
    parser.add_argument("--kept", type=int, default=2048, help="MiB for beginnings of prompts")
    parser.add_argument("--requests", type=int, default=40, help="at each rate")
    parser.add_argument(
        "--rates", type=lambda text: [float(each) for each in text.split(",")], default="0.4,0.8,1.2,2,3"
    )
    parser.add_argument("--arrivals", type=Path, help="a trace in Mooncake's or BurstGPT's form")
    parser.add_argument("--real", type=Path, help="a folder with `model` and `prose`")
    parser.add_argument("--real-prompts", type=int, default=8)
    parser.add_argument("--picture", type=Path, default=FOLDER / "rates.svg")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        alone_s, found = measure(Path(folder), options)
    print(f"full prefill alone {alone_s:.2f} s for {PREFIX + options.used * CHUNK + QUESTION} tokens\n")
    print("\n".join(table(alone_s, found)))
    picture(alone_s, found, options.picture)
    if options.real:
        print("\n" + "\n".join(quality(options.real, options)))
    else:
        print("\nquality is left out: --real FOLDER names a real model")


if __name__ == "__main__":
    main()
