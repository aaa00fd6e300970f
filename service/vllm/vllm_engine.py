"""An engine whose answers vLLM generates: prompts handed over, which engine can answer what, fallback where it is away.

What vLLM cannot take over it computes, exactly. Where vLLM does not answer, or serves something else than is served
here, requests fail with the reason, or our own engine answers them, as the operator chose.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from threading import Lock, Thread
from typing import TypeVar

from blend.engine.engine import Done, EngineRequest, Event, Failed, PayerLoad, Ready, Ticket, alike
from blend.engine.sampling import Sampling
from blend.errors import BlendError, Late, PromptError
from blend.fuse.fuse import BlendOrder, FuseReport
from blend.fuse.prompt import ChunkSegment, lay_out
from blend.run.prefixes import Session
from service.errors import Invalid, ServiceError, Unavailable
from service.model.logit_processors import needs_generator, openai_fields
from service.telemetry.logs import fields
from service.vllm.agreement import Agreement, Comparison
from service.vllm.generated_answer import GeneratedAnswer
from service.vllm.handoff_receiver import HandedPrompt, HandoffReceiver, handing_over
from service.vllm.handoffs import HandoffReaders
from service.vllm.vllm_client import ChatPiece, Completion, GeneratedPiece, GeneratorAway, GeneratorRefusal
from store.errors import Miss, MissReason
from store.fingerprint import Fingerprint
from store.record import Record

T = TypeVar("T")

log = logging.getLogger(__name__)

LOOK_S = 60.0  # that a vLLM may take to be compared
AGAIN_S = 2.0  # between two looks at a vLLM that was away or disagreed


class AnswerTicket:
    """See `Ticket`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class VllmEngine:
    """See `Engine`. What vLLM would not obey alike (grammars of ours), our own engine answers.

    What our own engine cannot do (several answers, vLLM's structured outputs), vLLM alone answers.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._local = comparison.local
        self._model = comparison.served
        self._handoffs = comparison.handoffs
        self._client = comparison.client
        self._fingerprint = comparison.served.fingerprint
        self._agreed: Agreement | None = None
        self._problem = ""
        self._looked = -math.inf
        self._running = Counter[str]()
        self._lock = Lock()
        self._loop = asyncio.new_event_loop()
        self._asking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._thread = Thread(target=self._loop.run_forever, name="kvweave-generator", daemon=True)
        self._thread.start()
        self._watching = asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def submit(self, request: EngineRequest, listen: Callable[[Event], None]) -> Ticket:
        model = self._model
        rules = None if request.receiver is not None else self._rules(request.sampling)
        if rules is None:
            return self._local.submit(request, listen)
        layout = lay_out(
            request.prompt, fingerprint=self._fingerprint, window=model.window, vocabulary=model.vocabulary
        )
        request.order.check()
        if request.within_s is not None:
            self._local.refuse_late(request.payer, request.within_s)
        answer = GeneratedAnswer(request, layout.ids, rules=rules, listen=listen)
        ticket = AnswerTicket(self._loop)
        with self._lock:
            self._running[request.payer] += 1
        self._loop.call_soon_threadsafe(self._begin, answer, ticket)
        return ticket

    def refuse_late(self, payer: str, left_s: float) -> None:
        self._local.refuse_late(payer, left_s)

    def waits_s(self, payer: str) -> float:
        return self._local.waits_s(payer)

    def kept(self, ids: Sequence[int], *, owner: str, session: Session | None = None) -> int:
        return self._local.kept(ids, owner=owner, session=session) if session else 0  # what else vLLM keeps it knows

    def end_sessions(self, payer: str, name: str = "") -> None:
        self._local.end_sessions(payer, name)

    def capture(
        self,
        prefix: Sequence[int],
        chunks: Sequence[Sequence[int]],
        *,
        before: Sequence[Sequence[int]] = (),
        payer: str = "",
    ) -> Future[list[Record]]:
        return self._local.capture(prefix, chunks, before=before, payer=payer)

    def compute(self, parts: Sequence[Callable[[], T]], *, payer: str = "") -> Future[list[T]]:
        return self._local.compute(parts, payer=payer)

    def identify(self, fingerprint: Fingerprint) -> None:
        self._fingerprint = fingerprint
        self._local.identify(fingerprint)

    def load(self) -> Mapping[str, PayerLoad]:
        """The load by payer: those that vLLM answers run; the seconds are our own engine's."""
        with self._lock:
            running = dict(self._running)
        local = self._local.load()
        idle = PayerLoad(0, 0, 0.0)
        found = {payer: local.get(payer, idle) for payer in {*local, *running}}
        return {
            payer: PayerLoad(each.waiting, max(each.running, running.get(payer, 0) - each.waiting), each.seconds)
            for payer, each in found.items()
        }

    @property
    def takes(self) -> bool:
        return self._local.takes and not self._closing

    def close(self) -> None:
        self._closing = True
        self._watching.cancel()
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._local.close()

    async def _finish(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _watch(self) -> None:
        """Compares as soon as vLLM is there, and again when it was away, so that no request has to wait for it."""
        while True:
            with suppress(GeneratorAway):
                await self._agreement()
            await asyncio.sleep(AGAIN_S)

    def _begin(self, answer: GeneratedAnswer, ticket: AnswerTicket) -> None:
        task = ticket.task = self._loop.create_task(self._answer(answer))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._end(answer, task))

    def _end(self, answer: GeneratedAnswer, task: "asyncio.Task[None]") -> None:
        """Sees to it that the request ends once, and that nothing of it is kept."""
        self._tasks.discard(task)
        with self._lock:
            self._running[answer.request.payer] -= 1
            self._running = +self._running
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            answer.tell(Failed(error))
        else:
            answer.tell(Done("cancelled", "", answer.generated, answer.age_s))

    async def _answer(self, answer: GeneratedAnswer) -> None:
        try:
            async with asyncio.timeout(answer.left_s):
                await self._answer_somewhere(answer)
        except Late:
            raise
        except TimeoutError:
            raise Late("the answer is not whole in the time that it was given: give it more") from None

    async def _answer_somewhere(self, answer: GeneratedAnswer) -> None:
        try:
            await self._generate(answer, await self._agreement())
        except GeneratorAway as error:
            is_for_it_alone = _is_for_generator(answer.request.sampling)
            if is_for_it_alone and isinstance(error, GeneratorRefusal):
                raise Invalid(f"the generator refuses the request: {error.reason}") from error
            self._agreed = None  # another may be there when it comes back
            if answer.is_ready or is_for_it_alone or not self._comparison.address.has_fallback:
                raise Unavailable(f"the generator cannot be used: {error}") from error
            log.warning("our own engine answers in the generator's place", extra=fields(reason=str(error)))
            await self._told_by_local(answer.request, answer.tell)

    async def _agreement(self) -> Agreement:
        """What vLLM agreed to, asked again when it was away. Raises GeneratorAway."""
        async with self._asking:
            if self._agreed is not None:
                return self._agreed
            if time.monotonic() - self._looked < AGAIN_S:
                raise GeneratorAway(self._problem)
            try:
                async with asyncio.timeout(LOOK_S):
                    self._agreed = await self._comparison.agree()
            except (GeneratorAway, TimeoutError, BlendError, ServiceError) as error:
                problem = str(error) or f"it takes longer than {LOOK_S:g} s to say what it is"
                if problem != self._problem:
                    log.error("the generator is not used", extra=fields(reason=problem))
                self._problem = problem
                raise GeneratorAway(problem) from error
            finally:
                self._looked = time.monotonic()
            self._problem = ""
            log.info("the generator agrees", extra=fields(model=self._agreed.model, window=self._agreed.window))
            return self._agreed

    async def _generate(self, answer: GeneratedAnswer, agreed: Agreement) -> None:
        request = answer.request
        room = agreed.window - len(answer.ids)
        if room < 1:
            raise PromptError(
                f"the prompt has {len(answer.ids)} tokens, the generator's window {agreed.window}: leave out chunks"
            )
        async with self._handed_over(answer, agreed) as handed:
            stop_ids = sorted(self._model.prompt_builder.tokenizer.stop_ids)
            salt = self._handoffs.salt(f"exact {request.owner}")
            asked = Completion(agreed.model, answer.ids, request.sampling, stop_ids, salt, rules=answer.rules)
            if handed is not None:
                salt = self._handoffs.salt(request.session, alike(request.order.policy, request.wanted_ratio))
                asked = replace(asked, salt=salt, params=handed.params)
            most_tokens = min(request.sampling.max_tokens, room)
            if "messages" in answer.rules:
                await self._tell_messages(answer, self._client.chat(asked, most_tokens=most_tokens))
            else:
                pieces = self._client.stream(asked, most_tokens=most_tokens)
                await self._tell_all(answer, pieces, handed=handed)
        assert answer.end is not None, "a stream ends with the last answer"
        answer.tell(answer.end)  # nothing is held for it any more

    def _handed_over(
        self, answer: GeneratedAnswer, agreed: Agreement
    ) -> AbstractAsyncContextManager[HandedPrompt | None]:
        """Has the prompt put in place for vLLM; None where it is to be exact, or finds no room: vLLM computes it."""
        request = answer.request
        if request.order.policy == "full" or not self._handoffs.has_room(int(agreed.token_bytes * len(answer.ids))):
            return nullcontext()
        readers = HandoffReaders(request.payer, request.as_of, is_internal=True)
        return handing_over(HandoffReceiver(self._handoffs, readers), partial(self._fused, answer))

    async def _fused(self, answer: GeneratedAnswer, receiver: HandoffReceiver) -> Ready:
        """Has our own engine put a prompt in place."""
        told: list[Ready] = []

        def tell(event: Event) -> None:
            told.extend([event] if isinstance(event, Ready) else [])
            if isinstance(event, Failed):
                raise event.error

        left_s = None if answer.request.within_s is None else answer.left_s
        await self._told_by_local(replace(answer.request, receiver=receiver, within_s=left_s), tell)
        return told[0]

    async def _tell_all(
        self, answer: GeneratedAnswer, pieces: AsyncGenerator[GeneratedPiece], *, handed: HandedPrompt | None
    ) -> None:
        """Tells of the answers as vLLM generates them, until all have ended."""
        answer.begin(self._model.prompt_builder.tokenizer)
        async with aclosing(pieces):
            async for piece in pieces:
                if not answer.is_ready:
                    ready = await handed.ready() if handed else None
                    answer.tell(ready or self._computed_there(answer, tokens=len(answer.ids)))
                answer.take(piece)
                if answer.end is not None:
                    return

    async def _tell_messages(self, answer: GeneratedAnswer, pieces: AsyncGenerator[ChatPiece]) -> None:
        """Tells of messages as vLLM generates and parses them, until all have ended."""
        answer.begin(self._model.prompt_builder.tokenizer)
        async with aclosing(pieces):
            async for piece in pieces:
                if not answer.is_ready:
                    answer.tell(self._computed_there(answer, tokens=piece.prompt_tokens))
                answer.take_message(piece)
                if answer.end is not None:
                    return

    async def _told_by_local(self, request: EngineRequest, tell: Callable[[Event], None]) -> None:
        """Has our own engine do a request, whose events are told here; ends it where nobody waits any more."""
        queue: asyncio.Queue[Event] = asyncio.Queue()

        def listen(event: Event) -> None:
            self._loop.call_soon_threadsafe(queue.put_nowait, event)

        ticket = self._local.submit(request, listen)
        try:
            while True:
                event = await queue.get()
                tell(event)
                if isinstance(event, Done | Failed):
                    return
        finally:
            ticket.cancel()

    def _computed_there(self, answer: GeneratedAnswer, *, tokens: int) -> Ready:
        """What is told of a prompt that vLLM computed."""
        segments = [each for each in answer.request.prompt.segments if isinstance(each, ChunkSegment)]
        missed = [at for at, each in enumerate(segments) if each.source is not None]
        misses = tuple((at, Miss(MissReason.NOT_FETCHED)) for at in missed)
        seconds = {"others": math.inf} if missed else {}  # it tells nothing of what prompts take
        report = FuseReport(BlendOrder("full", 0.0), 0, 0, tokens, ((),), misses, 0, seconds)
        return Ready(report, 0.0)

    def _rules(self, sampling: Sampling) -> Mapping[str, object] | None:
        """The request's own rules, as vLLM takes them; None for those that it would not obey alike, and we do.

        Raises Invalid for a token that there is not.
        """
        vocabulary = self._model.vocabulary
        rules = openai_fields(sampling.processor, vocabulary=vocabulary)
        if _is_for_generator(sampling):
            if rules is None:
                raise Invalid(f"there are {vocabulary} tokens: leave others out of logit_bias", field="logit_bias")
            return rules
        if sampling.processor is not None and sampling.logprobs is not None:  # it tells those from before the rules
            return None
        return rules


def _is_for_generator(sampling: Sampling) -> bool:
    """Whether our own engine cannot do it."""
    return sampling.choices > 1 or needs_generator(sampling.processor)
