"""Changes the likelihood of tokens: frequency and presence penalties, logit_bias; rules that vLLM alone obeys."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from blend.engine.sampling import LogitsProcessor
from service.errors import Invalid, Unavailable

Fields = Mapping[str, object]


class Penalties:
    """Makes less likely what the answer holds already: by `frequency` for each time, by `presence` once."""

    def __init__(self, *, frequency: float, presence: float) -> None:
        self._frequency = frequency
        self._presence = presence
        self._counts: Tensor | None = None  # (V,), of the ids read so far
        self._read = 0

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        if self._counts is None:
            self._counts = torch.zeros_like(logits)
        fresh = torch.tensor(ids[self._read :], dtype=torch.int64, device=logits.device)
        self._counts.index_add_(0, fresh, torch.ones_like(fresh, dtype=logits.dtype))
        self._read = len(ids)
        return logits - self._frequency * self._counts - self._presence * (self._counts > 0)

    @property
    def fields(self) -> Fields:
        """The equivalent fields of OpenAI's completions."""
        return {"frequency_penalty": self._frequency, "presence_penalty": self._presence}


class LogitBias:
    """Adds to the logits of some tokens."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._biases = dict(biases)
        self._placed: tuple[Tensor, Tensor] | None = None  # ids and what is added, on the logits' device

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        if self._placed is None:
            self._placed = self._place(logits)
        return logits.index_add(0, *self._placed)

    @property
    def fields(self) -> Fields:
        """The equivalent field of OpenAI's completions."""
        return {"logit_bias": {str(token): bias for token, bias in self._biases.items()}}

    @property
    def highest(self) -> int:
        return max(self._biases)

    def _place(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        strange = [token for token in self._biases if not 0 <= token < len(logits)]
        if strange:
            reason = f"there is no token {strange[0]}, the model has {len(logits)}: leave it out of logit_bias"
            raise Invalid(reason, field="logit_bias")
        ids = torch.tensor([*self._biases], dtype=torch.int64, device=logits.device)
        return ids, torch.tensor([*self._biases.values()], dtype=logits.dtype, device=logits.device)


class GeneratorRule:
    """A rule that a generator alone obeys, as its `fields` say; our own engine fails with it."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        raise Unavailable(f"only the generator obeys {', '.join(self.fields)}: ask again when it is there")


class ProcessorChain:
    """Several processors, each behind the one before."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        self.processors = tuple(processors)

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        for processor in self.processors:
            logits = processor(ids, logits)
        return logits


def chained(*processors: LogitsProcessor | None) -> LogitsProcessor | None:
    """All given processors as one, in this order; None for none. A grammar goes last: no other may lift its bans."""
    given = [processor for processor in processors if processor is not None]
    return ProcessorChain(given) if len(given) > 1 else given[0] if given else None


def needs_generator(processor: LogitsProcessor | None) -> bool:
    """Whether there is a rule that our own engine does not know."""
    several = processor.processors if isinstance(processor, ProcessorChain) else (processor,)
    return any(isinstance(each, GeneratorRule) for each in several)


def openai_fields(processor: LogitsProcessor | None, *, vocabulary: int) -> Fields | None:
    """The fields by which OpenAI's completions do the same; None where none do, or a token is unknown."""
    match processor:
        case None:
            return {}
        case ProcessorChain(processors=several):
            parts = [openai_fields(each, vocabulary=vocabulary) for each in several]
            return None if None in parts else {name: given for part in parts if part for name, given in part.items()}
        case LogitBias() if processor.highest < vocabulary:
            return processor.fields
        case Penalties() | GeneratorRule():
            return processor.fields
        case _:
            return None
