"""Draws the next token (temperature, top-k, top-p, min-p, penalty, seed, logprobs); refuses values out of range."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from blend.errors import NotFinite, SamplingError

_COLDEST = 1e-30  # what is much lower is zero in float32


class LogitsProcessor(Protocol):
    """A rule over what may come next, such as a grammar. Asked before all else, once for each token."""

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        """Turns float32 logits (V,), after the tokens generated so far, into new ones: -inf forbids a token.

        The tensor given may be changed and returned.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a request wants of its answer. Refuses with `SamplingError` what makes no sense."""

    choices: int = 1  # answers to the one prompt; several where the engine says so
    max_tokens: int = 256
    temperature: float = 0.0  # 0 takes the likeliest token
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0  # of the likeliest token's probability, what a token has to have; 0 is off
    seed: int | None = None
    stop: tuple[str, ...] = ()
    repetition_penalty: float = 1.0
    logprobs: int | None = None  # 0: of the chosen token, n: of the n likeliest too
    ignore_eos: bool = False
    processor: LogitsProcessor | None = None

    def __post_init__(self) -> None:
        rules = (
            ("choices", self.choices >= 1, "at least 1"),
            ("max_tokens", 1 <= self.max_tokens < 2**31, "at least 1"),
            ("temperature", 0 <= self.temperature <= 2, "in [0, 2]; 0 is greedy"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]; 1 is off"),
            ("top_k", 0 <= self.top_k < 2**31, "at least 0; 0 is off"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]; 0 is off"),
            ("seed", self.seed is None or -(2**63) <= self.seed < 2**64, "an integer of 64 bits"),
            ("stop", len(self.stop) <= 16 and all(self.stop), "at most 16 strings, none of them empty"),
            ("repetition_penalty", 0.1 <= self.repetition_penalty <= 10, "in [0.1, 10]; 1 is off"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, "in [0, 20], or left out"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise SamplingError(f"{name} must be {rule}, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Picked:
    """A token and, where asked for, the model's own log probabilities, whatever was done to the logits afterwards."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # (token, log probability), the likeliest first


class Sampler:
    """The choices of one request. The same seed and logits give the same tokens, whatever runs beside it."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], *, device: torch.device) -> None:
        self._sampling = sampling
        self._ids: list[int] = []
        self._penalizes = sampling.repetition_penalty != 1
        occurred = sorted(set(prompt)) if self._penalizes else []
        self._occurred = torch.tensor(occurred, dtype=torch.int64, device=device)
        self._random = torch.Generator(device)
        self._random.manual_seed(secrets.randbits(63) if sampling.seed is None else sampling.seed)

    @property
    def ids(self) -> Sequence[int]:
        """The tokens picked so far."""
        return self._ids

    def pick(self, logits: Tensor) -> Picked:
        """Choose from logits (V,) of any float type, which stay as they are. Raises `NotFinite`."""
        own = logits.float()
        scores = self._processed(own)
        token = int(scores.argmax()) if self._sampling.temperature == 0 else self._draw(scores)
        self._ids.append(token)
        if self._penalizes:
            self._occurred = torch.cat([self._occurred, self._occurred.new_tensor([token])])
        return self._picked(token, own)

    def _processed(self, own: Tensor) -> Tensor:
        """The logits after processor and penalty. Their largest is finite."""
        self._check(own, "the model")
        scores, processor = own, self._sampling.processor
        if processor is not None:
            name = f"the logits processor {type(processor).__qualname__}"
            scores = processor(self._ids, own.clone()).float()
            assert scores.shape == own.shape, f"{name} made {tuple(scores.shape)} of {tuple(own.shape)} logits"
            self._check(scores, name)
        return self._penalize(scores) if self._penalizes else scores

    def _check(self, scores: Tensor, source: str) -> None:
        largest = float(scores.max())  # NaN if any is, -inf if all are
        if not math.isfinite(largest):
            what = "allows no token, all logits are -inf" if largest == -math.inf else f"gave a logit of {largest}"
            raise NotFinite(f"{source} {what}, at generated token {len(self._ids) + 1}")

    def _penalize(self, scores: Tensor) -> Tensor:
        """Make what has occurred less likely, as in the CTRL paper: divided above zero, multiplied below."""
        penalty = self._sampling.repetition_penalty
        ids = self._occurred[self._occurred < len(scores)]  # a model may embed more tokens than it predicts
        met = scores[ids]  # some ids twice: both then write the same
        return scores.index_put((ids,), torch.where(met > 0, met / penalty, met * penalty))

    def _draw(self, scores: Tensor) -> int:
        # The largest becomes 0 first: then no temperature, however low, makes infinities of it.
        weights = ((scores - scores.max()) / max(self._sampling.temperature, _COLDEST)).exp()
        if self._sampling.top_k == 0 and self._sampling.top_p == 1:
            return self._throw(weights)
        ids, weights = self._candidates(weights)
        return int(ids[self._throw(weights)])

    def _candidates(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that top-k and top-p leave and their weights, the likeliest first."""
        top_k, top_p, size = self._sampling.top_k, self._sampling.top_p, len(weights)
        if top_k:
            weights, ids = weights.topk(min(top_k, size))
            total = weights.sum(dtype=torch.float64)
        else:
            total = weights.sum(dtype=torch.float64)
            # Below this, all together weigh less than what top-p leaves out: none of them needs sorting.
            ids = (weights >= (1 - top_p) * total / size).nonzero()[:, 0]
            weights, order = weights[ids].sort(descending=True, stable=True)
            ids = ids[order]
        reached = weights.cumsum(0, dtype=torch.float64)
        kept = 1 + int((reached[:-1] < top_p * total).sum())
        return ids[:kept], weights[:kept]

    def _throw(self, weights: Tensor) -> int:
        """Draws a place, each as likely as its weight, of which the largest is 1; those below min-p weigh nothing.

        The draw is in (0, 1]: a weight of zero is never hit.
        """
        reached = weights.where(weights >= self._sampling.min_p, 0.0).cumsum(0, dtype=torch.float64)
        draw = 1 - torch.rand(1, dtype=torch.float64, device=weights.device, generator=self._random)
        return int(torch.searchsorted(reached, draw * reached[-1]))

    def _picked(self, token: int, own: Tensor) -> Picked:
        count = self._sampling.logprobs
        if count is None:
            return Picked(token)
        logprobs = own.log_softmax(0)
        best = logprobs.topk(min(count, len(own)))
        pairs = zip(best.indices.cpu(), best.values.cpu(), strict=True)
        top = tuple((int(each), float(logprob)) for each, logprob in pairs if logprob > -math.inf)
        return Picked(token, float(logprobs[token]), top)
