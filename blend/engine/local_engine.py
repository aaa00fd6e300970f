"""The engine of this process: continuous batching in one thread, captures in turns; refuses a full queue, late answers.

A request is fused, then joins the others, one token each in a step; it leaves at any step. Between the layers of a
fuse the others go on, for as long as the fuse computed since their last step. Requests go before captures, which let
them pass between their layers, until captures have had too small a share of the time.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Condition, Thread

import torch

from blend.capture.capture import CaptureHooks, capture, passes
from blend.engine.answer_builder import AnswerBuilder, QueuedRequest
from blend.engine.engine import EngineLimits, EngineRequest, Event, Failed, PayerLoad, Ready
from blend.engine.fair_queue import CaptureDebts, FairQueue, RowCosts, StepShares
from blend.engine.kv_budget import KvBudget
from blend.engine.queued_turns import PassPace, QueuedTurns, T, Turns, one_by_one
from blend.errors import Busy, Late
from blend.fuse.fuse import fuse
from blend.fuse.policy import check_runs
from blend.fuse.prompt import lay_out
from blend.fuse.record_loader import Readers
from blend.run.decoder import Decoder
from blend.run.prefixes import Prefixes, Session
from blend.run.spill import Spill
from blend.text.tokenizer import Tokenizer
from store.fingerprint import Fingerprint
from store.record import Record

log = logging.getLogger(__name__)

TURN_S = 0.25  # of a capture, or other work: then it is the turn of the payer whose captures had the least


class LocalEngine:
    """See `Engine`."""

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, *, fingerprint: Fingerprint, limits: EngineLimits | None = None
    ) -> None:
        self.limits = limits or EngineLimits()
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._spill = Spill(self.limits.spill, self.limits.kv_bytes) if self.limits.spill else None
        self._prefixes = Prefixes(self.limits.prefix_bytes, spill=self._spill)
        room = self.limits.kv_bytes // decoder.token_bytes
        self._budget = KvBudget(room, places=self.limits.running, each=decoder.state_tokens)
        self._capture_hooks = CaptureHooks(self._let_requests, self._hold, room, Prefixes(self.limits.prefix_bytes))
        self._readers = Readers()
        self._changed = Condition()
        self._costs = RowCosts()
        self._waiting = FairQueue[QueuedRequest](self.limits.weights, rank=lambda each: each.rank(self._costs.row_s))
        self._captures = FairQueue[Turns](self.limits.weights, rank=lambda job: len(job.left))
        self._closing = False
        self._running: list[AnswerBuilder] = []
        self._debts = CaptureDebts(self.limits.capture_share)
        self._capturing: Turns | None = None
        self._captured_s = 0.0  # what all captures took together
        self._capture_pace, self._other_pace = PassPace(), PassPace()
        self._slice_began = self._fuse_began = 0.0  # when the capture, or the fuse, at hand went on
        self._step_shares = StepShares(self.limits.weights)
        self._step_s = self._stepped = self._steps_s = 0.0  # of the last step: time, end; the time of all of them
        self._threads = torch.get_num_threads()
        self._thread = Thread(target=self._work, name="kvweave-engine", daemon=True)
        self._thread.start()

    def submit(self, request: EngineRequest, listen: Callable[[Event], None]) -> QueuedRequest:
        """See `Engine.submit`."""
        layout = lay_out(
            request.prompt,
            fingerprint=self._fingerprint,
            window=self._decoder.window,
            vocabulary=self._decoder.vocabulary,
        )
        request.order.check()
        order, layers = request.order, self._decoder.model_layers
        check_runs(order.policy, ratio=order.ratio, has_states=bool(layers.states), replays=bool(layers.stretches))
        capacity = min(len(layout.ids) + request.most_tokens, self._decoder.window + 1)
        self._budget.check(capacity, prompt=len(layout.ids), token_bytes=self._decoder.token_bytes)
        queued = QueuedRequest(request, layout, listen=listen, capacity=capacity)
        queued.expect(self._prefixes)
        with self._changed:
            if self._closing:
                raise Busy("the engine is closing and takes nothing more")
            if len(self._waiting) >= self.limits.waiting:
                raise Busy(f"{len(self._waiting)} requests are waiting already: try again later")
            self.refuse_late(request.payer, queued.left_s)
            self._budget.see(request.payer)
            self._waiting.add(queued, self._payers())
            self._changed.notify()
        return queued

    def _payers(self) -> Counter[str]:
        """Whose answers are running, and how many."""
        return Counter(answer.queued.request.payer for answer in self._running)

    def refuse_late(self, payer: str, left_s: float) -> None:
        """See `Engine.refuse_late`."""
        if left_s <= 0:
            raise _late()
        with self._changed:
            ahead, waits = self._waiting.ahead(payer), self._waiting.waits_s(payer)
        if waits > left_s:
            raise Late(
                f"{ahead} requests go before this one, some {waits:.1f} s, and it has {left_s:.1f} s: try again later, "
                "or give it more time",
                retry_after_s=waits - left_s,
            )

    def waits_s(self, payer: str) -> float:
        """See `Engine.waits_s`."""
        with self._changed:
            return self._waiting.waits_s(payer)

    def kept(self, ids: Sequence[int], *, owner: str, session: Session | None = None) -> int:
        """See `Engine.kept`."""
        return self._prefixes.tokens(ids, owner=owner, session=session)

    def end_sessions(self, payer: str, name: str = "") -> None:
        """See `Engine.end_sessions`."""
        with self._changed:
            self._prefixes.end_sessions(payer, name)
            self._changed.notify()

    def capture(
        self,
        prefix: Sequence[int],
        chunks: Sequence[Sequence[int]],
        *,
        before: Sequence[Sequence[int]] = (),
        payer: str = "",
    ) -> Future[list[Record]]:
        """See `Engine.capture`."""
        before = before or [()] * len(chunks)

        def compute(numbers: Sequence[int]) -> list[Record]:
            own, behind = ([each[number] for number in numbers] for each in (chunks, before))
            return capture(self._decoder, prefix, chunks=own, before=behind, hooks=self._capture_hooks)

        left = passes(chunks, before, device=self._decoder.device)
        return self._queued(QueuedTurns(payer, left, compute, self._capture_pace))

    def compute(self, parts: Sequence[Callable[[], T]], *, payer: str = "") -> Future[list[T]]:
        """See `Engine.compute`."""
        left = [(number,) for number in range(len(parts))]
        return self._queued(QueuedTurns(payer, left, one_by_one(parts, self._let_requests), self._other_pace))

    def _queued(self, job: QueuedTurns[T]) -> Future[list[T]]:
        with self._changed:
            if self._closing:
                raise Busy("the engine is closing and takes nothing more")
            self._captures.add(job, [self._capturing.payer] if self._capturing else [])
            self._changed.notify()
        return job.result

    def identify(self, fingerprint: Fingerprint) -> None:
        """See `Engine.identify`."""
        self._fingerprint = fingerprint

    def load(self) -> Mapping[str, PayerLoad]:
        """See `Engine.load`."""
        with self._changed:
            waiting, seconds = self._waiting.counts(), dict(self._waiting.seconds)
        running = Counter(answer.queued.request.payer for answer in self._running if not answer.queued.over)
        payers = {*waiting, *running, *seconds}
        return {each: PayerLoad(waiting[each], running[each], seconds.get(each, 0.0)) for each in payers}

    @property
    def takes(self) -> bool:
        """See `Engine.takes`."""
        return not self._closing

    def close(self) -> None:
        """See `Engine.close`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._readers.shutdown()
        if self._spill:
            self._spill.close()

    def _work(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                self._loop()
        except Exception as error:
            log.critical("the engine stopped", exc_info=error)
            with self._changed:
                self._closing = True
                for each in [*self._waiting.removed(lambda _: True), *(answer.queued for answer in self._running)]:
                    each.tell(Failed(error))
                for job in self._captures.removed(lambda _: True):
                    job.fail(error)

    def _loop(self) -> None:
        kept = self._prefixes
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._waiting or self._running or self._captures or self._closing or kept.left_s == 0.0,
                    kept.left_s,
                )
                if self._closing and not (self._waiting or self._running or self._captures):
                    return
            self._serve()
            with self._changed:
                job = self._captures.next(lambda _: True, running={})
            if job:
                self._run_capture(job)

    def _serve(self) -> None:
        """Runs until no request wants anything, or it is the turn of captures; inside a capture, too."""
        while True:
            began = time.perf_counter()
            queued = self._admit()
            if queued is not None:
                self._start(queued)
            if self._running:
                self._step()
            elif queued is None:
                return
            with self._changed:
                waiting = {*self._captures.counts(), *([self._capturing.payer] if self._capturing else ())}
            if self._debts.served(time.perf_counter() - began, waiting):
                return

    def _admit(self) -> QueuedRequest | None:
        self._prefixes.expire()
        with self._changed:
            gone = self._waiting.removed(lambda queued: queued.cancelled or queued.left_s <= 0)
        for queued in gone:
            if queued.cancelled:
                queued.end("cancelled")
            else:
                queued.tell(Failed(_late()))
        running = [answer.queued for answer in self._running]
        with self._changed:
            fits, has_share = (
                partial(each, running=running) for each in (self._budget.can_admit, self._budget.has_share)
            )
            return self._waiting.next(fits, running=self._payers(), has_share=has_share)

    def _start(self, queued: QueuedRequest) -> None:
        self._fuse_began = time.perf_counter() - self._steps_s  # as if no step came between
        try:
            answer = self._fuse(queued)
        except _Left:
            queued.end("cancelled")
        except Exception as error:
            log.info("request failed", exc_info=error)
            queued.tell(Failed(error))
        else:
            self._running.append(answer)
            self._drop_finished()
        had = time.perf_counter() - self._steps_s - self._fuse_began
        with self._changed:
            self._costs.learn(queued.rows, had)
            self._waiting.started(queued.request.payer, had)

    def _fuse(self, queued: QueuedRequest) -> AnswerBuilder:
        context, queued_s = self._decoder.context(queued.capacity), queued.age_s
        queued.restore(self._prefixes, context)
        between = partial(self._let_others, queued)
        order = replace(queued.begin(context), piece_rows=self.limits.piece_rows, between=between)
        fused = fuse(self._decoder, queued.layout, context=context, order=order, readers=self._readers)
        queued.keep(self._prefixes, context)
        queued.tell(Ready(fused.report, queued_s))
        answer = AnswerBuilder(queued, context, tokenizer=self._tokenizer, device=self._decoder.device)
        answer.begin(fused.logits)
        return answer

    def _let_others(self, queued: QueuedRequest) -> None:
        """Runs steps of the others between layers of a fuse: half of the time, or more to who had less of it before."""
        if queued.cancelled:
            raise _Left
        if queued.left_s <= 0:
            raise _late()
        if not self._running:
            return
        payer, had = queued.request.payer, time.perf_counter() - self._fuse_began - self._steps_s
        with self._changed:
            lead_s = self._waiting.lead_s(payer, had, running=self._payers())
        if time.perf_counter() - self._stepped >= self._step_s * (2 if lead_s < 0 else 1):
            for without in (payer, payer) if lead_s > 0 else (None,):
                self._step(without)

    def _step(self, without: str | None = None) -> None:
        """Computes one token for each running request that has its turn, none for those of the payer `without`."""
        for answer in self._running:
            if answer.queued.cancelled:
                answer.end("cancelled")
            elif answer.queued.left_s <= 0:
                answer.queued.tell(Failed(_late()))
        self._drop_finished()
        ready = [answer for answer in self._running if answer.queued.request.payer != without]
        chosen = [ready[place] for place in self._step_shares.chosen([each.queued.request.payer for each in ready])]
        if not chosen:
            return
        start = time.perf_counter()
        batches: list[Sequence[AnswerBuilder]] = [chosen]
        for batch in batches:
            try:
                self._advance(batch)
            except Exception as error:
                log.error("a decoding step failed", exc_info=error)
                for answer in batch:  # what is too much together need not be too much for each alone
                    if len(batch) > 1 and answer.context.states.stop <= answer.slot:
                        batches.append([answer])
                    else:
                        answer.queued.tell(Failed(error))
        self._stepped = time.perf_counter()
        self._step_s = self._stepped - start
        self._account(chosen)
        self._drop_finished()

    def _account(self, stepped: Sequence[AnswerBuilder]) -> None:
        """Counts a step's time, and lets those go first in the next one who were left out of it."""
        self._step_shares.costs.learn(len(stepped), self._step_s)
        self._steps_s += self._step_s
        with self._changed:
            for answer in stepped:
                self._waiting.spend(answer.queued.request.payer, self._step_s / len(stepped))
        done = {id(answer) for answer in stepped}
        self._running = sorted(self._running, key=lambda answer: id(answer) in done)

    def _drop_finished(self) -> None:
        for answer in self._running:
            if answer.queued.over:
                answer.keep(self._prefixes)
        self._running = [answer for answer in self._running if not answer.queued.over]

    def _advance(self, batch: Sequence[AnswerBuilder]) -> None:
        found = self._decoder.decode([(answer.context, answer.slot, answer.last) for answer in batch])
        for answer, logits in zip(batch, found, strict=True):
            try:
                answer.take(logits)
            except Exception as error:
                log.info("request failed", exc_info=error)
                answer.queued.tell(Failed(error))

    def _run_capture(self, job: Turns) -> None:
        """Computes so many passes of a job as its turn has time for; what is left waits for the next one."""
        if not job.is_wanted:
            return
        before, done = self._captured_s, 0
        self._slice_began, self._capturing = time.perf_counter(), job
        try:
            done = job.run(TURN_S)
        except Exception as error:
            job.fail(error)
        finally:
            self._hold(0)
            self._capturing = None
            had = self._captured_s - before
            if done:
                job.pace.pass_s = had / done
            with self._changed:
                self._captures.spend(job.payer, had)
                if job.left:
                    self._captures.put_back(job)

    def _let_requests(self) -> None:
        """Serves requests between layers of a capture that had its share."""
        self._end_slice()
        if not self._debts.any:
            self._serve()
        self._slice_began = time.perf_counter()

    def _end_slice(self) -> None:
        """Counts what the capture at hand had."""
        had = time.perf_counter() - self._slice_began
        self._captured_s += had
        if self._capturing:
            self._debts.had(self._capturing.payer, had)

    def _hold(self, tokens: int) -> None:
        """Counts what a capture takes from now on. Returns when it fits beside the answers that still run."""
        self._budget.hold(tokens)
        self._end_slice()
        while self._running and not self._budget.holds([answer.queued for answer in self._running]):
            self._step()
        self._slice_began = time.perf_counter()


def _late() -> Late:
    return Late("the answer is not whole in the time that it was given: give it more, or ask for fewer tokens")


class _Left(Exception):
    """Raised where the client left during its fuse."""
