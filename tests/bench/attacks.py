"""Clients that do their worst, over and over, each load of one kind. Measures nothing.

`requests` (300 searches at once), `searches` (100), `bodies` (4 of 16 MB), `uploads` (of 20 MB), `large` (of 64 MB),
`keys` (bodies of a million), `deletes` (documents that are uploaded and deleted), `readers` (400 that never read),
`heads` (400 that never end), `followers` (130 of one job), `unfinished` (130 bodies), `constrained` (64 long queries by
a schema), `grammars` (6 clients with schemas that are hard to compile).
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from functools import partial

import httpx

from tests.bench.serving import Json, Server
from tests.bench.upload_turns import text_of

MEGABYTES = (20, 64)
LONG: Json = {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 40}
SCHEMAS: tuple[Json, ...] = (
    {"type": "string", "pattern": "^(a{1000}){1000}$"},
    {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(5000)}},
    {"type": "integer", "multipleOf": 999983},
    {"allOf": [{"type": "integer", "multipleOf": number} for number in (7, 11, 13, 17, 19, 23)]},
    {"type": "string", "pattern": r"^((\w+\s?)*,?)*$"},
    {"type": "array", "items": {"enum": [f"value {number}" for number in range(50_000)]}},
)
LOADS = (
    *("requests", "searches", "bodies", "uploads", "large", "keys", "deletes"),
    *("readers", "heads", "followers", "unfinished", "constrained", "grammars"),
)


@dataclass(slots=True)
class Attack:
    """The clients of one tenant, until they are cancelled; `codes` counts what they got."""

    target: Server
    key: str
    codes: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def loops(self, load: str) -> Sequence[Awaitable[None]]:
        """All clients of a load."""
        post, get = partial(self._request, "POST"), partial(self._request, "GET")
        match load:
            case "requests":
                return self._clients(load, 300, post("/v1/search", b'{"query": "who is there"}'))
            case "searches":
                return self._clients(load, 100, post("/v1/search", b'{"query": "who keeps map 17 in Sunel"}'))
            case "bodies":
                words = [{"id": f"d{number}", "text": "word " * 3200} for number in range(1000)]
                return self._clients(load, 4, post("/v1/documents", _documents(*words)))
            case "uploads" | "large":
                megabytes = MEGABYTES[load == "large"]
                texts = ({"id": f"{load}-{seed}", "text": text_of(megabytes - 1, seed)} for seed in range(2))
                return self._clients(load, 1, *(post("/v1/documents", _documents(each)) for each in texts))
            case "keys":
                body = json.dumps({"query": "who", **dict.fromkeys(map(str, range(1_000_000)), 0)})
                return self._clients(load, 1, post("/v1/search", body.encode()))
            case "deletes":
                brief = post("/v1/documents", _documents({"id": "brief", "text": text_of(0.1, 3)}))
                return self._clients(load, 2, brief, self._request("DELETE", "/v1/documents/brief"))
            case "readers":
                page = get("/docs/swagger-ui-bundle.js", key="") * 8
                return self._clients(load, 400, page, reads=False)
            case "heads":
                return self._clients(load, 400, b"GET / HTTP/1.1\r\nhost:")
            case "followers":
                return self._clients(load, 130, get(f"/v1/jobs/{self._long_job()}/events"))
            case "unfinished":
                return self._clients(load, 130, post("/v1/query", b"{", length=1000))
            case "constrained":
                return self._clients(load, 64, self._asking(LONG))
            case _:
                return self._clients(load, 6, *map(self._asking, SCHEMAS))

    def _clients(self, load: str, count: int, *requests: bytes, reads: bool = True) -> Sequence[Awaitable[None]]:
        """So many clients; each begins with another one of the requests."""
        starts = [number % len(requests) for number in range(count)]
        return [self._again(load, *requests[at:], *requests[:at], reads=reads) for at in starts]

    def _long_job(self) -> str:
        texts = [{"text": f"word{number} " * 20_000} for number in range(60)]
        headers = {"authorization": f"Bearer {self.key}"}
        sent = httpx.post(f"{self.target.url}/v1/documents", json={"documents": texts}, headers=headers, timeout=60)
        return sent.raise_for_status().json()["job_id"]

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


def _documents(*documents: Json) -> bytes:
    return json.dumps({"documents": documents}).encode()
