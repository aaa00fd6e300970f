"""Forbids every token that would break a JSON schema or a tool's call, or begin a call where none may be made."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray
from torch import Tensor

from blend.text.call_frame import CallFrame
from blend.text.tokenizer import Tokenizer
from retriever.documents import Json
from service.errors import Invalid
from service.model.call_offer import FIELD as CALLS
from service.model.call_offer import CallOffer, CallStart
from service.model.grammar_bytes import GRAMMAR_FUEL
from service.model.schema_grammar import FIELD, bytes_of, check_size, checked_grammar, json_grammar

INTRICATE = ("lexer error", "parser error", "initial lexer", "grammar size")  # llguidance's message beyond a limit


class Grammars:
    """Grammars over one model's tokens; `vocabulary` is how many logits it gives. Any thread may ask.

    Preparing the vocabulary takes up to a second in which no other thread works; each grammar then some milliseconds.
    None is cached, so that timing does not reveal whether another client used the same schema.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._vocabulary = _Vocabulary(tokenizer, vocabulary)

    def processor(self, schema: Json) -> "Constraint":
        """The processor for one answer that obeys the schema; {}: any JSON object. Raises `Invalid` with the reason.

        Other threads go on meanwhile, but a schema may take seconds of this one.
        """
        checked = checked_grammar(schema)
        constraint = Constraint(self._matcher(checked.grammar), self._vocabulary, nbytes=checked.nbytes)
        constraint.allowed()  # some schemas turn out to fit nothing only here
        return constraint

    def calls(self, offer: CallOffer, frame: CallFrame) -> "Constraint | LateConstraint":
        """The processor for one answer that calls tools, or may, as `processor` makes one for a schema."""
        frame = frame if offer.is_needed else frame.behind_text
        vocabulary, controls = self._vocabulary, frame.controls
        try:
            check_size(offer.schema)
            nbytes = bytes_of(offer.grammar(frame, spelled=True))
        except Invalid as error:
            raise Invalid(f"the parameters of all tools together: {error}", field=CALLS) from None
        constraint = Constraint(
            self._matcher(offer.grammar(frame)), vocabulary, nbytes=nbytes, field=CALLS, controls=controls
        )
        try:
            constraint.allowed()
        except Invalid:
            self._check_each(offer)
            raise
        if offer.is_needed:
            return constraint
        return LateConstraint(constraint, CallStart(frame, vocabulary.tokenizer), pieces=vocabulary.pieces)

    def _check_each(self, offer: CallOffer) -> None:
        """Raises Invalid for the first function whose parameters alone cannot be followed."""
        for name, schema in offer.functions.items():
            try:
                Constraint(self._matcher(json_grammar(schema)), self._vocabulary, nbytes=0).allowed()
            except Invalid as error:
                raise Invalid(f"the parameters of the tool {name!r}: {error}", field=CALLS) from None

    def _matcher(self, grammar: str) -> LLMatcher:
        if self._vocabulary.tokens is None:
            raise Invalid("the model has no token that ends an answer: leave out the JSON schema", field=FIELD)
        return LLMatcher(self._vocabulary.tokens, grammar, log_level=0, limits=GRAMMAR_FUEL)


