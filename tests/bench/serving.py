"""Measures the running service under streaming clients: `python -m tests.bench.serving --seconds 20` prints JSON.

A service with the built-in model runs in a process of its own, with chunks of made-up passages stored. Clients are
closed loops: each streams an answer of `TOKENS` tokens over the OpenAI endpoint, and asks again. `load`: requests a
second, milliseconds to the first token and between tokens, memory of the server, and what was lost or differed from
the answer that the same question got alone; a difference counts where the lone run's two likeliest tokens are further
apart than `TIE`. `overhead_ms`: of one client, the whole time less retrieve, fetch, queue, unpack, fuse and decode,
as the service reports it, and `with_http_ms` as the client sees it. `against
full`: the same for both policies, and the requests a second at the p95 to the first token that full prefill has.
`--shape 24x256` serves a model of so many layers and such a width in place of the built-in one, with random weights;
`KVWEAVE_POLICY` and `KVWEAVE_RATIO` in the environment name another blending than the default.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np

from retriever.documents import chunk_id
from service.access.principal import Role
from service.app.composition import compose_model
from service.lab.questions.cases import Case
from service.lab.questions.suites import Draw, multihop
from service.settings import load_settings
from service.truth.control import Control
from tests.bench.models import random_model
from tests.servers.free_port import free_port

SEED = 77
TOKENS = 24
TIE = 1e-4
LEVELS = (1, 8, 32, 128)
CURVE = (1, 2, 4, 8, 16)
Json = dict[str, Any]

STAGES = ("retrieve", "fetch", "queue", "unpack", "fuse", "decode")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the body that asks it."""

    number: int
    body: Json


@dataclass(slots=True)
class Streamed:
    """One answer as it came. `close`: places where the two likeliest tokens were about equally likely."""

    first_ms: float = 0.0
    gaps_ms: list[float] = field(default_factory=list[float])
    tokens: list[str] = field(default_factory=list[str])
    close: list[int] = field(default_factory=list[int])
    timings: dict[str, float] = field(default_factory=dict[str, float])
    policy: str = ""
    total_ms: float = 0.0
    finished: bool = False


def questions(count: int, *, passages: int) -> tuple[list[Case], list[Asked]]:
    """Cases of the made-up world, and what asks each about its own passages, among others. No answer ends early."""
    cases = multihop(seed=SEED, size=count, drawn=Draw(3))
    stops = compose_model(load_settings(model="builtin")).tokenizer.stop_ids
    pools = [[chunk_id(each.text) for each in case.passages] for case in cases]
    asked: list[Asked] = []
    for number, case in enumerate(cases):
        others = itertools.chain.from_iterable(pools[number:] + pools[:number])
        body: Json = {
            "model": "default",
            "messages": [{"role": "user", "content": f"Question: {case.question}"}],
            "chunk_ids": list(dict.fromkeys(others))[:passages],
            "max_tokens": TOKENS,
            "temperature": 0,
            "logit_bias": {str(each): -100 for each in stops},
            "logprobs": True,
            "top_logprobs": 2,
            "stream": True,
        }
        asked.append(Asked(number, body))
    return cases, asked


async def ask(client: httpx.AsyncClient, asked: Asked, *, blend: Json) -> Streamed:
    """Stream one answer."""
    found, start = Streamed(), time.perf_counter()
    last = start
    async for event in events(client, {**asked.body, "blend": blend}):
        for choice in event["choices"]:
            for token in (choice["logprobs"] or {}).get("content") or []:
                now = time.perf_counter()
                if found.tokens:
                    found.gaps_ms.append(1000 * (now - last))
                else:
                    found.first_ms = 1000 * (now - start)
                last = now
                top = [each["logprob"] for each in token["top_logprobs"]]
                if len(top) == 2 and top[0] - top[1] < TIE:
                    found.close.append(len(found.tokens))
                found.tokens.append(token["token"])
            found.finished |= choice["finish_reason"] is not None
        report = (event.get("kvweave") or {}).get("report")
        if report:
            found.timings, found.policy = report["timings_ms"], report["policy"]
    found.total_ms = 1000 * (time.perf_counter() - start)
    return found


