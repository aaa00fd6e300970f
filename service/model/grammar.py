"""Answers that obey a JSON schema: forbids every token that would break it. Knows no request and no model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray
from torch import Tensor

from blend.text.tokenizer import Tokenizer
from retriever.documents import Json
from service.errors import Invalid
from service.model.grammar_parser import GRAMMAR_FUEL
from service.model.schema_check import FIELD, checked_grammar

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
        checked, vocabulary = checked_grammar(schema), self._vocabulary
        if vocabulary.tokens is None:
            raise Invalid("the model has no token that ends an answer: leave out the JSON schema", field=FIELD)
        matcher = LLMatcher(vocabulary.tokens, checked.grammar, log_level=0, limits=GRAMMAR_FUEL)
        constraint = Constraint(matcher, vocabulary, nbytes=checked.nbytes)
        constraint.allowed()  # some schemas turn out to fit nothing only here
        return constraint


class Constraint:
    """One answer's way through its grammar. When nothing more fits, only the end does. `nbytes`: what it takes."""

    def __init__(self, matcher: LLMatcher, vocabulary: "_Vocabulary", *, nbytes: int) -> None:
        self.nbytes = nbytes
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._read = 0

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        """See `LogitsProcessor`."""
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
            return self._vocabulary.ends
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        bits = np.unpackbits(packed, count=len(self._vocabulary.usable), bitorder="little")
        allowed = bits.view(np.bool_) & self._vocabulary.usable
        if not allowed.any():
            raise Invalid("the model has no token for what the JSON schema wants next", field=FIELD)
        return allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            message = self._matcher.get_error().partition("\n<")[0]  # what follows is the library's own state
            reason = " ".join(message.split()) if " " in message else "nothing fits it"
            if reason.lower().startswith(INTRICATE):
                reason += "; use shorter patterns, fewer optional properties and alternatives, and smaller bounds"
            raise Invalid(f"the JSON schema cannot be followed: {reason}", field=FIELD)


class _Vocabulary:
    """The tokens that the model can write, and those that end an answer. Control tokens are never part of one."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        ends = sorted(token for token in tokenizer.stop_ids if token < size)
        control = sorted(token for token in {*tokenizer.control, *ends} if token < size)
        pieces = [tokenizer.token_bytes(token) for token in range(size)]  # empty for an id that no text has
        self.tokens: LLTokenizer | None = None  # for a model without an end token
        if ends:
            spelled = _Spelled(tokenizer, tokens=pieces, special_token_ids=control, eos_token_id=ends[0])
            self.tokens = LLTokenizer(TokenizerWrapper(spelled), n_vocab=size, eos_token=ends)
        self.ends = np.zeros(size, np.bool_)
        self.ends[ends] = True
        self.usable = np.array([len(piece) > 0 for piece in pieces], np.bool_)
        self.usable[control] = False
        self.usable |= self.ends


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
