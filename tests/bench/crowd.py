"""Measures what a tenant feels of a hostile one: `make crowd` prints a table for each attack.

A service with the built-in model. The good tenant has 8 clients that ask about its documents, with half a second
between two questions, and one that uploads a sentence and waits until it is ready; somebody asks for `/healthz`. First
they are alone, then beside the attack of another tenant for `--minutes`, and from ten seconds after its clients have
left they are alone again; what it has uploaded is still computed then. `tenant`: 64 long constrained queries, 100
search loops, uploads of 20 MB. `everything`: these, uploads of 64 MB, bodies of a million keys, documents that are
uploaded and deleted, and readers that do not read. All clients share the machine's cores with the service.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count

import httpx
import numpy as np

from service.access.principal import Role
from service.lab.questions.suites import Draw, multihop
from service.truth.control import Control
from tests.bench.overload import SETTLED_S, Attack, Probe
from tests.bench.serving import SEED, Json, Server, ingest, resident_mb, server
from tests.bench.upload_turns import small_s, text_of

TENANT = ("constrained", "searches", "uploads")
ATTACKS = {"tenant": TENANT, "everything": (*TENANT, "large", "keys", "deletes", "readers")}
CLIENTS = 8  # of the good one
QUIET_S = 30.0  # of each part without the attack
PAUSE_S = 0.5
MEGABYTES = (20, 64)
Samples = Sequence[tuple[str, float, float, str]]  # what, when by the monotonic clock, milliseconds, status


class Crowd(Attack):
    """The clients of the hostile tenant."""

    def loops(self, load: str) -> Sequence[Awaitable[None]]:
        post = partial(self._request, "POST")
        match load:
            case "constrained":
                long = {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 40}
                return self._clients(load, 64, self._asking(long))
            case "searches":
                return self._clients(load, 100, post("/v1/search", b'{"query": "who keeps map 17 in Sunel"}'))
            case "uploads" | "large":
                megabytes = MEGABYTES[load == "large"]
                documents = ({"id": f"{load}-{seed}", "text": text_of(megabytes - 1, seed)} for seed in range(2))
                bodies = [json.dumps({"documents": [each]}).encode() for each in documents]
                return self._clients(load, 1, *(post("/v1/documents", body) for body in bodies))
            case "keys":
                body = json.dumps({"query": "who", **dict.fromkeys(map(str, range(1_000_000)), 0)})
                return self._clients(load, 1, post("/v1/search", body.encode()))
            case "deletes":
                body = json.dumps({"documents": [{"id": "brief", "text": text_of(0.1, 3)}]})
                delete = self._request("DELETE", "/v1/documents/brief")
                return self._clients(load, 2, post("/v1/documents", body.encode()), delete)
            case _:
                return super().loops(load)


def probe(url: str, key: str, *, seconds: float) -> None:
    """Is the good tenant until then; prints a line when it begins, and what it saw as the last one."""
    cases = multihop(seed=SEED, size=CLIENTS, drawn=Draw(3))
    bodies = [{"question": each.question, "top_k": 4, "sampling": {"max_tokens": 16}} for each in cases]
    asking = [
        Probe("queries", PAUSE_S, url, path="/v1/query", key=key, body=json.dumps(body).encode()) for body in bodies
    ]
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(CLIENTS + 2) as threads:
        print("begun", flush=True)
        uploads = threads.submit(small_uploads, url, key, end=end)
        found = threads.map(lambda each: [*each.samples(end)], [*asking, Probe("healthz", 0.05, url, path="/healthz")])
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
        with closing(Control(ran.data / "control.sqlite")) as control:
            hostile, good = (control.create_key(name, Role.ADMIN)[1] for name in ("hostile", "good"))
        for key in (hostile, good):
            ingest(ran.url, key, cases=multihop(seed=SEED, size=CLIENTS, drawn=Draw(3)))
        attack, beside_s = Crowd(ran, hostile, ""), 60 * minutes
        clients = [each for load in loads for each in attack.loops(load)]
        arguments = [sys.executable, "-m", "tests.bench.crowd", "--probe", ran.url, good]
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
        memory.append(resident_mb(ran.pid))
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
                f"| resident MB: before; most; after | {memory[0]} | {max(memory)} | {memory[-1]} |",
                f"\nRefused to the good one: {seen.refused or 'nothing'}",
                f"Lost of its uploads: {lost(ran, good, samples) or 'nothing'}",
                f"The hostile one got: {got}\n",
            ]
        )


def lost(ran: Server, key: str, samples: Samples) -> list[str]:
    """The small documents that were ready and are not listed."""
    codes = [code for what, *_, code in samples if what == "uploads"]
    ready = [f"small-{number}" for number, code in enumerate(codes) if code == "200"]
    with httpx.Client(base_url=ran.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        return [name for name in ready if client.get(f"/v1/documents/{name}").status_code != 200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1, help="of each attack (default 1)")
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=[*ATTACKS], help="which (default both)")
    parser.add_argument("--probe", nargs=2, metavar=("URL", "KEY"), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(*options.probe, seconds=options.seconds)
        return
    print(f"{os.cpu_count()} cores, which all clients share; load average before: {os.getloadavg()[0]:.1f}\n")
    for name in options.attacks:
        loads: Json = dict.fromkeys(ATTACKS[name])
        print(f"**{name}**: {', '.join(loads)}; {options.minutes:g} min\n")
        print(asyncio.run(under(ATTACKS[name], minutes=options.minutes)), flush=True)


if __name__ == "__main__":
    main()
