"""Streams as servers send them: where the first token is, what was used, and what is no answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from service.event_parser import events_in
from service.traffic import endpoint as endpoint_module
from service.traffic.endpoint import Endpoint, EndpointAnswer, RequestFailure
from tests.service.traffic.scripted_endpoint import DONE, END, ROLE, Reply, delta, endpoint, event, usage, whole

TOKEN = delta(content="Yes")
KEEPALIVE = b": ping\n\n"


@dataclass(slots=True)
class Clock:
    """The time as a test sets it."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now


def heard(parts: Sequence[bytes], patch: pytest.MonkeyPatch) -> EndpointAnswer:
    """The answer of a stream whose parts come a second after each other."""
    clock = Clock()
    patch.setattr(endpoint_module, "time", clock)

    async def stream() -> AsyncIterator[bytes]:
        for part in parts:
            clock.now += 1
            yield part

    return asyncio.run(endpoint_module._heard(events_in(stream()), since=0.0))


@pytest.mark.parametrize(
    ("parts", "first", "prompt", "cached"),
    [
        ([ROLE, TOKEN, TOKEN, END, usage(90, 64), DONE], 2, 90, 64),
        ([ROLE, TOKEN, END, usage(90, None), DONE], 2, 90, None),  # vLLM without details
        ([TOKEN, END, DONE], 1, None, None),  # no usage
        ([ROLE, TOKEN, END], 2, None, None),  # no [DONE]
        ([KEEPALIVE, ROLE, KEEPALIVE, KEEPALIVE, TOKEN, END, DONE], 5, None, None),
        ([ROLE, delta(reasoning_content="Hm"), TOKEN, END, DONE], 2, None, None),  # a model that thinks
        ([ROLE, delta(content=None), delta(content="", tool_calls=None), TOKEN, END, DONE], 4, None, None),
        ([ROLE, END, DONE], 2, None, None),  # the end alone
        ([event(usage={"prompt_tokens": 9}, choices=[]), TOKEN, usage(90, 64), DONE], 2, 90, 64),
    ],
)
def test_the_first_token_is_where_text_begins(
    parts: list[bytes], first: int, prompt: int | None, cached: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = heard(parts, monkeypatch)
    assert (found.first_s, found.prompt_tokens, found.cached_tokens) == (first, prompt, cached)
    assert found.first_s <= found.whole_s <= len(parts)


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (Reply(b'{"error": "busy"}', 429, "application/json"), "HTTP 429", "busy"),
        (Reply(b"<h1>Bad gateway</h1>", 502, "text/html"), "HTTP 502", "Bad gateway"),
        (Reply(ROLE + event(error={"message": "out of memory"})), "error in the stream", "out of memory"),
        (Reply(ROLE + TOKEN), "broken off", "ended before"),
        (Reply(b""), "broken off", "ended before"),
        (Reply(b"data: {not json}\n\n"), "no stream", "no part of an answer"),
        (Reply(b'data: {"choices": 7}\n\n'), "no stream", "no part of an answer"),
        (Reply(b"{}", kind="application/json"), "no stream", "application/json"),
    ],
)
def test_what_is_no_answer_has_a_kind(reply: Reply, kind: str, said: str) -> None:
    with endpoint(lambda body, number: reply) as server:
        found = asked(server.url, key="")
    assert isinstance(found, RequestFailure)
    assert found.kind == kind and said in found.detail


def test_nobody_there_is_no_connection() -> None:
    with endpoint(lambda body, number: whole()) as server:
        pass
    found = asked(server.url, key="")
    assert isinstance(found, RequestFailure) and found.kind == "no connection"


def test_time_counts_from_when_it_was_to_be_sent() -> None:
    with endpoint(lambda body, number: whole()) as server:
        found = asked(server.url, key="", late_s=1000.0)
    assert isinstance(found, EndpointAnswer) and found.first_s > 1000


def test_a_key_is_sent_and_never_said() -> None:
    with endpoint(lambda body, number: Reply(f"wrong key {server.keys[-1]}".encode(), 401)) as server:
        found = asked(server.url, key="sk-secret")
        assert server.keys == ["Bearer sk-secret"]
    assert isinstance(found, RequestFailure)
    assert "sk-secret" not in repr(found) and "***" in found.detail


def asked(url: str, *, key: str, late_s: float = 0.0) -> EndpointAnswer | RequestFailure:
    async def ask() -> EndpointAnswer | RequestFailure:
        found = Endpoint(url, key=key, timeout_s=60.0)
        try:
            return await found.ask(b"{}", since=endpoint_module.time.perf_counter() - late_s)
        finally:
            await found.close()

    return asyncio.run(ask())
