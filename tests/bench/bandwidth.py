"""Measures the first token over the bandwidth of the store: `python -m tests.bench.bandwidth` ends in a picture.

The picture is CacheGen's: a context comes as text, which is computed, or as records, which are loaded. A service in
this process, a model of `--shape` with random weights, `--chunks` chunks of 256 tokens in an object store behind a link
of so many MB/s (tests/bench/link.py). `text` is full prefill; `lossless`, `q8` and `q4` are the operating point with
records in that codec, whatever they take; `auto` is what the service chooses, with records in q4, after `TAUGHT`
prompts over that link. The ways are asked in turn, `--rounds` times, a way no longer than `MOST_S` at one speed.
Seconds are told in parts of full prefill's, and the bandwidth in parts of what brings a token's 16-bit numbers as
quickly as full prefill computes one, so that machines compare. Then the link jumps between two speeds, the same times
for each way: a deadline is missed where the first token takes longer than `LATE` times full prefill's middle.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import AutoConfig

from blend.fuse.fuse import BlendOrder
from retriever.documents import chunk_id
from service.app.core import Core
from service.reports import Report
from service.settings import Settings
from tests.bench.in_process import READ, first_token, made_up, precompute, serving
from tests.bench.link import MB, Link, behind
from tests.bench.models import random_model
from tests.bench.picture import FOLDER, Line, Panel, draw

CHUNK = 256  # tokens
CODECS = "lossless,q8,q4"
AUTO, TEXT, SERVED = "auto", "text", "q4"
SPEEDS = "1,3,10,30,100,300,1000"
TAUGHT, MOST_S = 8, 15.0
JUMPS, HELD_S, LATE = "1,100", 6.0, 1.2


@dataclass(slots=True)
class Asked:
    """The answers of one way over one link."""

    ms: list[float] = field(default_factory=list[float])
    reports: list[Report] = field(default_factory=list[Report])

    @property
    def middle_ms(self) -> float:
        return statistics.median(self.ms)

    @property
    def chosen(self) -> str:
        """Policies, with how often, their ratios where they blend, and how many of these were hidden by loading."""
        counts = Counter(each.policy.partition("/")[0] for each in self.reports)
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        blended = [each for each in self.reports if each.policy not in ("full", "prefix")]
        if not blended:
            return told
        hidden = sum("hidden by loading" in note for each in blended for note in each.notes)
        ratios = [each.ratio for each in blended]
        return f"{told}, ratio {min(ratios):.2f} to {max(ratios):.2f}, hidden {hidden}"

    @property
    def loaded(self) -> float:
        """How many chunks of an answer came from records, on average."""
        return statistics.mean(sum(chunk.bytes > 0 for chunk in each.chunks) for each in self.reports)


@dataclass(frozen=True, slots=True)
class Records:
    """Chunks that are stored in one codec, in a service."""

    core: Core
    chunks: Sequence[str]

    def ways(self, codec: str) -> dict[str, BlendOrder | None]:
        ways: dict[str, BlendOrder | None] = {TEXT: READ, codec: self.core.model.order}
        return {**ways, AUTO: None} if codec == SERVED else ways

    def ask(self, runner: asyncio.Runner, order: BlendOrder | None, *, to: Asked | None = None) -> None:
        ms, report = runner.run(first_token(self.core, self.chunks, order))
        if to is not None:
            to.ms.append(ms)
            to.reports.append(report)


def over_speeds(
    records: Records, codec: str, *, link: Link, runner: asyncio.Runner, options: argparse.Namespace
) -> dict[tuple[str, float], Asked]:
    """All ways at each speed, in turn."""
    found: dict[tuple[str, float], Asked] = {}
    for speed in options.speeds:
        link.hold(speed)
        records.core.store.name = f"link {speed:g}"  # each speed is a tier of its own, as one store has one
        for _ in range(TAUGHT if codec == SERVED else 0):
            records.ask(runner, None)
        spent = defaultdict[str, float](float)
        for _ in range(options.rounds):
            for way, order in records.ways(codec).items():
                if spent[way] < MOST_S:
                    began = time.perf_counter()
                    records.ask(runner, order, to=found.setdefault((way, speed), Asked()))
                    spent[way] += time.perf_counter() - began
        middles = {way: round(found[way, speed].middle_ms) for way in records.ways(codec)}
        chosen = found[AUTO, speed].chosen if codec == SERVED else ""
        print(f"{codec} over {speed:g} MB/s: {middles} ms {chosen}", file=sys.stderr, flush=True)
    return found


def over_jumps(
    records: Records, *, link: Link, runner: asyncio.Runner, options: argparse.Namespace
) -> dict[str, Asked]:
    """Each way for so long over a link that jumps at the same times, twice."""
    found: dict[str, Asked] = {}
    records.core.store.name = "link that jumps"
    link.hold(options.jumps[1])
    for _ in range(TAUGHT):
        records.ask(runner, None)
    for seed in range(2):
        for way, order in records.ways(SERVED).items():
            link.jump(options.jumps, held_s=options.held, seed=seed)
            until = time.perf_counter() + options.jumping / 2
            while time.perf_counter() < until:
                records.ask(runner, order, to=found.setdefault(way, Asked()))
            print(f"jumping: {way} {[round(ms) for ms in found[way].ms]} ms", file=sys.stderr, flush=True)
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """All answers, by codec, way and speed. A way is compared with full prefill as it was asked in turn with it."""

    speeds: Mapping[tuple[str, str, float], Asked]
    jumps: Mapping[str, Asked]
    nbytes: Mapping[str, int]  # of all records in each codec
    tokens: int  # of a prompt
    token_bytes: int

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Codecs and ways, as they are shown."""
        return [*((codec, codec) for codec in self.nbytes), *([(SERVED, AUTO)] if SERVED in self.nbytes else [])]

    def point(self, codec: str, way: str, speed: float) -> tuple[float, float]:
        """The bandwidth in parts of what brings 16-bit numbers as quickly as full prefill computes tokens, and the
        first token in parts of full prefill's.
        """
        text_s = self.speeds[codec, TEXT, speed].middle_ms / 1000
        part = speed * MB * text_s / (self.tokens * self.token_bytes)
        return part, self.speeds[codec, way, speed].middle_ms / 1000 / text_s

    def table(self) -> list[str]:
        names = " | ".join(way for _, way in self.lines)
        lines = [
            f"| MB/s | text, s | {names} | chosen by auto | chunks from records |",
            "|---" * (len(self.lines) + 4) + "|",
        ]
        for speed in sorted({speed for *_, speed in self.speeds}):
            texts = " ".join(f"{self.speeds[codec, TEXT, speed].middle_ms / 1000:.1f}" for codec in self.nbytes)
            points = [self.point(codec, way, speed) for codec, way in self.lines]
            cells = [f"{times:.2f} at {part:.2f}" for part, times in points]
            auto = self.speeds.get((SERVED, AUTO, speed))
            row = [f"{speed:g}", texts, *cells, *([auto.chosen, f"{auto.loaded:.1f}"] if auto else ["", ""])]
            lines.append(f"| {' | '.join(row)} |")
        lines += ["", "| jumping | answers | middle s | p95 s | late | chosen |", "|---" * 6 + "|"]
        limit_ms = LATE * self.jumps[TEXT].middle_ms if self.jumps else 0.0
        for way, each in self.jumps.items():
            p95 = statistics.quantiles(each.ms, n=20)[-1]
            late = sum(ms > limit_ms for ms in each.ms) / len(each.ms)
            row = [way, str(len(each.ms)), f"{each.middle_ms / 1000:.2f}", f"{p95 / 1000:.2f}", f"{late:.2f}"]
            lines.append(f"| {' | '.join(row)} | {each.chosen} |")
        return lines


