"""A request from queue to end: its rank by size and wait, prefixes it reuses and keeps, stop strings, why it ends."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from blend.engine.engine import Done, EngineRequest, Event, Finish, PendingRequest, PlacedPrompt, Token
from blend.engine.sampling import Picked, Sampler, Sampling
from blend.errors import SamplingError
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import PromptLayout
from blend.run.context import Context
from blend.run.prefixes import Prefixes, Session
from blend.text.tokenizer import Detokenizer, Tokenizer

OVERTAKES = 8.0  # times its own time: so much later may come what passes a prompt


class StopStrings:
    """What leaves is the text up to the earliest place where a stop string begins, however the text arrives.

    A piece is held back only while it may still become a stop string. Where a longer one that began earlier is still
    possible, a complete one waits for it: so the result does not depend on where the text was cut.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """`stopped`: whether a stop string was reached, at the last in `finish`."""
        assert all(stops), "an empty string ends any text"
        self.stopped = False
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece of text; returns what may leave now. Behind a stop string everything is dropped."""
        if self.stopped:
            return ""
        self._held += text
        found, possible = self._found(), min(self._possible(), default=len(self._held))
        if found is not None and found <= possible:
            return self._stop_at(found)
        passed, self._held = self._held[:possible], self._held[possible:]
        return passed

    def finish(self) -> str:
        """End the text; returns what was held back and holds no stop string."""
        found = self._found()
        if found is not None:
            return self._stop_at(found)
        passed, self._held = self._held, ""
        return passed

    def _stop_at(self, place: int) -> str:
        passed, self._held, self.stopped = self._held[:place], "", True
        return passed

    def _found(self) -> int | None:
        """Where the first complete stop string begins."""
        places = [self._held.find(stop) for stop in self._stops]
        return min((place for place in places if place >= 0), default=None)

    def _possible(self) -> Iterator[int]:
        """The places from which all the text may be the beginning of a stop string: the first one for each."""
        for stop in self._stops:
            place = self._held.find(stop[0], max(0, len(self._held) - len(stop) + 1))
            while place >= 0:
                if stop.startswith(self._held[place:]):
                    yield place
                    break
                place = self._held.find(stop[0], place + 1)


class QueuedRequest(PendingRequest):
    """A request with its layout. The engine's thread alone calls all but `cancel`."""

    def __init__(
        self, request: EngineRequest, layout: PromptLayout, *, listen: Callable[[Event], None], capacity: int
    ) -> None:
        """Raises SamplingError where several answers are wanted, of which none is built here."""
        if request.sampling.choices > 1 and request.receiver is None:
            raise SamplingError(f"choices must be 1, this engine gives one answer, got {request.sampling.choices}")
        super().__init__(request, listen)
        self.layout = layout
        self.capacity = capacity  # tokens that its context holds at most
        self.session = request.of_session  # whose rows it goes on with, and to which it leaves its own
        self.rows = self._rows()  # tokens of the prompt that are to be computed, about

    @property
    def payer(self) -> str:
        """Who asked for it."""
        return self.request.payer

    def _rows(self) -> int:
        order, every = self.request.order, () if self.request.order.policy == "full" else self.layout.spans
        ratio = {"prefix": 1.0, "reuse": 0.0}.get(order.policy, order.ratio)
        kept = sum((each.stop - each.start) * (1.0 if each.exact else 1 - ratio) for each in every)
        return len(self.layout.ids) - int(kept)

    def rank(self, row_s: float) -> float:
        """The least goes first of one payer's: a prompt that is soon computed, or has waited long for its size.

        `row_s`: what a row takes. None that comes more than OVERTAKES times a prompt's own time later passes it.
        """
        return self.born + OVERTAKES * row_s * self.rows

    def begin(self, context: Context) -> BlendOrder:
        """How the prompt is to be fused into the context; whoever goes on with it hears of it from now on."""
        order, receiver = self.request.order, self.request.receiver
        if receiver is None:
            return order
        begin = partial(receiver.begin, PlacedPrompt(self.layout.ids, context))
        begin()
        return replace(order, final=receiver.final, again=begin)

    def expect(self, prefixes: Prefixes) -> None:
        """Counts what it may take over as computed."""
        owner, before = self.request.owner, 0
        if self.session:
            before = prefixes.tokens(self.layout.ids[:-1], owner=owner, session=self.session)
        self.rows = max(1, self.rows - (before or prefixes.tokens(self._shareable, owner=owner)))

    def restore(self, prefixes: Prefixes, context: Context) -> None:
        """Takes over what is kept of its session, or else of a prompt that began alike."""
        if self.session:
            prefixes.restore(self.layout.ids[:-1], context, owner=self.request.owner, session=self.session)
        if not context.placed:
            prefixes.restore(self._shareable, context, owner=self.request.owner)
        context.states.mark = self._beginning

    def keep(self, prefixes: Prefixes, context: Context) -> None:
        """Keeps what stands before the chunks, or else the prefix, for prompts that begin alike."""
        beginning, owner = self._beginning, self.request.owner
        if context.placed < beginning:
            prefixes.keep(self.layout.ids[:beginning], context, owner=owner, session=self.exact_session)

    @property
    def exact_session(self) -> Session | None:
        """The conversation that ends with what is exact of it, by whichever policy."""
        asked = self.request
        return Session(asked.payer, asked.session, "", asked.keep_s, asked.as_of) if asked.session else None

    @property
    def _shareable(self) -> tuple[int, ...]:
        """The tokens that may be taken over: up to the first chunk, and to the last token, which tells what follows."""
        if self.request.order.policy == "full" and not self.request.goes_on:
            return ()
        before = self.request.prompt.before_chunks
        return self.layout.ids[: len(self.layout.ids) - 1 if before is None else before]

    @property
    def _beginning(self) -> int:
        before = self.request.prompt.before_chunks
        return len(self.request.prompt.prefix) if before is None else before

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
        return Token(picked.token, self._stops.push(self._text.push(picked.token)), picked.logprob, picked.top)

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
        text = self._stops.push(self._text.finish()) + self._stops.finish()
        return "stop" if self._stops.stopped else reason, text


class AnswerBuilder:
    """An answer in the making: picks tokens and tells of them. Knows no other request."""

    def __init__(self, queued: QueuedRequest, context: Context, *, tokenizer: Tokenizer, device: torch.device) -> None:
        sampling = queued.request.sampling
        self.queued = queued
        self.context = context
        self._is_whole = False  # whether it came to an end that is no failure
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
        """Pick the first token, where nobody else goes on with the prompt."""
        if self.queued.request.receiver is None:
            self.take(logits)
        else:
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
        self._is_whole = True
        reason, text = self._text.finish(reason)
        self.queued.end(reason, text=text, generated=len(self._text.generated))

    def keep(self, prefixes: Prefixes) -> None:
        """Keeps prompt and answer for prompts that go on from it. Rows behind chunks may be off, and tell of these: the
        session alone gets them.
        """
        request, prompt = self.queued.request, self.queued.layout.ids
        is_plain = request.prompt.before_chunks is None
        session = self.queued.exact_session if is_plain else self.queued.session
        if self._is_whole and (self.queued.session or (is_plain and request.order.policy != "full")):
            computed = (*prompt, *self._text.generated)[: self.slot]
            least = 0 if is_plain else len(prompt) - 1  # so that the same turn once more gets it
            prefixes.keep(computed, self.context, owner=request.owner, session=session, least=least)
