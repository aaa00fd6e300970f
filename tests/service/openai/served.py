"""An application over a pipeline that tells a fixed tale, and the official client in front of it, in one process."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import TypeVar

import httpx
from fastapi import FastAPI
from openai import AsyncOpenAI

from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from service.access.principal import Principal, Role
from service.answers.answer_request import AnswerRequest
from service.answers.events import (
    ChunkReport,
    Delta,
    Event,
    Finished,
    Fused,
    Loaded,
    Report,
    Retrieved,
    Source,
    TopToken,
    Usage,
)
from service.answers.kept_answers import KeptAnswers
from service.api.problems import Renderers, install
from service.errors import Unavailable
from service.openai.errors import as_openai
from service.openai.routes import PREFIXES, router

T = TypeVar("T")

KEY = "kvw_a_secret"
READER = Principal("acme", Role.READ, "a")
MODEL = "small/model"
CHUNK = "0f343b0931126a20f133d67c2b018a3b"
USED = Usage(prompt=40, completion=3, reused=30, recomputed=4)
REPORT = Report("hybrid", 0.15, (ChunkReport(CHUNK, "ram", None, 30, 4, 900),), (), {"fuse": 1.5, "total": 9.0})
OPENING: tuple[Event, ...] = (
    Retrieved((Source(CHUNK, "cities", "Cities", "Mira lives in Aveiro.", 0.5),)),
    Loaded((ChunkReport(CHUNK, "ram", None, 30, 0, 0),)),
    Fused(Usage(prompt=40, reused=30, recomputed=4), REPORT),
)
WORDS = ("In ", "", "Avei")


def tale(*words: str, logprobs: bool = False, reason: str = "stop") -> list[Event]:
    """An answer, the last word of which is held back."""
    *told, last = words
    found: list[Event] = [*OPENING]
    for word in told:
        token = TopToken(word, word.encode(), -0.25)
        found.append(
            Delta(word, token, (token, TopToken("\ufffd", b"\xe6", float("-inf")))) if logprobs else Delta(word)
        )
    assert reason in ("stop", "length", "cancelled")
    return [*found, Finished(reason, last, USED, REPORT)]


@dataclass(slots=True)
class FakePipeline:
    """Tells `events`, and raises `error` behind so many of them; `open` counts answers that nobody has closed."""

    events: Sequence[Event]
    error: Exception | None = None
    error_after: int = 0
    asked: list[AnswerRequest] = field(default_factory=list)
    open: int = 0

    async def answer(self, ask: AnswerRequest) -> AsyncGenerator[Event]:
        self.asked.append(ask)
        self.open += 1
        try:
            for number, event in enumerate(self.events):
                if self.error is not None and number == self.error_after:
                    raise self.error
                yield event
        finally:
            self.open -= 1


@dataclass(slots=True)
class FakeSettings:
    auth: bool = True
    policy: str = "hybrid"
    ratio: float = 0.15
    top_k: int = 7
    generator: object | None = None


class FakeCatalog:
    """Has nothing to see."""

    def view(self) -> AbstractContextManager[None]:
        return nullcontext()


class FakeLibrary:
    catalog = FakeCatalog()

    def mode(self, view: None) -> str:
        return "lexical"

    def awaited(self, view: None, *, counts: bool) -> str:
        return "vectors of 1 of 2 chunks are made" if counts else ""


class FakeTenant:
    library = FakeLibrary()


class FakeControl:
    def identify(self, key: str) -> Principal | None:
        return READER if key == KEY else None


class FakeRates:
    """Lets everything through."""

    def take(self, principal: Principal) -> None:
        del principal


class FakeCore:
    def __init__(self, pipeline: FakePipeline) -> None:
        self.told = pipeline
        self.settings = FakeSettings()
        self.control = FakeControl()
        self.rates = FakeRates()
        self.model_name = MODEL
        self.created = 1_760_000_000.5
        self.model = SimpleNamespace(
            order=BlendOrder("hybrid", 0.15),
            window=2048,
            usual=Sampling(temperature=1.0),
            fingerprint=SimpleNamespace(digest="0a"),
        )
        self.embedder_name = ""
        self.loading = False
        self.kept_answers = KeptAnswers()

    def tenant(self, principal: Principal) -> FakeTenant:
        return FakeTenant()

    @property
    def pipeline(self) -> FakePipeline:
        if self.loading:
            raise Unavailable("the model loads")
        return self.told


@cache
def _application() -> FastAPI:
    """As the service builds it, as far as these routes are concerned."""
    app = FastAPI()
    app.include_router(router())
    install(app, Renderers(dict.fromkeys(PREFIXES, as_openai)))
    return app


def app_over(core: FakeCore) -> FastAPI:
    """The application, over the core that came last: it is built once, as that takes longer than a test."""
    app = _application()
    app.state.core = core
    return app


def http(core: FakeCore) -> httpx.AsyncClient:
    """Any client's way in."""
    transport = httpx.ASGITransport(app_over(core))
    return httpx.AsyncClient(transport=transport, base_url="http://kvweave", headers={"Authorization": f"Bearer {KEY}"})


def client(core: FakeCore) -> AsyncOpenAI:
    """The official one."""
    return AsyncOpenAI(api_key=KEY, base_url="http://kvweave/v1", http_client=http(core), max_retries=0)


def core_telling(*words: str, logprobs: bool = False, reason: str = "stop") -> FakeCore:
    return FakeCore(FakePipeline(tale(*words, logprobs=logprobs, reason=reason)))


def run(work: Coroutine[None, None, T]) -> T:
    return asyncio.run(work)
