"""The HTTP client of vLLM: timeouts, bodies, streams; a refusal is told apart from no answer."""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

import httpx

from blend.engine.sampling import Picked, Sampling
from service.event_parser import events_in

CONNECT_S, SILENCE_S = 5.0, 120.0  # until a connection stands; between two pieces of an answer
MOST_SAID = 200  # letters of a refusal that are told
TOKEN = "token_id:"
REFUSALS = (400, 422)  # of what a request says

Json = dict[str, object]


class GeneratorAway(Exception):
    """vLLM does not answer, or not as it should. The text says what."""


class GeneratorRefusal(GeneratorAway):
    """vLLM is there and does not do what one request wants. `reason`: what it says."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"it answers {status}: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Completion:
    """What vLLM is asked: to go on behind these ids. `salt` says who shares its cache; `params` are a handover's.

    `rules`: fields of vLLM's for what the answer obeys, and for tokens that are to be likelier, or less likely.
    """

    model: str
    ids: Sequence[int]
    sampling: Sampling
    stop_ids: Sequence[int]
    salt: str
    params: Mapping[str, object] | None = None
    rules: Mapping[str, object] = field(default_factory=dict[str, object])

    def body(self, most_tokens: int) -> Json:
        """The body, for at most so many tokens. Nothing is left to vLLM's defaults; stop strings are found here."""
        sampling = self.sampling
        body: Json = {
            "model": self.model,
            "prompt": list(self.ids),
            "n": sampling.choices,
            "max_tokens": most_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "ignore_eos": sampling.ignore_eos,
            "stop_token_ids": [] if sampling.ignore_eos else sorted(self.stop_ids),
            "return_token_ids": True,
            "cache_salt": self.salt,
        }
        body |= self.rules
        if sampling.seed is not None:
            body["seed"] = (sampling.seed + 2**63) % 2**64 - 2**63  # vLLM's are signed
        if sampling.logprobs is not None:
            body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
        if self.params is not None:
            body["kv_transfer_params"] = dict(self.params)
        return body

    def chat_body(self, most_tokens: int) -> Json:
        """The body of a streamed chat, whose messages are among the rules: vLLM renders them, and parses the answer."""
        body = self.body(most_tokens)
        for name in ("prompt", "return_token_ids"):
            del body[name]
        return {**body, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """A piece of an answer's message, and why it ended, with its last piece; the tokens of the prompt and so far."""

    delta: Json
    finish: str | None
    choice: int
    prompt_tokens: int
    generated: int


@dataclass(frozen=True, slots=True)
class GeneratedPiece:
    """Some tokens of an answer, and why it ended, with its last piece."""

    picked: tuple[Picked, ...]
    finish: str | None
    choice: int = 0


@dataclass(frozen=True, slots=True)
class WholeCompletion:
    """An answer that was not streamed, and how many tokens of the prompt vLLM took over; None: it knows no handover."""

    picked: tuple[Picked, ...]
    loaded: int | None


class VllmClient:
    """One vLLM. Its methods are called in one event loop, and raise GeneratorAway."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        limits = httpx.Limits(max_connections=None, keepalive_expiry=3.0)
        self._url = url
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits)

    async def models(self) -> dict[str, int]:
        found = await self._json("GET", "/models")
        rows = cast(list[Json], found.get("data", []))
        return {str(row["id"]): cast(int, row.get("max_model_len") or 0) for row in rows if "id" in row}

    async def token_ids(self, body: Json) -> list[int]:
        """What vLLM's tokenizer makes of a text, or its template of a chat."""
        found = await self._json("POST", "/tokenize", body=body, root=self._url.removesuffix("/v1"))
        return cast(list[int], found.get("tokens", []))

    async def whole(self, asked: Completion, *, most_tokens: int) -> WholeCompletion:
        found = await self._json("POST", "/completions", body=asked.body(most_tokens))
        params = cast(Json, found.get("kv_transfer_params") or {}).get("kvweave")
        loaded = cast(int, cast(Json, params).get("loaded")) if isinstance(params, dict) else None
        return WholeCompletion(next(_pieces(found)).picked, loaded)

    async def stream(self, asked: Completion, *, most_tokens: int) -> AsyncGenerator[GeneratedPiece]:
        """All answers piece by piece; closing it ends them in vLLM. The last piece of each says why it ended."""
        ended = set[int]()
        async with aclosing(self._events("/completions", {**asked.body(most_tokens), "stream": True})) as events:
            async for event in events:
                for piece in _pieces(event):
                    yield piece
                    if piece.finish is not None:
                        ended.add(piece.choice)
                if len(ended) == asked.sampling.choices:
                    return
        raise GeneratorAway("its answer broke off")

    async def chat(self, asked: Completion, *, most_tokens: int) -> AsyncGenerator[ChatPiece]:
        """The messages of all answers piece by piece, as `stream`."""
        ended = set[int]()
        async with aclosing(self._events("/chat/completions", asked.chat_body(most_tokens))) as events:
            async for event in events:
                usage = cast("Mapping[str, int]", event.get("usage") or {})
                for each in cast(list[Json], event.get("choices") or []):
                    finish, choice = cast("str | None", each.get("finish_reason")), cast(int, each.get("index") or 0)
                    counts = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
                    yield ChatPiece(cast(Json, each.get("delta") or {}), finish, choice, *counts)
                    if finish is not None:
                        ended.add(choice)
                if len(ended) == asked.sampling.choices:
                    return
        raise GeneratorAway("its answer broke off")

    async def _events(self, path: str, body: Json) -> AsyncGenerator[Json]:
        """What a streamed answer says, event by event."""
        async with self._answered("POST", self._url + path, body=body) as response:
            async for event in events_in(response.aiter_bytes()):
                if event.data != b"[DONE]":
                    yield _parsed(event.data)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _json(self, method: str, path: str, *, body: Json | None = None, root: str | None = None) -> Json:
        async with self._answered(method, (root or self._url) + path, body=body) as response:
            return _parsed(await response.aread())

    @asynccontextmanager
    async def _answered(self, method: str, url: str, *, body: Json | None) -> AsyncGenerator[httpx.Response]:
        try:
            async with self._http.stream(method, url, json=body) as response:
                if not response.is_success:
                    said = _said(await response.aread())
                    if response.status_code in REFUSALS:
                        raise GeneratorRefusal(response.status_code, said)
                    raise GeneratorAway(f"it answers {response.status_code}: {said}")
                yield response
        except httpx.HTTPError as error:
            raise GeneratorAway(f"it cannot be reached: {type(error).__name__}") from error


def _parsed(text: bytes | str) -> Json:
    try:
        found = cast(object, json.loads(text))
    except ValueError as error:
        raise GeneratorAway(f"it says what is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise GeneratorAway(f"it fails: {str(found)[:MOST_SAID]}")
    if "error" in found:
        raise _failure(cast(Json, found)["error"])
    return cast(Json, found)


def _failure(error: object) -> GeneratorAway:
    """What an error means that comes where an answer should, in OpenAI's form."""
    said = cast(Json, error) if isinstance(error, dict) else {}
    if said.get("code") in REFUSALS:
        return GeneratorRefusal(cast(int, said["code"]), str(said.get("message"))[:MOST_SAID])
    return GeneratorAway(f"it fails: {str(cast(object, error))[:MOST_SAID]}")


def _said(body: bytes) -> str:
    """What a refusal says: the message of OpenAI's form, where it is one."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])[:MOST_SAID]
    return body[:MOST_SAID].decode("utf-8", "replace")


def _pieces(found: Json) -> Iterator[GeneratedPiece]:
    """The tokens of a completion's answers, whole or a chunk of them."""
    for choice in cast(list[Json], found.get("choices") or [{}]):
        yield _piece(choice)


def _piece(choice: Json) -> GeneratedPiece:
    ids = cast(list[int], choice.get("token_ids") or [])
    said = cast(Json, choice.get("logprobs") or {})
    logprobs = cast(list[float | None], said.get("token_logprobs") or [None] * len(ids))
    tops = cast(list[Mapping[str, float] | None], said.get("top_logprobs") or [None] * len(ids))
    if not len(ids) == len(logprobs) == len(tops):
        raise GeneratorAway("it tells of other tokens than it generated")
    picked = (Picked(token, logprob, _top(top)) for token, logprob, top in zip(ids, logprobs, tops, strict=True))
    finish = cast("str | None", choice.get("finish_reason"))
    return GeneratedPiece(tuple(picked), finish, cast(int, choice.get("index") or 0))


def _top(given: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    """Ids with log probabilities, the likeliest first."""
    pairs = [(int(name.removeprefix(TOKEN)), logprob) for name, logprob in (given or {}).items()]
    return tuple(sorted(pairs, key=lambda pair: -pair[1]))
