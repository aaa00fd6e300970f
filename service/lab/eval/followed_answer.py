"""The answer that all points are made to give, and numbers along it: KL divergence, nats, margin. Knows no prompts."""

from dataclasses import dataclass

import torch
from torch import Tensor

WORST = -100.0  # a log probability below which nothing is any worse, and that of what is no number


@dataclass(frozen=True, slots=True)
class Divergence:
    """The distance from a reference over the answer that is followed. `kl`: mean KL from it, in nats.

    `top1`: the share where both prefer the same token.
    """

    kl: float
    top1: float


@dataclass(frozen=True, slots=True)
class FollowedAnswer:
    """The answer that all points are made to give. `tokens` of it, the first `skip` of which are not scored.

    `asks`: whether the model's own answers are compared. `known`: whether it is the known answer, else full prefill's.
    """

    tokens: tuple[int, ...]
    skip: int = 0
    asks: bool = False
    known: bool = False
    foils: tuple[tuple[int, ...], ...] = ()

    def scored(self, logprobs: Tensor) -> Tensor:
        """(tokens, V): the log probabilities at the places that count."""
        return logprobs[self.skip : len(self.tokens)]

    def nats(self, logprobs: Tensor) -> float | None:
        """The negative log likelihood of the known answer, in nats for each token that is scored."""
        if not self.known:
            return None
        ids = torch.tensor(self.tokens[self.skip :], device=logprobs.device)
        return -float(self.scored(logprobs).gather(-1, ids[:, None]).clamp(min=WORST).mean())

    def margin(self, logprobs: Tensor) -> float | None:
        """The nats by which the known answer is likelier than the likeliest foil, where the two part."""
        found: list[float] = []
        for foil in self.foils:
            pairs = enumerate(zip(self.tokens, foil, strict=False))
            at = next((at for at, (a, b) in pairs if a != b), None)
            if at is not None:
                there = logprobs[at].clamp(min=WORST)
                found.append(float(there[self.tokens[at]] - there[foil[at]]))
        return min(found, default=None)


def divergence(wanted: Tensor, got: Tensor) -> Divergence:
    """The divergence of the log probabilities `got` (tokens, V) from those `wanted` at the same places."""
    a, b = wanted.clamp(min=WORST), got.clamp(min=WORST)
    kl = (a.exp() * (a - b)).sum(-1).mean()
    return Divergence(float(kl), float((a.argmax(-1) == b.argmax(-1)).float().mean()))


def entropy(logprobs: Tensor) -> float:
    """The mean entropy of log probabilities (tokens, V), in nats."""
    known = logprobs.clamp(min=WORST)
    return float(-(known.exp() * known).sum(-1).mean())
