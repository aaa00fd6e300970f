"""The engine of this process: one thread, one model, continuous batching.

A request is fused, then joins the others, one token each in a step; it leaves at any step. Between the layers of a
fuse the others go on, for as long as the fuse computed since their last step. Requests go before captures: a capture
lets them pass between its layers.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Condition, Thread

import torch

from blend.engine.answer_builder import AnswerBuilder, QueuedRequest
from blend.engine.engine import EngineRequest, Event, Failed, Ready
from blend.errors import Busy, PromptError
from blend.fuse.capture import CaptureHooks, capture
from blend.fuse.fuse import fuse
from blend.fuse.prefixes import Prefixes
from blend.fuse.prompt import lay_out
from blend.model.context import Slots
from blend.model.decoder import Decoder
from blend.model.fingerprint import Fingerprint
from blend.model.step import Segment
from blend.model.tokenizer import Tokenizer
from store.record import Record

log = logging.getLogger(__name__)

READERS = 2  # threads that bring records


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """`kv_bytes` holds the contexts of all running requests and of a capture; prefixes are kept besides."""

    kv_bytes: int = 4 << 30
    prefix_bytes: int = 256 << 20
    waiting: int = 64
    running: int = 64
    piece_rows: int = 1024


@dataclass(frozen=True, slots=True)
class _Capture:
    prefix: Sequence[int]
    chunks: Sequence[Sequence[int]]
    result: Future[list[Record]]


class LocalEngine:
    """See `Engine`."""

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, *, fingerprint: Fingerprint, limits: EngineLimits | None = None
    ) -> None:
        self.limits = limits or EngineLimits()
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._prefixes = Prefixes(self.limits.prefix_bytes)
        self._capture_prefixes = Prefixes(self.limits.prefix_bytes)
        self._readers = ThreadPoolExecutor(READERS, "kvweave-read")
        self._changed = Condition()
        self._waiting: deque[QueuedRequest] = deque()
        self._captures: deque[_Capture] = deque()
        self._closing = False
        self._running: list[AnswerBuilder] = []
        self._captured_bytes = 0  # that the capture at hand takes
        self._step_s = 0.0
        self._stepped = 0.0
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
        capacity = min(len(layout.ids) + request.sampling.max_tokens, self._decoder.window + 1)
        needed = capacity * self._decoder.token_bytes
        if needed > self.limits.kv_bytes:
            raise PromptError(
                f"{len(layout.ids)} prompt tokens and up to {request.sampling.max_tokens} new ones need {needed} bytes "
                f"of KV, the budget is {self.limits.kv_bytes}: leave out chunks, lower max_tokens or raise the budget"
            )
        entry = QueuedRequest(request, layout, listen=listen, capacity=capacity)
        with self._changed:
            if self._closing:
                raise Busy("the engine is closing and takes nothing more")
            if len(self._waiting) >= self.limits.waiting:
                raise Busy(f"{len(self._waiting)} requests are waiting already: try again later")
            self._waiting.append(entry)
            self._changed.notify()
        return entry

    def capture(self, prefix: Sequence[int], chunks: Sequence[Sequence[int]]) -> Future[list[Record]]:
        """See `Engine.capture`."""
        result: Future[list[Record]] = Future()
        with self._changed:
            if self._closing:
                raise Busy("the engine is closing and takes nothing more")
            self._captures.append(_Capture(prefix, chunks, result))
            self._changed.notify()
        return result

    def identify(self, fingerprint: Fingerprint) -> None:
        """See `Engine.identify`."""
        self._fingerprint = fingerprint

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

    def _work(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                self._loop()
        except Exception as error:
            log.critical("the engine stopped", exc_info=error)
            with self._changed:
                self._closing = True
                for entry in [*self._waiting, *(answer.entry for answer in self._running)]:
                    entry.tell(Failed(error))
                for job in self._captures:
                    if job.result.set_running_or_notify_cancel():
                        job.result.set_exception(error)

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._running or self._captures or self._closing)
                if not (self._waiting or self._running or self._captures):
                    return
            self._serve()
            if self._captures:
                self._run_capture(self._captures.popleft())

    def _serve(self) -> None:
        """Runs until no request wants anything, inside a capture, too."""
        while True:
            entry = self._admit()
            if entry is not None:
                self._start(entry)
            if self._running:
                self._step()
            elif entry is None:
                return

    def _admit(self) -> QueuedRequest | None:
        with self._changed:
            gone = [entry for entry in self._waiting if entry.cancelled]
            for entry in gone:
                self._waiting.remove(entry)
        for entry in gone:
            entry.end("cancelled")
        with self._changed:
            used = sum(answer.entry.capacity for answer in self._running) * self._decoder.token_bytes
            used += self._captured_bytes
            if not self._waiting or len(self._running) >= self.limits.running:
                return None
            if used + self._waiting[0].capacity * self._decoder.token_bytes > self.limits.kv_bytes:
                return None
            return self._waiting.popleft()

    def _start(self, entry: QueuedRequest) -> None:
        try:
            answer = self._fuse(entry)
        except _Left:
            entry.end("cancelled")
        except Exception as error:
            log.info("request failed", exc_info=error)
            entry.tell(Failed(error))
        else:
            self._running += [] if entry.over else [answer]

    def _fuse(self, entry: QueuedRequest) -> AnswerBuilder:
        request, prefix = entry.request, entry.request.prompt.prefix
        queued_s = entry.age_s
        context = self._decoder.context(entry.capacity)
        if request.order.policy != "full":
            self._prefixes.restore(prefix, context, owner=request.owner)
        order = replace(request.order, piece_rows=self.limits.piece_rows, between=lambda: self._let_others(entry))
        fused = fuse(self._decoder, entry.layout, context=context, order=order, readers=self._readers)
        if not context.exact:
            self._prefixes.keep(prefix, context, owner=request.owner)
        entry.tell(Ready(fused.report, queued_s))
        answer = AnswerBuilder(entry, context, tokenizer=self._tokenizer, device=self._decoder.device)
        answer.take(fused.logits)
        return answer

    def _let_others(self, entry: QueuedRequest) -> None:
        """Runs a step of the others between layers of a fuse, once it had as much time as their last step took."""
        if entry.cancelled:
            raise _Left
        if self._running and time.perf_counter() - self._stepped >= self._step_s:
            self._step()

    def _step(self) -> None:
        """Computes one token for each running request."""
        for answer in self._running:
            if answer.entry.cancelled:
                answer.end("cancelled")
        self._drop_finished()
        if not self._running:
            return
        start = time.perf_counter()
        batches: list[Sequence[AnswerBuilder]] = [self._running]
        for batch in batches:
            try:
                self._advance(batch)
            except Exception as error:
                log.error("a decoding step failed", exc_info=error)
                if len(batch) > 1:  # what is too much together need not be too much for each alone
                    batches += [[answer] for answer in batch]
                else:
                    batch[0].entry.tell(Failed(error))
        self._drop_finished()
        self._stepped = time.perf_counter()
        self._step_s = self._stepped - start

    def _drop_finished(self) -> None:
        self._running = [answer for answer in self._running if not answer.entry.over]

    def _advance(self, batch: Sequence[AnswerBuilder]) -> None:
        device = self._decoder.device
        places = torch.tensor([answer.slot for answer in batch], device=device)
        segments = [
            Segment(answer.context, Slots(places[row : row + 1], answer.slot, answer.slot), row)
            for row, answer in enumerate(batch)
        ]
        logits = self._decoder.advance(segments, torch.tensor([answer.last for answer in batch], device=device))
        assert logits is not None
        for row, answer in enumerate(batch):
            try:
                answer.take(logits[row])
            except Exception as error:
                log.info("request failed", exc_info=error)
                answer.entry.tell(Failed(error))

    def _run_capture(self, job: _Capture) -> None:
        if not job.result.set_running_or_notify_cancel():
            return
        try:
            records = capture(
                self._decoder,
                job.prefix,
                chunks=job.chunks,
                hooks=CaptureHooks(self._serve, self._hold, self.limits.kv_bytes // self._decoder.token_bytes),
                prefixes=self._capture_prefixes,
            )
            job.result.set_result(records)
        except Exception as error:
            job.result.set_exception(error)
        finally:
            self._hold(0)

    def _hold(self, tokens: int) -> None:
        """Counts what a capture takes. Before each of its passes all requests end that fit beside its prefix."""
        self._captured_bytes = tokens * self._decoder.token_bytes


class _Left(Exception):
    """Raised where the client left during its fuse."""
