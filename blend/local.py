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
from dataclasses import dataclass
from threading import Condition, Thread

import torch

from blend.capture import capture
from blend.context import Slots
from blend.decoder import Decoder
from blend.engine import Event, Ready, Request
from blend.errors import Busy, PromptError
from blend.fingerprint import Fingerprint
from blend.fuse import Order, fuse
from blend.prefixes import Prefixes
from blend.prompt import lay_out
from blend.running import Running
from blend.step import Segment
from blend.tokens import Tokenizer
from store.record import Record

log = logging.getLogger(__name__)

READERS = 2  # threads that bring records


@dataclass(frozen=True, slots=True)
class Limits:
    """`kv_bytes` holds the contexts of all running requests; prefixes of prompts and of captures are kept besides."""

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
        self, decoder: Decoder, tokenizer: Tokenizer, *, fingerprint: Fingerprint, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._prefixes = Prefixes(self.limits.prefix_bytes)
        self._capture_prefixes = Prefixes(self.limits.prefix_bytes)
        self._readers = ThreadPoolExecutor(READERS, "kvweave-read")
        self._changed = Condition()
        self._waiting: deque[Running] = deque()
        self._captures: deque[_Capture] = deque()
        self._closing = False
        self._running: list[Running] = []
        self._step_s = 0.0
        self._stepped = 0.0
        self._threads = torch.get_num_threads()
        self._thread = Thread(target=self._work, name="kvweave-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, listen: Callable[[Event], None]) -> Running:
        """See `Engine.submit`."""
        layout = lay_out(
            request.prompt,
            fingerprint=self._fingerprint,
            window=self._decoder.window,
            vocabulary=self._decoder.vocabulary,
        )
        Order(request.policy, request.ratio).check()
        capacity = min(len(layout.ids) + request.sampling.max_tokens, self._decoder.window + 1)
        needed = capacity * self._decoder.token_bytes
        if needed > self.limits.kv_bytes:
            raise PromptError(
                f"{len(layout.ids)} prompt tokens and up to {request.sampling.max_tokens} new ones need {needed} bytes "
                f"of KV, the budget is {self.limits.kv_bytes}: leave out chunks, lower max_tokens or raise the budget"
            )
        entry = Running(request, layout, listen=listen, capacity=capacity)
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
                for entry in [*self._waiting, *self._running]:
                    entry.fail(error)
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
        """Until no request wants anything. Runs inside a capture, too."""
        while True:
            entry = self._admit()
            if entry is not None:
                self._start(entry)
            if self._running:
                self._step()
            elif entry is None:
                return

    def _admit(self) -> Running | None:
        with self._changed:
            gone = [entry for entry in self._waiting if entry.cancelled]
            for entry in gone:
                self._waiting.remove(entry)
        for entry in gone:
            entry.end("cancelled")
        with self._changed:
            used = sum(entry.capacity for entry in self._running) * self._decoder.token_bytes
            if not self._waiting or len(self._running) >= self.limits.running:
                return None
            if used + self._waiting[0].capacity * self._decoder.token_bytes > self.limits.kv_bytes:
                return None
            return self._waiting.popleft()

    def _start(self, entry: Running) -> None:
        try:
            self._fuse(entry)
        except _Left:
            entry.end("cancelled")
        except Exception as error:
            log.info("request failed", exc_info=error)
            entry.fail(error)
        if not entry.over:
            self._running.append(entry)

    def _fuse(self, entry: Running) -> None:
        request, prefix = entry.request, entry.request.prompt.prefix
        queued_s = entry.age_s
        entry.context = self._decoder.context(entry.capacity)
        if request.policy != "full":
            self._prefixes.restore(prefix, entry.context)
        order = Order(request.policy, request.ratio, self.limits.piece_rows, lambda: self._let_others(entry))
        fused = fuse(self._decoder, entry.layout, context=entry.context, order=order, readers=self._readers)
        if not entry.context.exact:
            self._prefixes.keep(prefix, entry.context)
        entry.begin(Ready(fused.report, queued_s), self._tokenizer, device=self._decoder.device)
        entry.take(fused.logits)

    def _let_others(self, entry: Running) -> None:
        """Between layers of a fuse: a step of the others, when the fuse had as much time as their last step took."""
        if entry.cancelled:
            raise _Left
        if self._running and time.perf_counter() - self._stepped >= self._step_s:
            self._step()

    def _step(self) -> None:
        """One token for each running request."""
        for entry in self._running:
            if entry.cancelled:
                entry.end("cancelled")
        self._running = [entry for entry in self._running if not entry.over]
        if not self._running:
            return
        start = time.perf_counter()
        batch = list(self._running)
        try:
            self._advance(batch)
        except Exception as error:
            log.error("a decoding step failed", exc_info=error)
            for entry in batch:
                if not entry.over:
                    entry.fail(error)
        self._running = [entry for entry in self._running if not entry.over]
        self._stepped = time.perf_counter()
        self._step_s = self._stepped - start

    def _advance(self, batch: list[Running]) -> None:
        device = self._decoder.device
        places = torch.tensor([entry.position for entry in batch], device=device)
        segments: list[Segment] = []
        for row, entry in enumerate(batch):
            assert entry.context is not None
            segments.append(Segment(entry.context, Slots(places[row : row + 1], entry.position, entry.position), row))
        ids = torch.tensor([entry.last_id for entry in batch], device=device)
        logits = self._decoder.advance(segments, ids)
        assert logits is not None
        for row, entry in enumerate(batch):
            try:
                entry.take(logits[row])
            except Exception as error:
                log.info("request failed", exc_info=error)
                entry.fail(error)

    def _run_capture(self, job: _Capture) -> None:
        if not job.result.set_running_or_notify_cancel():
            return
        try:
            records = capture(
                self._decoder, job.prefix, chunks=job.chunks, between=self._serve, prefixes=self._capture_prefixes
            )
            job.result.set_result(records)
        except Exception as error:
            job.result.set_exception(error)


class _Left(Exception):
    """The client left during its fuse."""
