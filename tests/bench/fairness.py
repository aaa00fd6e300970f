"""Measures what one tenant feels of another: `python -m tests.bench.fairness --seconds 20` prints JSON.

A service as in `tests.bench.serving`. `one` asks one question after the other, first while nobody else asks, then
while `many` clients of another tenant do, in turn for `--rounds`. `times`: the p95 of `one` under load, less one
prefill of the others, over its lone p95. `document`: seconds until a new document of `--chunks` chunks is ready, lone
and under that load. `throughput`: what the many get in a second, alone and beside `one` and the documents.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

from service.access.principal import Role
from tests.bench.models import random_model
from tests.bench.serving import STAGES, Asked, Json, Streamed, add_options, ask, ingest, questions, server

BLEND = {"policy": "hybrid", "ratio": 0.15}


async def loop(client: httpx.AsyncClient, asked: Sequence[Asked], *, seed: int, stop: asyncio.Event) -> list[Streamed]:
    """One client that asks again as soon as it has its answer."""
    drawn, done = random.Random(seed), list[Streamed]()
    while not stop.is_set():
        try:
            done.append(await ask(client, drawn.choice(asked), blend=BLEND))
        except RuntimeError as error:
            print(json.dumps({"refused": str(error)[:200]}))
            await asyncio.sleep(1)
    return done


@dataclass(frozen=True, slots=True)
class Answered:
    """What clients got, and for how long they were answered."""

    done: list[Streamed]
    seconds: float

    @property
    def p95_ms(self) -> float:
        return float(np.percentile([each.total_ms for each in self.done], 95))

    @property
    def stages_ms(self) -> dict[str, int]:
        """Medians."""
        return {stage: round(np.median([each.timings.get(stage, 0.0) for each in self.done])) for stage in STAGES}

    @property
    def per_second(self) -> float:
        return round(len(self.done) / self.seconds, 2)


async def for_a_while(client: httpx.AsyncClient, asked: Sequence[Asked], *, clients: int, seconds: float) -> Answered:
    stop, start = asyncio.Event(), time.perf_counter()
    loops = [asyncio.create_task(loop(client, asked, seed=each, stop=stop)) for each in range(clients)]
    await asyncio.sleep(seconds)
    stop.set()
    done = [each for found in await asyncio.gather(*loops) for each in found]
    return Answered(done, time.perf_counter() - start)


async def document(client: httpx.AsyncClient, number: int, *, chunks: int) -> float:
    """Seconds until a new document is ready."""
    drawn = random.Random(number)
    texts = [" ".join(f"Kelo {drawn.randrange(10**6)} lives in Sunel." for _ in range(4)) for _ in range(chunks)]
    start = time.perf_counter()
    body = {"documents": [{"id": f"new-{number}", "chunks": [{"text": text} for text in texts]}]}
    job = (await client.post("/v1/documents", json=body)).raise_for_status().json()["job_id"]
    async with client.stream("GET", f"/v1/jobs/{job}/events") as events:
        await events.aread()  # it ends with the job
    return time.perf_counter() - start


async def round_of(
    one: httpx.AsyncClient, many: httpx.AsyncClient, *, asked: Sequence[Asked], arguments: argparse.Namespace, turn: int
) -> Json:
    seconds, chunks, clients = arguments.seconds, arguments.chunks, arguments.clients
    lone = await for_a_while(one, asked, clients=1, seconds=seconds / 2)
    ready = [await document(one, 10 * turn + each, chunks=chunks) for each in range(3)]
    busy = await for_a_while(many, asked, clients=clients, seconds=seconds / 2)
    crowd = asyncio.create_task(for_a_while(many, asked, clients=clients, seconds=2 * seconds))
    await asyncio.sleep(1)
    beside = await for_a_while(one, asked, clients=1, seconds=seconds)
    late = [await document(one, 10 * turn + 5 + each, chunks=chunks) for each in range(3)]
    done = await crowd
    fuse = float(np.median([each.timings.get("fuse", 0.0) for each in lone.done]))
    return {
        "lone_p95_ms": round(lone.p95_ms),
        "beside_p95_ms": round(beside.p95_ms),
        "prefill_ms": round(fuse),
        "times": round((beside.p95_ms - fuse) / lone.p95_ms, 2),
        "document_s": [round(float(np.median(each)), 2) for each in (ready, late)],
        "document_times": round(float(np.median(late) / np.median(ready)), 2),
        "throughput": [busy.per_second, done.per_second],
        "answers": [len(lone.done), len(beside.done), len(done.done)],
        "stages_ms": [lone.stages_ms, beside.stages_ms],
        "many_p95_ms": [round(busy.p95_ms), round(done.p95_ms)],
    }


async def measure(arguments: argparse.Namespace) -> list[Json]:
    cases, asked = questions(arguments.questions, passages=arguments.passages)
    with TemporaryDirectory() as folder, server(arguments.threads, random_model(arguments.shape, Path(folder))) as ran:
        other = ran.key_of("other", Role.WRITE)
        for key in (ran.key, other):
            ingest(ran.url, key, cases=cases)
        async with ran.client(other) as one, ran.client() as many:
            await for_a_while(one, asked, clients=4, seconds=2)
            await for_a_while(many, asked, clients=4, seconds=2)
            return [
                await round_of(one, many, asked=asked, arguments=arguments, turn=turn)
                for turn in range(arguments.rounds)
            ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of each part of a round (default 20)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64, help="of the many (default 64)")
    parser.add_argument("--chunks", type=int, default=20, help="of a new document (default 20)")
    add_options(parser, questions=20, passages=12)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
