"""Measures what others feel while clients do their worst: `python -m tests.bench.overload --seconds 12` prints JSON.

Each load runs alone against a service of its own, then all together: `requests` (300 searches at once), `bodies` (4 of
16 MB), `readers` (400 that never read), `heads` (400 that never end), `followers` (130 of one job), `unfinished` (130
bodies), `grammars` (6 clients with schemas that are hard to compile). A process of its own asks meanwhile for
`/healthz`, as an operator for `/metrics`, with another tenant's key for an answer, and a bare server of Python's
library (`bare`), which shows what the machine itself takes: milliseconds and refusals.
`resident_mb`: before, the most, and 10 seconds after the end. `--loads all --seconds 1800` is half an hour of it, with
a point of `curve` a minute.
"""

import argparse
import asyncio
import http.client
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

import httpx
import numpy as np

from service.access.principal import Role
from service.truth.control import Control
from tests.bench.serving import Json, Server, resident_mb, server, until
from tests.servers.free_port import free_port

LOADS = ("requests", "bodies", "readers", "heads", "followers", "unfinished", "grammars")
SCHEMAS: tuple[Json, ...] = (
    {"type": "string", "pattern": "^(a{1000}){1000}$"},
    {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(5000)}},
    {"type": "integer", "multipleOf": 999983},
    {"allOf": [{"type": "integer", "multipleOf": number} for number in (7, 11, 13, 17, 19, 23)]},
    {"type": "string", "pattern": r"^((\w+\s?)*,?)*$"},
    {"type": "array", "items": {"enum": [f"value {number}" for number in range(50_000)]}},
)
SETTLED_S = 10.0


@dataclass(slots=True)
class Attack:
    """Clients of one kind each, over and over, until they are cancelled; `codes` counts what they got."""

    target: Server
    key: str
    job: str
    scale: float = 1.0
    codes: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def loops(self, load: str) -> Sequence[Awaitable[None]]:
        """All clients of a load."""
        search = self._request("POST", "/v1/search", json.dumps({"query": "who is there"}).encode())
        documents = [{"id": f"d{number}", "text": "word " * 3200} for number in range(1000)]
        upload = self._request("POST", "/v1/documents", json.dumps({"documents": documents}).encode())
        match load:
            case "requests":
                return self._clients(load, 300, search)
            case "bodies":
                return self._clients(load, 4, upload)
            case "readers":
                page = self._request("GET", "/docs/swagger-ui-bundle.js", key="") * 8
                return self._clients(load, 400, page, reads=False)
            case "heads":
                return self._clients(load, 400, b"GET / HTTP/1.1\r\nhost:")
            case "followers":
                return self._clients(load, 130, self._request("GET", f"/v1/jobs/{self.job}/events"))
            case "unfinished":
                return self._clients(load, 130, self._request("POST", "/v1/query", b"{", length=1000))
            case _:
                return self._clients(load, 6, *map(self._asking, SCHEMAS))

    def _clients(self, load: str, count: int, *requests: bytes, reads: bool = True) -> Sequence[Awaitable[None]]:
        """As many clients as the scale says; each begins with another one of the requests."""
        starts = [number % len(requests) for number in range(math.ceil(self.scale * count))]
        return [self._again(load, *requests[at:], *requests[:at], reads=reads) for at in starts]

    def _asking(self, schema: Json) -> bytes:
        named = {"name": "hard", "schema": {"type": "object", "properties": {"x": schema}}}
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": "Who?"}],
            "response_format": {"type": "json_schema", "json_schema": named},
        }
        return self._request("POST", "/v1/chat/completions", json.dumps(body).encode())

    def _request(
        self, method: str, path: str, body: bytes = b"", *, key: str | None = None, length: int | None = None
    ) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
        if key is None:
            lines.append(f"authorization: Bearer {self.key}")
        if body:
            lines += ["content-type: application/json", f"content-length: {length or len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    async def _again(self, load: str, *requests: bytes, reads: bool = True) -> None:
        while True:
            for request in requests:
                code = await self._once(request, reads=reads)
                self.codes.setdefault(load, Counter())[code] += 1
                await asyncio.sleep(0.01 if code == "200" else 0.3)

    async def _once(self, request: bytes, *, reads: bool) -> str:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(self.target.url.rpartition(":")[2]))
        except OSError as error:
            return type(error).__name__
        try:
            if not reads:
                writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
            writer.write(request)
            await writer.drain()
            if not reads:
                await asyncio.sleep(30)
                return "held"
            line = await reader.readline()
            code = line.split()[1].decode() if line else "cut"
            while code == "200" and b"/events " in request and await reader.read(1 << 16):
                pass
            return code
        except OSError as error:
            return type(error).__name__
        finally:
            writer.transport.abort()


