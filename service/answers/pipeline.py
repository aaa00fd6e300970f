"""The one pipeline as a stream of events: retrieve, fetch, fuse, decode; its limit, threads, timings, cancelling.

Each request is a task of its own: while one is looked up and fetched, others are computed.
"""

import asyncio
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch

from blend.engine.engine import (
    ChoiceEnded,
    Done,
    Engine,
    EngineRequest,
    Failed,
    Finish,
    MessagePiece,
    Ready,
    Ticket,
    Token,
)
from blend.engine.engine import Event as EngineEvent
from blend.engine.sampling import LogitsProcessor
from blend.fuse.fuse import FuseReport
from retriever.search import Found
from service.access.interpreter_time import INTERPRETER, elsewhere
from service.access.principal import Principal
from service.answers.answer_request import AnswerRequest, Lookup
from service.answers.answer_rules import AnswerRules
from service.answers.blend_decision import TRIED, BlendInputs, decide, tries
from service.answers.events import Delta, Event, Finished, Fused, Loaded, Retrieved, TopToken, Usage
from service.answers.fair_turns import COMPUTES, SchemaMemory, lower_priority
from service.answers.foreign_documents import ForeignDocuments
from service.answers.gather import Gathered, gather, look_up
from service.answers.plan import EnginePlan, fit, usage_of
from service.answers.prompt_costs import BegunBlobs, PromptCosts
from service.answers.tool_prompt import NOTE
from service.documents.ingest import Ingest
from service.documents.tenants import Tenants
from service.errors import Exhausted, ServiceError, Unavailable
from service.model.logit_processors import GeneratorRule, chained
from service.settings import BUILTIN, Settings
from service.telemetry.logs import note
from service.telemetry.metrics import Metrics
from service.telemetry.traces import Tracer

LOOKUPS = 8  # threads that search and tokenize
FETCHES = 128  # threads that open blobs: each waits for a medium, so there are as many as parallel opens
RETRY_S = 1.0
ALONE = 0.02  # the most of a prompt's time that went to other requests, for its time to be learned from

T = TypeVar("T")


@dataclass(slots=True)
class _Timings:
    """Milliseconds by stage, as a client sees them."""

    start: float = field(default_factory=time.perf_counter)
    ms: dict[str, float] = field(default_factory=dict[str, float])

    def since_start(self) -> float:
        return 1000 * (time.perf_counter() - self.start)


