"""Measures a service whose store answers late: `python -m tests.bench.distant --shape 24x256` prints JSON.

Two services hold the same passages: one in memory, over LMDB, and one in an S3 server behind a proxy that answers each
request `--delay` milliseconds late, and knows by heart what it was asked before, so that the server costs nothing.
Closed loops of `--clients` ask both in turn, `--rounds` times; `first_ms` and `stages_ms` are medians over rounds of
what `tests.bench.serving` reports, `read` the shares that were read whole, and `times` is distant by near, by round.
`--memory` gives the distant service a tier of so much memory above it. `KVWEAVE_REUSE=always` blends all.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.models import random_model
from tests.bench.serving import STAGES, Json, Run, add_options, ingest, questions, server
from tests.servers.s3 import moto_server

Exchange = tuple[str, str, str]  # method, path, range


class LateProxy:
    """An HTTP proxy for one upstream that keeps every answer to a GET of an object, and answers late."""

    def __init__(self, host: str, port: int, *, delay_s: float) -> None:
        self._upstream = host, port
        self._delay_s = delay_s
        self._kept: dict[Exchange, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until its client leaves."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                named = {name.lower(): value for name, value in headers.items()}
                body = await reader.readexactly(int(named.get("content-length", 0)))
                await asyncio.sleep(self._delay_s)
                exchange = (method, path, named.get("range", ""))
                answer = self._kept.get(exchange) or await asyncio.to_thread(self._ask, exchange, headers, body)
                if (
                    method == "GET"
                    and "list-type" not in path
                    and answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 206"))
                ):
                    self._kept[exchange] = answer
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _ask(self, exchange: Exchange, headers: dict[str, str], body: bytes) -> bytes:
        method, path, _ = exchange
        connection = HTTPConnection(*self._upstream, timeout=60)
        try:
            connection.request(method, path, body, {**headers, "Connection": "close"})
            response = connection.getresponse()
            content = response.read()
            told = {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()
        length = told.get("content-length", str(len(content)))  # of a HEAD, which has no body
        dropped = ("connection", "transfer-encoding", "content-length")
        lines = [f"{name}: {value}" for name, value in told.items() if name not in dropped]
        first = f"HTTP/1.1 {response.status} {response.reason}"
        return "\r\n".join([first, *lines, f"content-length: {length}", "", ""]).encode("latin-1") + content


async def _serve(upstream: str, delay_s: float) -> None:
    host, _, port = upstream.removeprefix("http://").partition(":")
    listening = await asyncio.start_server(
        LateProxy(host, int(port), delay_s=delay_s).serve, "127.0.0.1", 0, backlog=512
    )
    print(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", flush=True)
    async with listening:
        await listening.serve_forever()


@contextmanager
def late_s3(delay_ms: float) -> Generator[str]:
    """The URL of a store in an S3 server behind such a proxy, each in a process of its own."""
    with moto_server() as s3:
        command = [sys.executable, "-m", "tests.bench.distant", "--proxy", s3.endpoint, "--delay", str(delay_ms)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
            try:
                assert proxy.stdout is not None
                yield s3.url("bench", through=proxy.stdout.readline().strip(), timeout_s=30.0)
            finally:
                proxy.terminate()


@asynccontextmanager
async def service(arguments: argparse.Namespace, model: str, *, store: str) -> AsyncGenerator[Run]:
    """A service that has the passages of all questions, and what asks it."""
    cases, asked = questions(arguments.questions, passages=arguments.passages)
    with server(arguments.threads, model, store=store) as ran:
        await asyncio.to_thread(ingest, ran.url, ran.key, cases=cases)
        async with ran.client() as client:
            run = Run(client, asked, pid=ran.pid)
            await run.lone({})
            yield run


async def measure(arguments: argparse.Namespace) -> Json:
    """Both services, round by round."""
    above = f"mem://?budget={arguments.memory}|" if arguments.memory else ""
    found: dict[str, list[Json]] = {"near": [], "distant": []}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        model = random_model(arguments.shape, Path(folder))
        far = stack.enter_context(late_s3(arguments.delay))
        stores = {"near": "", "distant": f"tiered:{above}{far}" if above else far}
        runs = {
            name: await stack.enter_async_context(service(arguments, model, store=store))
            for name, store in stores.items()
        }
        for round_ in range(arguments.rounds + 1):  # the first one only warms
            for name, run in runs.items():
                row = await run.level(arguments.clients, seconds=arguments.seconds, blend={})
                if round_:
                    found[name].append(row)
    report: Json = {name: _middle(rows) for name, rows in found.items()}
    report["times"] = [
        round(far["first_ms"]["p50"] / near["first_ms"]["p50"], 3)
        for near, far in zip(found["near"], found["distant"], strict=True)
    ]
    return report


def _middle(rows: Sequence[Json]) -> Json:
    return {
        "first_ms": {each: round(median(row["first_ms"][each] for row in rows), 1) for each in ("p50", "p95")},
        "read": [row["read"] for row in rows],
        "requests_per_s": round(median(row["requests_per_s"] for row in rows), 2),
        "stages_ms": {stage: round(median(row["stages_ms"][stage] for row in rows), 1) for stage in STAGES},
        "resident_mb": rows[-1]["resident_mb"][1],
        "errors": sum(row["errors"] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8, help="at once (default 8)")
    add_options(parser, questions=24, passages=12)
    parser.add_argument("--seconds", type=float, default=6, help="of each round (default 6)")
    parser.add_argument("--rounds", type=int, default=3, help="that count (default 3)")
    parser.add_argument("--delay", type=float, default=50, help="of each request, in milliseconds (default 50)")
    parser.add_argument("--memory", default="", help="of a tier above the distant store (default none)")
    parser.add_argument("--proxy", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.proxy:
        asyncio.run(_serve(arguments.proxy, arguments.delay / 1000))
    else:
        print(json.dumps(asyncio.run(measure(arguments)), indent=1))


if __name__ == "__main__":
    main()