async def events(client: httpx.AsyncClient, body: Json) -> AsyncIterator[Json]:
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {(await response.aread())[:200]!r}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(str(event["error"]))
                yield event


def differs(found: Streamed, alone: Streamed) -> bool:
    """Before the first place where the lone run was undecided."""
    sure = min(alone.close, default=TOKENS)
    return not found.finished or found.tokens[:sure] != alone.tokens[:sure]


def spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"p{each}": round(float(np.percentile(values, each)), 2) for each in (50, 95, 99)}


def resident_mb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


class Run:
    """Closed loops against one server."""

    def __init__(self, client: httpx.AsyncClient, asked: Sequence[Asked], *, pid: int) -> None:
        self._client = client
        self._asked = asked
        self._pid = pid
        self.alone: dict[int, Streamed] = {}

    async def lone(self, blend: Json) -> None:
        """What each question gets when nobody else asks."""
        self.alone = {each.number: await ask(self._client, each, blend=blend) for each in self._asked}

    async def level(self, clients: int, *, seconds: float, blend: Json) -> Json:
        """So many clients for so long; those that run then are waited for."""
        before, errors = resident_mb(self._pid), 0
        done: list[Streamed] = []
        wrong = 0
        start = time.perf_counter()

        async def loop(seed: int) -> None:
            nonlocal errors, wrong
            drawn = random.Random(seed)
            while time.perf_counter() - start < seconds:
                each = drawn.choice(self._asked)
                try:
                    found = await ask(self._client, each, blend=blend)
                except (RuntimeError, httpx.HTTPError) as error:
                    errors += 1
                    print(error, file=sys.stderr)
                    continue
                done.append(found)
                wrong += differs(found, self.alone[each.number])

        await asyncio.gather(*(loop(number) for number in range(clients)))
        took = time.perf_counter() - start
        return {
            "clients": clients,
            "requests": len(done),
            "read": round(sum(each.policy == "full" for each in done) / max(1, len(done)), 2),
            "requests_per_s": round(len(done) / took, 2),
            "tokens_per_s": round(sum(len(each.tokens) for each in done) / took, 1),
            "first_ms": spread([each.first_ms for each in done]),
            "between_ms": spread([gap for each in done for gap in each.gaps_ms]),
            "resident_mb": [before, resident_mb(self._pid)],
            "errors": errors,
            "differing": wrong,
            "stages_ms": {
                stage: round(float(np.median([each.timings.get(stage, 0.0) for each in done])), 2)
                for stage in (STAGES if done else ())
            },
            "overhead_ms": spread([_overhead(each.timings["total"], each.timings) for each in done]),
            "with_http_ms": spread([_overhead(each.total_ms, each.timings) for each in done]),
        }


def _overhead(total: float, timings: dict[str, float]) -> float:
    return total - sum(timings.get(stage, 0.0) for stage in STAGES)