def picture(found: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """Each line's points, over the bandwidth; text is 1 everywhere."""
    places = [part for points in found.values() for part, _ in points]
    lines = [Line("text (full prefill)", [(min(places), 1.0), (max(places), 1.0)])]
    lines += [Line(name, sorted(points)) for name, points in found.items()]
    x = "bandwidth, parts of a token's 16-bit bytes × full prefill's tokens/s"
    draw([Panel(x, "first token, parts of full prefill's", lines, log="xy", upright=[1.0])], path)


def measure(folder: Path, options: argparse.Namespace) -> Measured:
    model, link = random_model(options.shape, folder / "model"), Link()
    speeds: dict[tuple[str, str, float], Asked] = {}
    jumps, nbytes, tokens = dict[str, Asked](), dict[str, int](), 0
    for codec in options.codecs:
        own = folder / codec
        (own / "store").mkdir(parents=True)
        given = {"data": own / "data", "store": f"file://{own}/store", "model": model, "auth": False, "codec": codec}
        settings = Settings(**given, embedder="none", threads=options.threads)
        link.bytes_per_s = lambda: 1e12
        with serving(settings, partial(behind, link=link)) as core:
            texts = [made_up(core, CHUNK, number=number) for number in range(options.chunks)]
        precompute(settings, own, texts=texts)
        with serving(settings, partial(behind, link=link)) as core, asyncio.Runner() as runner:
            records, warm = Records(core, [chunk_id(each) for each in texts]), Asked()
            for order in (READ, core.model.order):
                records.ask(runner, order, to=warm)
            nbytes[codec] = sum(chunk.bytes for chunk in warm.reports[-1].chunks)
            tokens = sum(chunk.tokens for chunk in warm.reports[-1].chunks)
            found = over_speeds(records, codec, link=link, runner=runner, options=options)
            speeds |= {(codec, *key): each for key, each in found.items()}
            if codec == SERVED:
                jumps = over_jumps(records, link=link, runner=runner, options=options)
    config = AutoConfig.from_pretrained(model)
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return Measured(speeds, jumps, nbytes, tokens, 2 * numbers)


def _speeds(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="24x256")
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--speeds", type=_speeds, default=SPEEDS)
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=CODECS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jumping", type=float, default=80, help="seconds of each way over the link that jumps")
    parser.add_argument("--jumps", type=_speeds, default=JUMPS, help="MB/s, the slower first")
    parser.add_argument("--held", type=float, default=HELD_S, help="seconds between jumps, on average")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--picture", type=Path, default=FOLDER / "bandwidth.svg")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        found = measure(Path(folder), options)
    each = ", ".join(f"{codec} {nbytes / found.tokens:,.0f}" for codec, nbytes in found.nbytes.items())
    print(f"{found.tokens} tokens in {options.chunks} chunks; bytes a token: 16 bit {found.token_bytes:,}, {each}")
    print(
        "first token in parts of full prefill's, at the bandwidth in parts of 16-bit bytes x full prefill's tokens/s\n"
    )
    print("\n".join(found.table()))
    picture(
        {way: [found.point(codec, way, speed) for speed in options.speeds] for codec, way in found.lines},
        options.picture,
    )


if __name__ == "__main__":
    main()