def probe(url: str, operator: str, other: str, *, seconds: float) -> None:
    """Asks for each in a thread, every time with a new connection, and prints what it saw."""
    answer = json.dumps({"question": "Who is it?", "top_k": 0}).encode()
    probes = [
        Probe("healthz", 0.05, url, path="/healthz"),
        Probe("metrics", 0.25, url, path="/metrics", key=operator),
        Probe("answer", 0.01, url, path="/v1/query", key=other, body=answer),
    ]
    with bare_server() as bare, ThreadPoolExecutor(len(probes) + 1) as threads:
        probes.append(Probe("bare", 0.05, bare, path="/"))
        rows = [*threads.map(lambda each: each.rows(time.monotonic() + seconds), probes)]
    print(json.dumps({each.name: row for each, row in zip(probes, rows, strict=True)}))


@contextmanager
def bare_server() -> Iterator[str]:
    """The standard library's server over an empty folder."""
    with TemporaryDirectory() as folder:
        port = free_port()
        arguments = [sys.executable, "-m", "http.server", str(port), "-b", "127.0.0.1", "-d", folder]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: httpx.get(url).status_code == 200)
            yield url
        finally:
            process.terminate()
            process.wait()


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks for the same again and again, with a pause."""

    name: str
    pause_s: float
    url: str
    path: str
    key: str = ""
    body: bytes | None = None

    def rows(self, end: float) -> Json:
        """Milliseconds, and how often it was refused."""
        seen = [*self.samples(end)]
        took, refused = [ms for *_, ms, _ in seen], Counter(code for *_, code in seen if code != "200")
        quantiles = {f"p{at}": round(float(np.percentile(took, at))) for at in (50, 95, 99)}
        return {**quantiles, "asked": len(took), "refused": dict(refused)}

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


def _job(target: Server, key: str) -> str:
    """A job that takes long."""
    texts = [{"text": f"word{number} " * 20_000} for number in range(60)]
    headers = {"authorization": f"Bearer {key}"}
    sent = httpx.post(f"{target.url}/v1/documents", json={"documents": texts}, headers=headers, timeout=60)
    return sent.raise_for_status().json()["job_id"]


async def under(loads: Sequence[str], *, seconds: float, scale: float) -> Json:
    """What a probe sees of a service of its own under these loads."""
    with server(1, "builtin", memory="128MB") as ran:
        with closing(Control(ran.data / "control.sqlite")) as control:
            hostile, other = (control.create_key(name, Role.ADMIN)[1] for name in ("hostile", "other"))
        attack = Attack(ran, hostile, _job(ran, hostile), scale)
        before = most = resident_mb(ran.pid)
        clients = [asyncio.ensure_future(each) for load in loads for each in attack.loops(load)]
        await asyncio.sleep(3)
        arguments = [sys.executable, "-m", "tests.bench.overload", "--probe", ran.url, ran.key, other]
        process = await asyncio.create_subprocess_exec(*arguments, "--seconds", str(seconds), stdout=subprocess.PIPE)
        curve: list[int] = []
        watched = asyncio.ensure_future(process.communicate())
        while not watched.done():
            await asyncio.wait({watched}, timeout=max(1.0, seconds / 30))
            curve.append(resident_mb(ran.pid))
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await asyncio.sleep(SETTLED_S)
        after, most = resident_mb(ran.pid), max([most, *curve])
        seen = {load: dict(codes) for load, codes in attack.codes.items()}
        return {**json.loads(watched.result()[0]), "resident_mb": [before, most, after], "curve": curve, "got": seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12, help="of each load (default 12)")
    parser.add_argument("--scale", type=float, default=1, help="of the numbers of clients (default 1)")
    parser.add_argument("--loads", nargs="*", default=[*LOADS, "all"], help="which (default each, then all)")
    parser.add_argument("--probe", nargs=3, metavar=("URL", "OPERATOR", "OTHER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(*options.probe, seconds=options.seconds)
        return
    for load in options.loads:
        found = asyncio.run(under(LOADS if load == "all" else [load], seconds=options.seconds, scale=options.scale))
        print(json.dumps({"load": load, **found}), flush=True)


if __name__ == "__main__":
    main()