@dataclass(frozen=True, slots=True)
class Server:
    """A service in a process of its own; `key` is the operator's."""

    url: str
    key: str
    pid: int
    data: Path

    def key_of(self, tenant: str, role: Role = Role.ADMIN) -> str:
        """A new key."""
        with closing(Control(self.data / "control.sqlite")) as control:
            return control.create_key(tenant, role)[1]

    def client(self, key: str = "") -> httpx.AsyncClient:
        """As many connections as are asked for, by this key or the operator's."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=600, limits=limits)


@contextmanager
def server(threads: int, model: str, *, memory: str = "2GB", store: str = "") -> Iterator[Server]:
    """A service with the store of that URL, or with LMDB and so much memory above it."""
    with TemporaryDirectory() as folder:
        port = free_port()
        near = f"tiered:mem://?budget={memory}|lmdb://{folder}/store"
        settings = {"DATA": f"{folder}/data", "STORE": store or near, "EMBEDDER": "none"}
        settings |= {
            "MODEL": model,
            "PORT": str(port),
            "THREADS": str(threads),
            "MAX_REQUESTS": "256",
            "LOG_LEVEL": "warning",
        }
        environment = os.environ | {f"KVWEAVE_{name}": value for name, value in settings.items()}
        process = subprocess.Popen(
            [sys.executable, "-c", "from service.cli import main; main()", "serve"], env=environment
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: httpx.get(f"{url}/readyz").status_code == 200, seconds=300)
            data = Path(folder, "data")
            yield Server(url, (data / "admin.key").read_text().strip(), process.pid, data)
        finally:
            process.terminate()
            process.wait()


def until(holds: Callable[[], bool], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if holds():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise TimeoutError("the service did not get that far")


def ingest(url: str, key: str, *, cases: Sequence[Case]) -> None:
    """A document a case, its passages as chunks."""
    documents = [
        {"id": f"case-{number}", "chunks": [{"text": each.text} for each in case.passages]}
        for number, case in enumerate(cases)
    ]
    headers = {"Authorization": f"Bearer {key}"}
    job = httpx.post(f"{url}/v1/documents", json={"documents": documents}, headers=headers).raise_for_status().json()
    until(
        lambda: httpx.get(f"{url}/v1/jobs/{job['job_id']}", headers=headers).json()["status"] == "done",
        seconds=300,
    )


async def measure(arguments: argparse.Namespace) -> Json:
    cases, asked = questions(arguments.questions, passages=arguments.passages)
    blended, full = {}, {"policy": "full"}
    with TemporaryDirectory() as folder, server(arguments.threads, random_model(arguments.shape, Path(folder))) as ran:
        ingest(ran.url, ran.key, cases=cases)
        async with ran.client() as client:
            run = Run(client, asked, pid=ran.pid)
            await run.lone(blended)
            await run.lone(blended)
            levels = [await run.level(each, seconds=arguments.seconds, blend=blended) for each in arguments.levels]
            again = await run.level(1, seconds=arguments.seconds, blend=blended)
            curves: dict[str, list[Json]] = {}
            for name, blend in (("full", full), ("blend", blended)):
                await run.lone(blend)
                curves[name] = [await run.level(each, seconds=arguments.seconds / 2, blend=blend) for each in CURVE]
    return {
        "prompt": {"passages": arguments.passages, "questions": len(asked), "answer_tokens": TOKENS},
        "load": [*levels, {**again, "clients": "1 again"}],
        "against_full": curves,
        "at_equal_p95": equal(curves),
    }


def equal(curves: dict[str, list[Json]]) -> list[dict[str, float]]:
    """Requests a second of both at each p95 that full prefill has, read between the points of blending's curve."""
    points = {
        name: [(each["first_ms"]["p95"], each["requests_per_s"]) for each in rows] for name, rows in curves.items()
    }
    times, rates = zip(*sorted(points["blend"]), strict=True)
    best = np.maximum.accumulate(rates)
    return [
        {
            "p95_ms": p95,
            "full": rate,
            "blend": round(float(np.interp(p95, times, best)), 2),
            "times": round(float(np.interp(p95, times, best)) / rate, 2),
        }
        for p95, rate in sorted(points["full"])
    ]


def add_options(parser: argparse.ArgumentParser, *, questions: int, passages: int) -> None:
    """What every bench of a service is told."""
    parser.add_argument("--questions", type=int, default=questions, help=f"different ones (default {questions})")
    parser.add_argument("--passages", type=int, default=passages, help=f"of each prompt (default {passages})")
    parser.add_argument("--threads", type=int, default=1, help="that the model computes with (default 1)")
    parser.add_argument("--shape", default="", help="layers x width of a random model (default the built-in one)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of each level (default 10)")
    parser.add_argument("--levels", type=int, nargs="*", default=LEVELS, help="clients at once (default 1 8 32 128)")
    add_options(parser, questions=40, passages=24)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
