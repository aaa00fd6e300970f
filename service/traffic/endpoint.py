"""One endpoint that speaks as OpenAI's does: its models, and streamed answers with their times. Knows no plan."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import msgspec

from service.errors import Invalid, ServiceError, Unauthorized, Unavailable
from service.event_parser import ReceivedEvent, events_in

LETTERS = 200  # of what an endpoint says of an error
CONNECT_S = 10.0
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None)  # a queue here would hide one there


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """An answer that came whole. Tokens as the endpoint counts them; None where it does not tell."""

    first_s: float
    whole_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """An answer that did not come, or not whole: its kind, which is counted, and what was said of it."""

    kind: str
    detail: str


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Delta(msgspec.Struct):
    content: object = None
    reasoning: object = None
    reasoning_content: object = None
    tool_calls: object = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: object = None


class _Part(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None


class _Listed(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Listed]


class _Broken(ServiceError):
    """A stream that is none, or not whole."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Endpoint:
    """A base URL, with its key. The key is sent there alone, and stands in nothing that is said."""

    def __init__(self, url: str, *, key: str, timeout_s: float) -> None:
        self.url = url.strip().rstrip("/").removesuffix("/v1")
        self._key = key
        self._timeout_s = timeout_s
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        try:
            self._client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, limits=LIMITS)
        except (httpx.InvalidURL, UnicodeError):
            raise self._no_address() from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def models(self) -> list[str]:
        """The names of its models. Raises ServiceError where it does not answer so."""
        try:
            response = await self._client.get("/v1/models")
        except (httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError):
            raise self._no_address() from None
        except httpx.TransportError as error:
            raise Unavailable(
                f"no endpoint answers at {self.url} ({type(error).__name__}): start it, or name another --url"
            ) from None
        if response.status_code in (401, 403):
            raise Unauthorized(
                f"{self.url} answered {response.status_code}: put its key into a variable, and name that by --key-env"
            )
        try:
            return [each.id for each in msgspec.json.decode(response.content, type=_Models).data]
        except msgspec.DecodeError:
            raise Unavailable(
                f"{self.url}/v1/models answered {response.status_code} and no list of models: name its --model, or "
                "the --url of an endpoint that speaks as OpenAI's does"
            ) from None

    async def ask(self, body: bytes, *, since: float) -> EndpointAnswer | RequestFailure:
        """Streams one answer. Its times count from `since`, of `time.perf_counter`, whenever it could be sent."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ask(body, since=since)
        except _Broken as broken:
            return RequestFailure(broken.kind, self._shown(str(broken)))
        except (TimeoutError, httpx.TimeoutException):
            return RequestFailure("timeout", f"no whole answer within {self._timeout_s:g} s")
        except httpx.ConnectError as error:
            return RequestFailure("no connection", self._shown(str(error)))
        except httpx.HTTPError as error:
            return RequestFailure("broken off", self._shown(str(error) or type(error).__name__))

    async def _ask(self, body: bytes, *, since: float) -> EndpointAnswer:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        async with self._client.stream("POST", "/v1/chat/completions", content=body, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                raise _Broken(f"HTTP {response.status_code}", response.text)
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise _Broken("no stream", f"its answer is of the type {response.headers.get('Content-Type')}")
            return await _heard(events_in(response.aiter_bytes()), since=since)

    def _shown(self, said: str) -> str:
        """What was said, in one short line, and without the key."""
        said = " ".join(said.replace(self._key, "***").split() if self._key else said.split())
        return said if len(said) <= LETTERS else f"{said[: LETTERS - 1]}…"

    def _no_address(self) -> Invalid:
        return Invalid(f"--url {self.url!r} is no address: write it as http://127.0.0.1:8000")


async def _heard(stream: AsyncIterator[ReceivedEvent], *, since: float) -> EndpointAnswer:
    """The answer of a stream. Raises _Broken where it ends before its end was told."""
    first: float | None = None
    usage = _Usage()
    is_whole = False
    async for event in stream:
        if event.data == b"[DONE]":
            is_whole = True
            break
        part = _parsed(event.data)
        usage = part.usage or usage
        ends = any(choice.finish_reason for choice in part.choices or ())
        is_whole |= ends
        if first is None and (ends or any(_says(choice.delta) for choice in part.choices or ())):
            first = time.perf_counter() - since
    if not is_whole:
        raise _Broken("broken off", "the stream ended before the answer did")
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    whole_s = time.perf_counter() - since
    first_s = whole_s if first is None else first  # it may be the end alone
    return EndpointAnswer(first_s, whole_s, usage.prompt_tokens, cached, usage.completion_tokens)


def _parsed(event: bytes) -> _Part:
    try:
        part = msgspec.json.decode(event, type=_Part)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _Broken("no stream", f"an event is no part of an answer: {error}") from None
    if part.error:
        raise _Broken("error in the stream", msgspec.json.encode(part.error).decode())
    return part


def _says(delta: _Delta | None) -> bool:
    """Whether there is a token in it; the first part often only says who speaks."""
    return delta is not None and bool(delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)