class _Flight:
    """A request that may be cancelled at any time, also while it is submitted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ticket: Ticket | None = None
        self._over = False
        self.held = ExitStack()  # resources held until the request ends

    def begin(self, engine: Engine, request: EngineRequest, *, listen: Callable[[EngineEvent], None]) -> None:
        with self._lock:
            if not self._over:
                self._ticket = engine.submit(request, listen)

    def give_up(self) -> None:
        with self._lock:
            self._over = True
            if self._ticket is not None:
                self._ticket.cancel()
        self.held.close()


class Pipeline:
    """The pipeline of one service. Its methods are called in one event loop."""

    def __init__(
        self, tenants: Tenants, ingest: Ingest, *, settings: Settings, metrics: Metrics, tracer: Tracer
    ) -> None:
        self._tenants = tenants
        self._model = tenants.model
        self._ingest = ingest
        self._settings = settings
        self._metrics = metrics
        self._tracer = tracer
        self._costs = PromptCosts(self._model.speeds) if self._model.speeds else None
        self._rules = AnswerRules(self._model)
        self._lookups = ThreadPoolExecutor(LOOKUPS, "kvweave-lookup", lower_priority, (COMPUTES,))
        self._fetches = ThreadPoolExecutor(FETCHES, "kvweave-fetch")
        self._schema_memory = SchemaMemory()
        self._flying = 0
        self.foreign_documents = ForeignDocuments(self._model) if settings.model == BUILTIN else None

    @property
    def in_flight(self) -> int:
        return self._flying

    def close(self) -> None:
        self._lookups.shutdown(cancel_futures=True)
        self._fetches.shutdown(cancel_futures=True)
        self._rules.close()

    async def search(self, who: Principal, lookup: Lookup) -> Found:
        """Retrieval alone, best first."""
        return await self._in_thread(lambda: look_up(self._tenants.open(who.tenant), lookup, bound=who.bound))

    async def answer(self, ask: AnswerRequest) -> AsyncGenerator[Event]:
        """All events of one answer. Closing it frees the request's place; each error is raised once, and counted."""
        if self._flying >= self._settings.max_requests:
            raise Exhausted(
                f"{self._flying} requests are being answered already: try again in a moment", retry_after_s=RETRY_S
            )
        self._flying += 1
        flight, name = _Flight(), ask.principal.tenant
        try:
            with INTERPRETER.answering(name):
                async with aclosing(self._events(ask, flight)) as events:
                    async for event in events:
                        yield event
        except (GeneratorExit, asyncio.CancelledError):
            self._metrics.failed(name, error="ClientGone")
            raise
        except Exception as error:
            self._metrics.failed(name, error=type(error).__name__)
            raise
        finally:
            self._flying -= 1
            flight.give_up()
            if ask.session and ask.session_keep_s == 0:
                self._model.end_session(name, ask.session_name)

    async def _events(self, ask: AnswerRequest, flight: _Flight) -> AsyncGenerator[Event]:
        timings = _Timings()
        if ask.within_s is not None:
            self._model.engine.refuse_late(ask.principal.tenant, ask.within_s)
        grammar = await self._rules.compiled(ask)
        if grammar is not None:
            flight.held.enter_context(self._schema_memory.held(ask.principal.tenant, grammar.nbytes))
        begun = timings.since_start()
        inputs = self._inputs(ask)
        with self._tracer.span("retrieve"):
            gathered = await self._in_thread(lambda: self._gather(ask))
        timings.ms["retrieve"] = timings.since_start() - begun
        yield Retrieved(gathered.sources)
        begun = timings.since_start()
        with self._tracer.span("fetch"):
            plan = await self._planned(gathered, inputs)
        note(blend=str(plan.inputs))
        timings.ms["fetch"] = timings.since_start() - begun
        yield Loaded(plan.loaded())
        plan.begin()
        queue: asyncio.Queue[EngineEvent] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        read = self._rules.reading(ask)

        def listen(event: EngineEvent) -> None:
            for each in read(event):
                loop.call_soon_threadsafe(queue.put_nowait, each)

        submitted = timings.since_start()
        left_s = None if ask.within_s is None else ask.within_s - submitted / 1000
        request = partial(self._request, ask, plan, grammar=grammar, left_s=left_s)
        await self._in_thread(lambda: flight.begin(self._model.engine, request(), listen=listen))
        async with aclosing(
            self._answered(queue, _RequestProgress(ask, plan, timings, submitted, alone=self._flying == 1))
        ) as events:
            async for event in events:
                yield event

    def _gather(self, ask: AnswerRequest) -> Gathered:
        texts = [*(turn.text for turn in ask.turns), *(each.text for each in ask.documents), *ask.tool_texts]
        self._model.prompt_builder.check_length(texts, window=self._model.window)
        return gather(self._tenants.open(ask.principal.tenant), ask)

    async def _planned(self, gathered: Gathered, inputs: BlendInputs) -> EnginePlan:
        """The plan for the engine, with the blobs of the passages where they are to be used."""
        plan, begun = await self._in_thread(lambda: self._begun(gathered, inputs))
        if begun is None:
            return plan
        plan = replace(plan, opened=await begun.opened())
        if begun.patience_s is not None and self._costs and plan.has_choice:
            kept = self._model.engine.kept(plan.prompt_tokens.prefix, owner=self._owner(gathered.ask.principal))
            plan = plan.by_time(self._costs.cost(plan.prompt_tokens, plan.opened, kept=kept))
        return plan

    def _begun(self, gathered: Gathered, inputs: BlendInputs) -> tuple[EnginePlan, BegunBlobs | None]:
        """The plan, and the blobs that it may use; None for none."""
        notes = () if self.foreign_documents is None else self.foreign_documents.notes(gathered.texts)
        notes = (*gathered.notes, *notes, NOTE) if gathered.ask.tools else (*gathered.notes, *notes)
        plan = fit(gathered, inputs, prompt_builder=self._model.prompt_builder, window=self._model.window)
        plan = replace(plan, notes=notes)
        passages = [each.passage for each in gathered.all]
        if decide(inputs).order.policy == "full" or not passages:
            return plan, None
        tenant = gathered.ask.principal.tenant
        begin = partial(self._tenants.open(tenant).caches.open, passages, pool=self._fetches)
        if self._costs is None or gathered.ask.order is not None or self._goes_on(gathered.ask, plan):
            return plan, BegunBlobs(begin())
        tokens = plan.prompt_tokens
        if self._goes_on(gathered.ask, exact := plan.read(), beyond=tokens.tokens - len(tokens.suffix)):
            return exact, None
        turn_s = self._model.engine.waits_s(tenant)
        return plan, self._costs.begun(plan.prompt_tokens, begin, turn_s=turn_s, tried=tries(inputs))

    async def _answered(
        self, queue: "asyncio.Queue[EngineEvent]", progress: "_RequestProgress"
    ) -> AsyncGenerator[Event]:
        """The answer's events, out of those of the engine."""
        generated = 0
        span = self._tracer.span("fuse")
        try:
            while True:
                event = await queue.get()
                match event:
                    case Ready(report=report, queued_s=queued_s):
                        fused = progress.ready(report, queued_s)
                        self._mend(progress.ask, progress.plan, report=report)
                        self._learn(progress, report)
                        progress.plan.let_go()
                        span.set(prompt_tokens=fused.usage.prompt, reused_tokens=fused.usage.reused)
                        span.end()
                        span = self._tracer.span("decode")
                        yield fused
                    case Token():
                        generated += 1
                        if generated == 1:
                            progress.timings.ms["first_token"] = progress.timings.since_start()
                        yield self._delta(event, wanted=progress.ask.sampling.logprobs is not None)
                    case MessagePiece():
                        progress.timings.ms.setdefault("first_token", progress.timings.since_start())
                        yield event
                    case ChoiceEnded():
                        yield event
                    case Done(reason=reason, text=text, generated=count):
                        finished = replace(progress.done(reason, text, generated=count), choice=event.choice)
                        self._account(progress.ask, finished)
                        yield finished
                        return
                    case Failed(error=error):
                        raise _explained(error)
        finally:
            span.end()

    def _inputs(self, ask: AnswerRequest) -> BlendInputs:
        switch = self._tenants.control.switch()
        share = self._settings.share if switch.share is None else switch.share
        order, tried = ask.order or self._model.order, 0.0 if self._settings.reuse == "untried" else TRIED
        return BlendInputs(order, switch.enabled, share, random.random(), tried=tried)

    def _request(
        self, ask: AnswerRequest, plan: EnginePlan, *, grammar: LogitsProcessor | None, left_s: float | None
    ) -> EngineRequest:
        prompt, principal = plan.prompt, ask.principal
        chat = plan.generator_fields
        rules = (ask.sampling.processor, grammar, None if chat is None else GeneratorRule(chat))
        sampling = replace(ask.sampling, processor=chained(*rules))
        asked = EngineRequest(prompt, sampling, plan.decision.order, payer=principal.tenant, as_of=ask.as_of)
        asked = replace(asked, owner=self._owner(principal), within_s=left_s, goes_on=plan.goes_on)
        asked = replace(asked, session=ask.session_name, keep_s=ask.session_keep_s, receiver=ask.receiver)
        return replace(asked, wanted_ratio=ask.wanted_ratio(self._model.order))

    def _goes_on(self, ask: AnswerRequest, plan: EnginePlan, *, beyond: int = 0) -> bool:
        """Whether its session left more of its beginning, computed alike: then nothing is sooner than to go on."""
        if not ask.session:
            return False
        asked, engine = self._request(ask, plan, grammar=None, left_s=None), self._model.engine
        session = asked.of_session
        return session is not None and engine.kept(asked.prompt.ids[:-1], owner=asked.owner, session=session) > beyond

    def _owner(self, principal: Principal) -> str:
        """Whose beginnings of prompts are used."""
        return f"{principal.tenant} {repr(principal.bound) if self._settings.shared_prefixes else principal.key_id}"

    def _mend(self, ask: AnswerRequest, plan: EnginePlan, *, report: FuseReport) -> None:
        """Requests the computing of records that were missing or damaged."""
        missing, damaged = plan.to_mend(report)
        tenant = self._tenants.open(ask.principal.tenant)
        if missing:
            self._ingest.fill(tenant, missing)
        if damaged:
            self._ingest.fill(tenant, damaged, damaged=True)

    def _learn(self, progress: "_RequestProgress", report: FuseReport) -> None:
        """Corrects the expected costs by a prompt beside which hardly anything else was computed."""
        plan, took_s = progress.plan, progress.took_s
        if self._costs and plan.cost and report.seconds.get("others", 0.0) < ALONE * took_s:
            alone = progress.alone and self._flying == 1
            self._costs.learn(plan.cost, report, took_s=took_s, sources=[*plan.sources.values()], alone=alone)

    def _delta(self, token: Token, *, wanted: bool) -> Delta:
        if not wanted:
            return Delta(token.text, choice=token.choice)
        top = tuple(self._top(each, logprob) for each, logprob in token.top)
        return Delta(token.text, self._top(token.id, token.logprob or 0.0), top, token.choice)

    def _top(self, token: int, logprob: float) -> TopToken:
        raw = self._model.prompt_builder.tokenizer.token_bytes(token)
        return TopToken(raw.decode("utf-8", "replace"), raw, logprob)

    def _account(self, ask: AnswerRequest, finished: Finished) -> None:
        usage, report = finished.usage, finished.report
        self._metrics.answered(ask.principal.tenant, usage=usage, report=report, reason=finished.reason)
        note(
            policy=report.policy,
            prompt_tokens=usage.prompt,
            completion_tokens=usage.completion,
            reused_tokens=usage.reused,
            recomputed_tokens=usage.recomputed,
            finish=finished.reason,
            **{f"{stage}_ms": ms for stage, ms in report.timings_ms.items()},
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._lookups, elsewhere(work))


