"""One answer in the making: picks tokens, makes text of them, knows when to stop. Knows no other request."""

import logging
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from blend.context import Context
from blend.detokenize import Detokenizer
from blend.engine import Done, Event, Failed, Finish, Ready, Request, Token
from blend.prompt import Layout
from blend.sampling import Sampler
from blend.stops import StopStrings
from blend.tokens import Tokenizer

log = logging.getLogger(__name__)


class Running:
    """From submission to its end. The engine's thread alone calls all but `cancel`."""

    def __init__(self, request: Request, layout: Layout, *, listen: Callable[[Event], None], capacity: int) -> None:
        self.request = request
        self.layout = layout
        self.capacity = capacity  # tokens that its context holds at most
        self.context: Context | None = None
        self.cancelled = False
        self.last_id = 0
        self.over = False
        self._listen = listen
        self._born = time.perf_counter()
        self._generated: list[int] = []

    def cancel(self) -> None:
        """May be called from any thread."""
        self.cancelled = True

    @property
    def position(self) -> int:
        """The slot that the last token will take."""
        return len(self.layout.ids) + len(self._generated) - 1

    @property
    def age_s(self) -> float:
        """Seconds since it was handed in."""
        return time.perf_counter() - self._born

    def begin(self, ready: Ready, tokenizer: Tokenizer, *, device: torch.device) -> None:
        """The prompt is in place."""
        sampling = self.request.sampling
        self._sampler = Sampler(sampling, self.layout.ids, device=device)
        self._stops = StopStrings(sampling.stop)
        self._text = Detokenizer(tokenizer, hidden=tokenizer.special)
        self._ends: Sequence[int] = () if sampling.ignore_eos else tuple(tokenizer.stop_ids)
        self._tell(ready)

    def take(self, logits: Tensor) -> None:
        """Pick the next token from logits (V,), tell, and end where it ends."""
        picked = self._sampler.pick(logits)
        self._generated.append(picked.token)
        self.last_id = picked.token
        if picked.token in self._ends:
            self.end("stop")
            return
        out = self._stops.push(self._text.push(picked.token))
        self._tell(Token(picked.token, out.text, picked.logprob, picked.top))
        if out.stopped:
            self.end("stop")
        elif len(self._generated) >= self.request.sampling.max_tokens or self.position + 1 >= self.capacity:
            self.end("length")

    def end(self, reason: Finish) -> None:
        """Tell the end, with the text that was held back."""
        self.over = True
        rest = ""
        if self._generated and reason != "cancelled":
            rest = self._stops.push(self._text.finish()).text + self._stops.finish()
            reason = "stop" if self._stops.stopped else reason
        self.context = None
        self._tell(Done(reason, rest, len(self._generated), self.age_s))

    def fail(self, error: Exception) -> None:
        """Tell that it is over."""
        self.over = True
        self.context = None
        self._tell(Failed(error))

    def _tell(self, event: Event) -> None:
        try:
            self._listen(event)
        except Exception as error:
            log.warning("a listener failed: its request is cancelled", exc_info=error)
            self.cancelled = True
            self._listen = _nobody


def _nobody(event: Event) -> None:
    return None
