"""Measures what a tenant feels of a hostile one: `make crowd` prints a table for each attack.

A service with the built-in model. The good tenant has 8 clients that ask about its documents, with half a second
between two questions, and one that uploads a sentence and waits until it is ready; an operator asks for `/healthz` and
`/metrics`. First they are alone, then beside the attack of another tenant for `--minutes`, and from ten seconds after
its clients have left they are alone again; what it has uploaded is still computed then. `tenant`: 64 long constrained
queries, 100 search loops, uploads of 20 MB. `everything`: these, uploads of 64 MB, bodies of a million keys, documents
that are uploaded and deleted, and readers that do not read. `limits`: what is turned away for its number, size or time
(tests/bench/attacks.py); each load of that file can be named alone, too. All clients share the machine's cores with the
service.
"""

import argparse
import asyncio
import http.client
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import httpx
import numpy as np

from service.lab.questions.suites import Draw, multihop
from tests.bench.attacks import LOADS, Attack
from tests.bench.serving import SEED, Server, ingest, resident_mb, server
from tests.bench.upload_turns import small_s

TENANT = ("constrained", "searches", "uploads")
LIMITS = ("requests", "bodies", "readers", "heads", "followers", "unfinished", "grammars")
ATTACKS = {"tenant": TENANT, "everything": (*TENANT, "large", "keys", "deletes", "readers"), "limits": LIMITS}
CLIENTS = 8  # of the good one
QUIET_S, SETTLED_S = 30.0, 10.0  # of each part without the attack, and between it and the one behind
PAUSE_S = 0.5
Samples = Sequence[tuple[str, float, float, str]]  # what, when by the monotonic clock, milliseconds, status


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks for the same again and again, with a pause."""

    name: str
    pause_s: float
    url: str
    path: str
    key: str = ""
    body: bytes | None = None

    def samples(self, end: float) -> Iterator[tuple[str, float, float, str]]:
        """What was asked, when by the monotonic clock, the milliseconds that it took, and the status."""
        while (at := time.monotonic()) < end:
            code = self._status()
            yield self.name, at, 1000 * (time.monotonic() - at), code
            time.sleep(self.pause_s)

    def _status(self) -> str:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            method = "POST" if self.body else "GET"
            connection.request(method, self.path, self.body, {**headers, "content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            return str(response.status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()


def probe(url: str, operator: str, key: str, *, seconds: float) -> None:
    """Is the good tenant until then; prints a line when it begins, and what it saw as the last one."""
    cases = multihop(seed=SEED, size=CLIENTS, drawn=Draw(3))
    bodies = [{"question": each.question, "top_k": 4, "sampling": {"max_tokens": 16}} for each in cases]
    asking = [
        Probe("queries", PAUSE_S, url, path="/v1/query", key=key, body=json.dumps(body).encode()) for body in bodies
    ]
    asking += [
        Probe("healthz", 0.05, url, path="/healthz"),
        Probe("metrics", 0.25, url, path="/metrics", key=operator),
    ]
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(len(asking) + 1) as threads:
        print("begun", flush=True)
        uploads = threads.submit(small_uploads, url, key, end=end)
        found = threads.map(lambda each: [*each.samples(end)], asking)
        print(json.dumps([*uploads.result(), *(sample for each in found for sample in each)]))


def small_uploads(url: str, key: str, *, end: float) -> Samples:
    found: list[tuple[str, float, float, str]] = []
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=600) as client:
        for number in count():
            if (start := time.monotonic()) > end:
                break
            try:
                took, code = small_s(client, f"small-{number}"), "200"
            except httpx.HTTPError as error:
                took, code = time.monotonic() - start, str(error)[:80]
            found.append(("uploads", start, 1000 * took, code))
            time.sleep(PAUSE_S)
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """What the good tenant saw. `parts`: when each part began and ended."""

    samples: Samples
    parts: Mapping[str, tuple[float, float]]

    def row(self, name: str, *, points: Sequence[int]) -> str:
        """Percentiles of each part in milliseconds, and what they are as multiples of the first."""
        cells: list[str] = []
        first: list[float] = []
        for begin, end in self.parts.values():
            took = [ms for what, at, ms, _ in self.samples if what == name and begin <= at < end]
            found = [float(np.percentile(took, each)) if took else np.nan for each in points]
            first = first or found
            times = f" ({found[-1] / first[-1]:.1f} times)" if cells else ""
            cells.append(f"{', '.join(f'{each:,.0f}' for each in found)}{times}, {len(took)} in all")
        told = ", ".join(f"p{each}" for each in points)
        return f"| {name}, {told}, ms | {' | '.join(cells)} |"

    @property
    def refused(self) -> list[str]:
        return [f"{what}: {code}" for what, _, _, code in self.samples if code != "200"]


async def under(loads: Sequence[str], *, minutes: float) -> str:
    """What is seen of a service of its own."""
    with server(1, "builtin", memory="128MB") as ran:
        hostile, good = ran.key_of("hostile"), ran.key_of("good")
        for key in (hostile, good):
            ingest(ran.url, key, cases=multihop(seed=SEED, size=CLIENTS, drawn=Draw(3)))
        attack, beside_s = Attack(ran, hostile), 60 * minutes
        clients = [each for load in loads for each in attack.loops(load)]
        arguments = [sys.executable, "-m", "tests.bench.crowd", "--probe", ran.url, ran.key, good]
        seconds = QUIET_S + beside_s + SETTLED_S + QUIET_S
        process = await asyncio.create_subprocess_exec(
            *arguments, "--seconds", str(seconds), stdout=asyncio.subprocess.PIPE, limit=1 << 28
        )
        assert process.stdout
        await process.stdout.readline()
        at = [time.monotonic()]
        await asyncio.sleep(QUIET_S)
        memory = [resident_mb(ran.pid)]
        at.append(time.monotonic())
        tasks = [asyncio.ensure_future(each) for each in clients]
        for _ in range(20):
            await asyncio.sleep(beside_s / 20)
            memory.append(resident_mb(ran.pid))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        at.append(time.monotonic())
        out, _ = await process.communicate()
        memory += [resident_mb(ran.pid), await cancelled(ran, hostile)]
        samples: Samples = [tuple(each) for each in json.loads(out)]
        parts = {"alone": (at[0], at[1]), "beside": (at[1], at[2]), "after": (at[2] + SETTLED_S, np.inf)}
        seen = Seen(samples, parts)
        got = {load: dict(codes) for load, codes in attack.codes.items()}
        return "\n".join(
            [
                "| | alone | beside | after |\n|---|---|---|---|",
                seen.row("queries", points=(50, 95)),
                seen.row("uploads", points=(50, 95)),
                seen.row("healthz", points=(50, 99)),
                seen.row("metrics", points=(50, 99)),
                f"| resident MB: before; most; after | {memory[0]} | {max(memory)} | {memory[-2]} |",
                f"\nIts uploads cancelled: {memory[-1]} MB",
                f"\nRefused to the good one: {seen.refused or 'nothing'}",
                f"Lost of its uploads: {lost(ran, good, samples) or 'nothing'}",
                f"The hostile one got: {got}\n",
            ]
        )


async def cancelled(ran: Server, key: str) -> int:
    """The resident megabytes ten seconds after what still computes for this key was cancelled."""
    async with ran.client(key) as client:
        for job in (await client.get("/v1/jobs", params={"limit": 100})).json()["jobs"]:
            if job["status"] == "running":
                await client.delete(f"/v1/jobs/{job['id']}")
    await asyncio.sleep(SETTLED_S)
    return resident_mb(ran.pid)


def lost(ran: Server, key: str, samples: Samples) -> list[str]:
    """The small documents that were ready and are not listed."""
    codes = [code for what, *_, code in samples if what == "uploads"]
    ready = [f"small-{number}" for number, code in enumerate(codes) if code == "200"]
    with httpx.Client(base_url=ran.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        return [name for name in ready if client.get(f"/v1/documents/{name}").status_code != 200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1, help="of each attack (default 1)")
    parser.add_argument(
        "--attacks", nargs="*", choices=[*ATTACKS, *LOADS], default=["tenant", "everything"], help="which"
    )
    parser.add_argument("--probe", nargs=3, metavar=("URL", "OPERATOR", "KEY"), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(*options.probe, seconds=options.seconds)
        return
    print(f"{os.cpu_count()} cores, which all clients share; load average before: {os.getloadavg()[0]:.1f}\n")
    for name in options.attacks:
        loads = ATTACKS.get(name, (name,))
        print(f"**{name}**: {', '.join(loads)}; {options.minutes:g} min\n")
        print(asyncio.run(under(loads, minutes=options.minutes)), flush=True)


if __name__ == "__main__":
    main()
