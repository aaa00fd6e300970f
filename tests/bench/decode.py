"""Measures the engine's streams: tokens per second, alone and together, and how long a joining prompt makes them wait.

`decode`: requests of 256 tokens of text each; tokens are counted from the first one of the request that joined last,
while all run. `stall`: four requests stream while a long prompt is fused. `gaps` are the seconds between two tokens of
a stream, of those that overlap the fuse, or none of it (`quiet`); `fuse_s` is the time until the prompt is ready, of
which the streams took `others_s`. Called by tests/bench/blend.py.
"""

import itertools
import statistics
import time
from collections.abc import Sequence

import numpy as np

from blend.adopt.load import LoadedModel
from blend.engine.engine import EngineLimits, EngineRequest, Ticket
from blend.engine.local_engine import LocalEngine
from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import Prompt
from tests.bench.engine_requests import Asked
from tests.bench.model import Corpus, text_prompt

PROMPT = 256  # tokens
COUNTED = 48  # tokens of each request, while all run
ENDLESS = 2048  # tokens; cancelled long before
TOGETHER = 8
STREAMS = 4
QUIET = 48  # tokens of each stream before a prompt joins
PIECES = (1024, 256, 8192)  # rows; the last one takes the whole prompt in one piece
JOINING = ("full", "hybrid")


class Streams:
    """Requests that generate without an end, until they are left."""

    def __init__(self, engine: LocalEngine, count: int) -> None:
        prompts = [text_prompt(PROMPT, 20 + number) for number in range(count)]
        self.heard = [Asked(PROMPT) for _ in prompts]
        self._tickets: list[Ticket] = [
            engine.submit(_endless(prompt), each.hear) for prompt, each in zip(prompts, self.heard, strict=True)
        ]

    def begin(self) -> float:
        """Wait until all run; the moment of the last one's first token."""
        self.after(0.0, 1)
        return max(each.told_s[0] for each in self.heard)

    def leave(self) -> None:
        """Return when the last is gone."""
        for ticket, each in zip(self._tickets, self.heard, strict=True):
            ticket.cancel()
            each.wait()

    def after(self, moment: float, count: int) -> None:
        """Wait until each has generated so many tokens since then."""
        for each in self.heard:
            each.wait(lambda asked: sum(told > moment for told in asked.told_s) >= count)
            assert each.ended_s == 0, "over too early"


def _endless(prompt: Prompt) -> EngineRequest:
    return EngineRequest(prompt, Sampling(max_tokens=ENDLESS, ignore_eos=True), BlendOrder("full"))


def decode(model: LoadedModel, *, runs: int) -> dict[str, object]:
    """Tokens per second of one request and of several, in turn."""
    rates: dict[int, list[float]] = {1: [], TOGETHER: []}
    for number, count in itertools.product(range(runs + 1), rates):
        rate = _rate(model, count)
        if number:
            rates[count].append(rate)
    alone, together = rates.values()
    return {
        "prompt_tokens": PROMPT,
        "tokens_per_s": {str(count): round(statistics.median(each), 2) for count, each in rates.items()},
        "ratio": round(statistics.median(b / a for a, b in zip(alone, together, strict=True)), 3),
    }


def _rate(model: LoadedModel, count: int) -> float:
    engine = LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint)
    streams = Streams(engine, count)
    start = streams.begin()
    streams.after(start, COUNTED)
    streams.leave()
    engine.close()
    times = [[told for told in each.told_s if told > start][:COUNTED] for each in streams.heard]
    return count * COUNTED / (max(each[-1] for each in times) - start)


def stall(model: LoadedModel, corpus: Corpus, *, tokens: int) -> dict[str, object]:
    """For each size of pieces, what the streams notice of each policy's fuse."""
    prompt = corpus.prompt(tokens)
    found: dict[str, object] = {"prompt_tokens": len(prompt.ids), "streams": STREAMS}
    for rows in PIECES:
        limits = EngineLimits(piece_rows=rows)
        engine = LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint, limits=limits)
        streams = Streams(engine, STREAMS)
        streams.after(streams.begin(), 1)  # the step before still reaches into the last one's fuse
        begun = time.perf_counter()
        streams.after(begun, QUIET)
        row: dict[str, object] = {"quiet": _gaps(streams, begun, time.perf_counter())}
        for policy in JOINING:
            row[policy] = _join(
                engine, streams, request=EngineRequest(prompt, Sampling(max_tokens=1), BlendOrder(policy))
            )
        streams.leave()
        engine.close()
        found[f"piece_rows {rows}"] = row
    return found


def _join(engine: LocalEngine, streams: Streams, *, request: EngineRequest) -> dict[str, object]:
    asked = Asked(len(request.prompt.ids))
    engine.submit(request, asked.hear)
    asked.wait()
    streams.after(asked.ready_s, 2)  # then the gap around the end is complete
    assert asked.ready is not None
    spent = asked.first_s - asked.ready.queued_s
    others = asked.ready.report.seconds.get("others", 0.0)
    gaps = _gaps(streams, asked.asked_s, asked.ready_s)
    return {"fuse_s": round(spent, 3), "others_s": round(others, 3), "gaps": gaps}


def _gaps(streams: Streams, start: float, stop: float) -> dict[str, float]:
    """Between tokens, of the pairs that lie in this time or reach into it."""
    gaps = [
        after - before
        for each in streams.heard
        for before, after in itertools.pairwise(list(each.told_s))
        if after > start and before < stop
    ]
    return {"tokens": len(gaps), **_quantiles(gaps)}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    return {
        "p50": round(float(np.percentile(values, 50)), 4),
        "p99": round(float(np.percentile(values, 99)), 4),
        "max": round(max(values), 4),
    }
