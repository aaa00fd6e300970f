"""Sends planned requests to endpoints, open loop and round by round, and keeps what came of each. Judges nothing."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from secrets import token_hex

from service.errors import NotFound, ServiceError, Unavailable
from service.traffic.corpus import TrafficCorpus
from service.traffic.endpoint import Endpoint, EndpointAnswer, RequestFailure
from service.traffic.prompts import PromptTexts, encoded
from service.traffic.workload import ChunkShape, RequestShape, Workload

PROBES = (100, 500)  # tokens, about, of two prompts: what they differ by tells what a word takes
TOKENS_A_WORD = 1.5  # where the endpoint counts none
STREAMED: dict[str, object] = {"temperature": 0, "stream": True}
COUNTED: dict[str, object] = {"stream_options": {"include_usage": True}}
REFUSED = ("HTTP 400", "HTTP 422")  # what servers say of a field that they do not know


@dataclass(frozen=True, slots=True)
class Way:
    """An endpoint and what is asked of it. `model`: the first that it lists if none is named. `policy`: kvweave's, if
    one is named."""

    url: str
    key: str = field(default="", repr=False)
    model: str = ""
    policy: str = ""


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """What is to be sent: in each round a stretch at every rate to every way, one stretch after the other.

    `puts`: chunks that come again are put into kvweave's services before, as a corpus would be.
    """

    ways: tuple[Way, ...]
    workload: Workload
    rates: tuple[float, ...]
    rounds: int
    timeout_s: float
    puts: bool = False

    @property
    def steps(self) -> int:
        """How often a run tells that it goes on."""
        return len(self.ways) * (1 + self.rounds * len(self.rates))

    @property
    def seconds(self) -> float:
        """How long the arrivals of all stretches take; what the last answers take comes on top."""
        ends = (self.workload.stretch(rate, mark="0")[-1].at_s for rate in self.rates)
        return self.rounds * len(self.ways) * sum(ends)


@dataclass(slots=True)
class Stretch:
    """What came of the requests of one stretch so far. `arrivals_s`: until the last was to be sent; `seconds`: until
    the last was over; `late_s`: how late this side sent each."""

    way: Way
    rate: float
    number: int
    arrivals_s: float
    answers: list[EndpointAnswer] = field(default_factory=list[EndpointAnswer])
    failures: list[RequestFailure] = field(default_factory=list[RequestFailure])
    seconds: float = 0.0
    late_s: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class Sent:
    """All that came of a plan. `models`: those that were asked. `is_whole`: nobody stopped it."""

    stretches: list[Stretch] = field(default_factory=list[Stretch])
    models: dict[Way, str] = field(default_factory=dict[Way, str])
    notes: list[str] = field(default_factory=list[str])
    is_whole: bool = True


def send(plan: TrafficPlan, *, on_progress: Callable[[str], None]) -> Sent:
    """Sends all that is planned. Stopped by Ctrl-C, it returns what came until then.

    Raises ServiceError where an endpoint does not answer what is sent before anything is timed.
    """
    sent = Sent()
    asyncio.run(_run(plan, sent, on_progress=on_progress))
    return sent


async def _run(plan: TrafficPlan, sent: Sent, *, on_progress: Callable[[str], None]) -> None:
    mark = token_hex(8)  # texts that no run before has sent, so that nothing of them is cached
    try:
        async with AsyncExitStack() as stack:
            senders: list[_Sender] = []
            for number, way in enumerate(plan.ways):
                on_progress(f"warming up {way.url} {way.policy}".rstrip())
                sender = await stack.enter_async_context(
                    aclosing(_Sender(way, plan, mark=f"{mark} {number}", sent=sent))
                )
                await sender.prepare(senders[0].texts.tokens_a_word if senders else None)
                senders.append(sender)
            for number in range(plan.rounds):
                for rate in plan.rates:
                    turn = number % len(senders)  # none is always the first
                    for sender in (*senders[turn:], *senders[:turn]):
                        on_progress(f"round {number + 1} of {plan.rounds}, {rate:g} requests/s")
                        await sender.send(rate, number)
    except asyncio.CancelledError:
        if not sent.stretches:
            raise
        sent.is_whole = False


class _Sender:
    """Sends to one way. Its texts are its own, so that nothing is cached of what another one sent."""

    def __init__(self, way: Way, plan: TrafficPlan, *, mark: str, sent: Sent) -> None:
        self._way = way
        self._plan = plan
        self._mark = mark
        self._sent = sent
        self._endpoint = Endpoint(way.url, key=way.key, timeout_s=plan.timeout_s)
        self._corpus = TrafficCorpus(self._endpoint.url, key=way.key, name=f"bench-{mark.replace(' ', '-')}")
        self.texts = PromptTexts(mark, TOKENS_A_WORD)
        self._fields: dict[str, object] = {**STREAMED, **COUNTED}
        self._puts = plan.puts
        self._answers_none = False

    async def aclose(self) -> None:
        """Take away what was put in, and close the connections. What was measured counts where that fails, too."""
        try:
            await self._corpus.aclose()
        except ServiceError as error:
            self._sent.notes.append(f"What was put in is still there: {error}")
        finally:
            await self._endpoint.close()

    async def prepare(self, tokens_a_word: float | None) -> None:
        """Finds the model, and how the endpoint counts if no other way's is named, and sends what warms it up."""
        self._sent.models[self._way] = self._fields["model"] = self._way.model or await self._model()
        if self._way.policy:
            self._fields["blend"] = {"policy": self._way.policy}
        if isinstance(found := await self._ask(_one(PROBES[0])), RequestFailure) and found.kind in REFUSED:
            self._fields.pop("stream_options")  # it may be older than that
            found = await self._ask(_one(PROBES[0]))
        if isinstance(found, RequestFailure):
            raise Unavailable(
                f"{self._way.url} does not answer a short prompt ({found.kind}: {found.detail}): it takes a model and "
                "the key that it wants; see its log"
            )
        if tokens_a_word is None:  # all ways get prompts of as many words
            tokens_a_word = _tokens_a_word(found, await self._ask(_one(PROBES[1])))
        self.texts = PromptTexts(self._mark, tokens_a_word)
        warming = self._plan.workload.warm_up()
        await self._put([chunk for chunks in warming for chunk in chunks])
        for chunks in warming:
            await self._ask(RequestShape(0.0, tuple(chunks), 1))

    async def send(self, rate: float, number: int) -> None:
        """Sends a stretch, each request when its time has come, and returns when all are over.

        An endpoint that answered none of a stretch is not asked again.
        """
        if self._answers_none:
            return
        requests = self._plan.workload.stretch(rate, mark=f"{number} {rate}")
        try:
            await self._put(self._plan.workload.recurring(requests))
        except ServiceError as error:
            self._answers_none = True
            self._sent.notes.append(f"{error}. It was not asked again.")
            return
        ready = [encoded(request, self.texts, fields=self._fields) for request in requests]
        found = Stretch(self._way, rate, number, requests[-1].at_s)
        self._sent.stretches.append(found)
        start = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for request, body in zip(requests, ready, strict=True):
                    group.create_task(self._send(body, due=start + request.at_s, into=found))
        finally:
            found.seconds = time.perf_counter() - start
        if not found.answers:
            self._answers_none = True
            self._sent.notes.append(
                f"{self._way.url} answered nothing at {rate:g} requests/s, and was not asked again."
            )

    async def _put(self, chunks: Sequence[ChunkShape]) -> None:
        """Puts chunks in where that was asked for and can be meant."""
        try:
            if self._puts:
                await self._corpus.put([self.texts.text(each) for each in chunks])
        except NotFound as error:
            self._puts = False
            self._sent.notes.append(str(error))

    async def _send(self, body: bytes, *, due: float, into: Stretch) -> None:
        await asyncio.sleep(due - time.perf_counter())
        into.late_s.append(time.perf_counter() - due)
        found = await self._endpoint.ask(body, since=due)
        if isinstance(found, RequestFailure):
            into.failures.append(found)
        else:
            into.answers.append(found)

    async def _ask(self, request: RequestShape) -> EndpointAnswer | RequestFailure:
        body = encoded(request, self.texts, fields=self._fields)
        return await self._endpoint.ask(body, since=time.perf_counter())

    async def _model(self) -> str:
        models = await self._endpoint.models()
        if not models:
            raise Unavailable(f"{self._way.url} lists no model: wait until it has one, or name its --model")
        if len(models) > 1:
            self._sent.notes.append(
                f"{self._way.url} has {len(models)} models: {models[0]} is asked. --model names another."
            )
        return models[0]


def _one(tokens: int) -> RequestShape:
    return RequestShape(0.0, (ChunkShape(f"probe {tokens}", tokens),), 1)


def _tokens_a_word(short: EndpointAnswer, long: EndpointAnswer | RequestFailure) -> float:
    """The tokens that a word takes. What stands around the words counts in neither."""
    if isinstance(long, RequestFailure) or short.prompt_tokens is None or long.prompt_tokens is None:
        return TOKENS_A_WORD
    words = (PROBES[1] - PROBES[0]) / TOKENS_A_WORD
    return max(long.prompt_tokens - short.prompt_tokens, words / 2) / words
