"""Clients that leave, at every stage of an answer, and clients that hardly read: their places are freed, alone."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import cast

import pytest
from fastapi import FastAPI
from starlette.types import Message

from blend.engine import local_engine
from service.answers import pipeline
from service.application import observed
from service.telemetry.middleware import TelemetryMiddleware
from tests.service import serving
from tests.service.demo_served import BLENDED, REUSED, Demo, demo
from tests.service.faulty import ENDLESS, Gate, begun, wait_idle
from tests.service.serving import Json, good, sampled, wait_for

PLACES = 4  # requests of one key at once
LONG = 8 * ENDLESS  # tokens of an answer that nobody waits for
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("leaving"), max_requests=2 * PLACES) as running:
        yield running


@dataclass(slots=True)
class Stage:
    """Where a request is held. `is_there`: whether it has come so far. `others`: clients that must leave, too."""

    gate: Gate = field(default_factory=Gate)
    is_there: Callable[[], object] = bool
    others: list[socket.socket] = field(default_factory=list[socket.socket])


@contextmanager
def in_call(module: ModuleType, name: str) -> Generator[Stage]:
    """While this function works for it."""
    stage, function = Stage(), getattr(module, name)

    def held(*arguments: object, **more: object) -> object:
        stage.gate.pass_through()
        return function(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, held)
        stage.is_there = stage.gate.reached.is_set
        yield stage


@contextmanager
def in_fetch(running: Demo) -> Generator[Stage]:
    """While its blobs are opened."""
    stage = Stage()

    def held(name: str, what: object) -> None:
        if name == "open":
            stage.gate.pass_through()

    with running.store.failing(held):
        stage.is_there = stage.gate.reached.is_set
        yield stage


@contextmanager
def in_queue(running: Demo) -> Generator[Stage]:
    """While the engine is busy with somebody else, who leaves, too."""
    with in_decoding(running) as stage:
        url = running.inside.base_url
        with begun(url, running.inside.key, path="/v1/query", body=asked(running, "query", "whole")) as other:
            wait_for(stage.is_there, "somebody is answered")
            stage.is_there = lambda: running.engine._waiting
            stage.others.append(other)
            yield stage


@contextmanager
def in_decoding(running: Demo) -> Generator[Stage]:
    """After its first token."""
    stage = Stage()
    running.steps.before = lambda segments: stage.gate.pass_through()
    stage.is_there = stage.gate.reached.is_set
    try:
        yield stage
    finally:
        stage.gate.opened.set()
        running.steps.before = lambda segments: None


STAGES: dict[str, Callable[[Demo], AbstractContextManager[Stage]]] = {
    "lookup": lambda running: in_call(pipeline, "gather"),
    "fetch": in_fetch,
    "queue": in_queue,
    "fuse": lambda running: in_call(local_engine, "fuse"),  # its prompt is computed
    "decoding": in_decoding,
}


def asked(running: Demo, path: str, mode: str) -> bytes:
    """A request for a long answer."""
    body = running.body(REUSED, sampling={"max_tokens": LONG}, stream=mode == "stream")
    if path == "chat":
        messages = [{"role": "user", "content": body["question"]}]
        body = {"model": "default", "messages": messages, "chunk_ids": running.chunks, "max_tokens": LONG}
        body |= {"blend": REUSED, "stream": mode == "stream"}
    return json.dumps(body).encode()


def leave(connection: socket.socket, *, abruptly: str) -> None:
    if abruptly == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def counted(running: Demo) -> float:
    """Answers that ended because their clients left."""
    names = sampled(running.client)
    assert names["kvweave_requests_in_flight"] == 0
    return names.get('kvweave_answer_failures_total{error="ClientGone",tenant="default"}', 0)


class TestAClientThatLeaves:
    @pytest.mark.parametrize(("path", "mode"), [("query", "whole"), ("query", "stream"), ("chat", "stream")])
    @pytest.mark.parametrize("at", list(STAGES))
    def test_its_place_is_free_at_once(self, running: Demo, at: str, mode: str, path: str) -> None:
        gone, taken = counted(running), running.steps.taken
        with STAGES[at](running) as stage:
            held = running.core.pipeline.in_flight
            url = "/v1/query" if path == "query" else "/v1/chat/completions"
            client = begun(running.inside.base_url, running.inside.key, path=url, body=asked(running, path, mode))
            try:
                wait_for(stage.is_there, f"it is in {at}")
                assert running.core.pipeline.in_flight == held + 1
            finally:
                leave(client, abruptly="reset" if path == "chat" else "")
            wait_for(lambda: running.core.pipeline.in_flight == held, "its place is free")
            for other in stage.others:
                leave(other, abruptly="")
            wait_for(lambda: running.core.pipeline.in_flight == 0, "nobody is there")
            assert not running.engine._waiting.removed(lambda entry: not entry.cancelled)
            stage.gate.opened.set()
        wait_idle(running.core, running.steps)
        assert running.steps.taken - taken <= 1
        assert counted(running) == gone + held + 1
        assert running.ask(BLENDED).text == running.wanted

    def test_those_who_left_take_no_places_from_others(self, running: Demo) -> None:
        """As many as there are places have left before, several times over: all places can be taken at once."""
        url, key = running.inside.base_url, running.inside.key
        for number in range(4 * PLACES):
            body = asked(running, "query", "stream" if number % 2 else "whole")
            client = begun(url, key, path="/v1/query", body=body)
            leave(client, abruptly="reset" if number % 4 < 2 else "")
        with ExitStack() as clients, in_decoding(running) as stage:

            def are_taken() -> bool:
                if running.core.pipeline.in_flight < PLACES:
                    clients.enter_context(begun(url, key, path="/v1/query", body=asked(running, "query", "whole")))
                return running.core.pipeline.in_flight >= PLACES  # some are still on their way when the next is sent

            wait_for(are_taken, "all places are taken")
            clients.close()
            wait_for(lambda: running.core.pipeline.in_flight == 0, "all places are free")
            stage.gate.opened.set()
        wait_idle(running.core, running.steps)
        assert running.ask(BLENDED).text == running.wanted


@dataclass(slots=True)
class Reader:
    """A client of an ASGI server that takes the first parts of a response, and the others when it is told to go on."""

    body: bytes
    key: str
    takes: int
    goes_on: asyncio.Event
    sent: list[Message] = field(default_factory=list[Message])
    waits: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> Message:
        body, self.body = self.body, b""
        if body:
            return {"type": "http.request", "body": body}
        await asyncio.Event().wait()
        raise AssertionError("it never leaves")

    async def send(self, message: Message) -> None:
        if len(self.sent) >= self.takes:
            self.waits.set()
            await self.goes_on.wait()
        self.sent.append(message)

    @property
    def scope(self) -> Json:
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {self.key}".encode())]
        headers.append((b"content-type", b"application/json"))
        more = {"query_string": b"", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
        return {"type": "http", "method": "POST", "path": "/v1/query", "headers": headers, **more}

    @property
    def text(self) -> str:
        body = b"".join(message.get("body", b"") for message in self.sent).decode()
        events = [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]
        return events[-1]["answer"]


class TestASlowReader:
    @pytest.mark.parametrize("takes", [1, 5])
    def test_it_holds_up_nobody_and_no_more_than_its_own_answer(self, running: Demo, takes: int) -> None:
        body = asked(running, "query", "stream")
        whole = good(running.client.post("/v1/query", content=asked(running, "query", "whole"), headers=JSON))

        async def scene() -> Reader:
            app = observed(running.core)
            cast(FastAPI, cast(TelemetryMiddleware, app).app).state.core = running.core  # it runs already
            reader = Reader(body, running.inside.key, takes, asyncio.Event())
            visit = asyncio.ensure_future(app(reader.scope, reader.receive, reader.send))
            await reader.waits.wait()
            for _ in range(3):
                assert (await asyncio.to_thread(running.ask, BLENDED)).text == running.wanted
            await asyncio.to_thread(wait_for, lambda: running.steps.is_idle, "its answer is computed to its end")
            assert len(reader.sent) == takes
            reader.goes_on.set()
            await asyncio.wait_for(visit, serving.WAIT_S)
            return reader

        assert asyncio.run(scene()).text == whole["answer"]