class Constraint:
    """One answer's way through its grammar. When nothing more fits, only the end does. `nbytes`: what it takes.

    What is certain to follow is written in the tokens that the model's tokenizer makes of it. `controls`: the control
    tokens that the grammar has; `field`: where in a request it comes from.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary: "_Vocabulary",
        *,
        nbytes: int,
        field: str = FIELD,
        controls: frozenset[int] = frozenset(),
    ) -> None:
        self.nbytes = nbytes
        self._matcher = matcher
        self._ends = vocabulary.ends
        self._usable = vocabulary.usable_with(controls) if controls else vocabulary.usable
        self._field = field
        self._read = 0

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        self._follow(ids[self._read :])
        self._read = len(ids)
        allowed = torch.as_tensor(self.allowed(), device=logits.device)
        return logits.masked_fill_(~allowed, -torch.inf)

    def _follow(self, ids: Sequence[int]) -> None:
        for token in ids:
            if not self._matcher.is_stopped():
                self._matcher.consume_token(token)

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, (V,). Raises `Invalid` where none can."""
        self._check()
        if self._matcher.is_stopped():
            return self._ends
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        bits = np.unpackbits(packed, count=len(self._usable), bitorder="little")
        allowed = bits.view(np.bool_) & self._usable
        certain = self._matcher.compute_ff_tokens()[:1]
        if certain and certain[0] < len(allowed) and allowed[certain[0]]:
            return np.arange(len(allowed)) == certain[0]
        if not allowed.any():
            raise Invalid("the model has no token for what the JSON schema wants next", field=self._field)
        return allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            message = self._matcher.get_error().partition("\n<")[0]  # what follows is the library's own state
            reason = " ".join(message.split()) if " " in message else "nothing fits it"
            if reason.lower().startswith(INTRICATE):
                reason += "; use shorter patterns, fewer optional properties and alternatives, and smaller bounds"
            raise Invalid(f"the JSON schema cannot be followed: {reason}", field=self._field)


class LateConstraint:
    """A constraint of what an answer calls, while all else that it says is free."""

    def __init__(self, constraint: Constraint, start: CallStart, *, pieces: Sequence[bytes]) -> None:
        self.nbytes = constraint.nbytes
        self._constraint = constraint
        self._start = start
        self._pieces = pieces
        self._read = 0

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        self._start.read(ids[self._read :])
        self._read = len(ids)
        if self._start.begun is not None:
            return self._constraint(ids[self._start.begun :], logits)
        longer = self._longer_than(self._start.awaited)
        if not longer:
            return logits
        bound = self._constraint(ids, logits.clone())
        logits[longer] = bound[longer]
        return logits

    def _longer_than(self, awaited: bytes) -> list[int]:
        """The tokens with which a call would begin and go on at once: in them it is bound already."""
        if not awaited:
            return []
        pieces = enumerate(self._pieces)
        return [token for token, piece in pieces if piece.startswith(awaited) and len(piece) > len(awaited)]


class CallBan:
    """A rule that an answer begins no call, where its frame has a control token to begin with."""

    nbytes = 0

    def __init__(self, frame: CallFrame) -> None:
        self._control = frame.control

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        if self._control is not None and self._control < len(logits):
            logits[self._control] = -torch.inf
        return logits


class _Vocabulary:
    """The tokens that the model can write, and those that end an answer. Control tokens are never part of one."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        ends = sorted(token for token in tokenizer.stop_ids if token < size)
        control = sorted(token for token in {*tokenizer.control, *ends} if token < size)
        self.tokenizer = tokenizer
        self.pieces = [tokenizer.token_bytes(token) for token in range(size)]  # empty for an id that no text has
        self.tokens: LLTokenizer | None = None  # for a model without an end token
        if ends:
            spelled = _Spelled(tokenizer, tokens=self.pieces, special_token_ids=control, eos_token_id=ends[0])
            self.tokens = LLTokenizer(TokenizerWrapper(spelled), n_vocab=size, eos_token=ends)
        self.ends = np.zeros(size, np.bool_)
        self.ends[ends] = True
        self.usable = np.array([len(piece) > 0 for piece in self.pieces], np.bool_)
        self.usable[control] = False
        self.usable |= self.ends

    def usable_with(self, controls: frozenset[int]) -> NDArray[np.bool_]:
        """The tokens for answers that have these control tokens too."""
        usable = self.usable.copy()
        usable[[token for token in controls if token < len(usable)]] = True
        return usable


@dataclass(frozen=True, slots=True)
class _Spelled:
    """A tokenizer as llguidance wants one. Its own reading of tokenizer.json gets Unigram and Metaspace wrong."""

    tokenizer: Tokenizer
    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None

    def __call__(self, text: str | bytes) -> list[int]:
        return self.tokenizer.encode_text(text if isinstance(text, str) else text.decode("utf-8", "replace"))
