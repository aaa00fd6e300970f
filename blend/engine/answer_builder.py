"""A request from its submission to its end: first queued, then an answer in the making."""

import logging
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from blend.engine.detokenize import Detokenizer
from blend.engine.engine import Done, EngineRequest, Event, Failed, Finish, PlacedPrompt, Token
from blend.engine.sampling import Picked, Sampler, Sampling
from blend.engine.stops import StopStrings
from blend.fuse.prompt import PromptLayout
from blend.model.context import Context
from blend.model.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class QueuedRequest:
    """A request: what was asked and who listens. Ends once. The engine's thread alone calls all but `cancel`."""

    def __init__(
        self, request: EngineRequest, layout: PromptLayout, *, listen: Callable[[Event], None], capacity: int
    ) -> None:
        self.request = request
        self.layout = layout
        self.capacity = capacity  # tokens that its context holds at most
        self.cancelled = False
        self.over = False
        self._listen = listen
        self._born = time.perf_counter()

    @property
    def age_s(self) -> float:
        """Seconds since the request was handed in."""
        return time.perf_counter() - self._born

    @property
    def left_s(self) -> float:
        """Seconds that are left of those it was given."""
        within = self.request.within_s
        return math.inf if within is None else within - self.age_s

    def cancel(self) -> None:
        """Asks that the request end. May be called from any thread."""
        self.cancelled = True

    def tell(self, event: Event) -> None:
        """Hands an event on. Who fails to listen is taken for gone."""
        if self.over:
            return
        self.over = isinstance(event, Done | Failed)
        try:
            self._listen(event)
        except Exception as error:
            log.warning("a listener failed: its request ends", exc_info=error)
            self.cancelled = self.over = True

    def end(self, reason: Finish, *, text: str = "", generated: int = 0) -> None:
        """Ends the request; nothing follows."""
        self.tell(Done(reason, text, generated, self.age_s))


class AnswerText:
    """An answer's text while its tokens come, whoever chooses them; knows when it stops. Tells nobody."""

    def __init__(self, sampling: Sampling, tokenizer: Tokenizer) -> None:
        self.generated: list[int] = []
        self._stops = StopStrings(sampling.stop)
        self._text = Detokenizer(tokenizer, hidden=tokenizer.special)
        self._ends = frozenset[int]() if sampling.ignore_eos else tokenizer.stop_ids
        self._most = sampling.max_tokens

    def add(self, picked: Picked) -> Token | None:
        """The next token's event; None for one that ends the answer and says nothing."""
        self.generated.append(picked.token)
        if picked.token in self._ends:
            return None
        return Token(picked.token, self._stops.push(self._text.push(picked.token)).text, picked.logprob, picked.top)

    @property
    def end(self) -> Finish | None:
        """Why the answer ends here, if it does."""
        if self._stops.stopped or (self.generated and self.generated[-1] in self._ends):
            return "stop"
        return "length" if len(self.generated) >= self._most else None

    def finish(self, reason: Finish) -> tuple[Finish, str]:
        """The reason, and the text that was held back; half a character is not shown."""
        if reason == "cancelled":
            return reason, ""
        text = self._stops.push(self._text.finish()).text + self._stops.finish()
        return "stop" if self._stops.stopped else reason, text


class AnswerBuilder:
    """An answer in the making: picks tokens and tells of them. Knows no other request."""

    def __init__(self, queued: QueuedRequest, context: Context, *, tokenizer: Tokenizer, device: torch.device) -> None:
        sampling = queued.request.sampling
        self.queued = queued
        self.context = context
        self._sampler = Sampler(sampling, queued.layout.ids, device=device)
        self._text = AnswerText(sampling, tokenizer)

    @property
    def last(self) -> int:
        """The token that comes next into the context."""
        return self._text.generated[-1]

    @property
    def slot(self) -> int:
        """The slot where that token will stand."""
        return len(self.queued.layout.ids) + len(self._text.generated) - 1

    def begin(self, logits: Tensor) -> None:
        """Pick the first token, or hand the prompt over to whoever goes on with it."""
        receive = self.queued.request.receive
        if receive is None:
            self.take(logits)
        else:
            receive(PlacedPrompt(self.queued.layout.ids, self.context))
            self.end("length")

    def take(self, logits: Tensor) -> None:
        """Pick the next token from logits (V,), tell, and end where it ends."""
        token = self._text.add(self._sampler.pick(logits))
        if token is not None:
            self.queued.tell(token)
        if self._text.end is not None:
            self.end(self._text.end)
        elif self.slot + 1 >= self.queued.capacity:
            self.end("length")

    def end(self, reason: Finish) -> None:
        """Ends the answer with the text that was held back."""
        reason, text = self._text.finish(reason)
        self.queued.end(reason, text=text, generated=len(self._text.generated))