@dataclass(slots=True)
class _RequestProgress:
    """One request on its way through the engine."""

    ask: AnswerRequest
    plan: EnginePlan
    timings: _Timings
    submitted: float
    alone: bool = False  # was no other request under way when this one was submitted?
    fused: FuseReport | None = None
    ready_at: float = 0.0

    def ready(self, report: FuseReport, queued_s: float) -> Fused:
        self.fused = report
        self.ready_at = self.timings.since_start()
        waited = 1000 * report.seconds.get("wait", 0.0)
        self.timings.ms["queue"] = 1000 * queued_s
        self.timings.ms["unpack"] = waited
        self.timings.ms["fuse"] = max(0.0, self.ready_at - self.submitted - 1000 * queued_s - waited)
        return Fused(usage_of(report), self.plan.report(report, self.timings.ms))

    @property
    def took_s(self) -> float:
        """The seconds of the fuse, waits for records included."""
        return (self.timings.ms["fuse"] + self.timings.ms["unpack"]) / 1000

    def done(self, reason: Finish, text: str, *, generated: int) -> Finished:
        total = self.timings.since_start()
        if self.fused is None:  # cancelled before its turn
            return Finished(reason, text, Usage(self.plan.prompt_tokens.tokens), self.plan.report(None, {}))
        self.timings.ms["decode"] = total - self.ready_at
        self.timings.ms["total"] = total
        return Finished(reason, text, usage_of(self.fused, generated), self.plan.report(self.fused, self.timings.ms))


def _explained(error: Exception) -> Exception:
    """The error to report for the engine's failure."""
    if isinstance(error, ServiceError):
        return error
    is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if is_memory or "out of memory" in str(error) or "can't allocate memory" in str(error):
        return Unavailable(
            "the model ran out of memory for this prompt: ask for fewer chunks or tokens, or lower kv_bytes"
        )
    return error
