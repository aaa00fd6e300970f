"""Carries out a policy's choice: scores cached tokens by attention or deviation and takes the best. Runs no rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from blend.fuse.policy import QuestionProbe
from blend.fuse.prompt import ChunkSpan


class AttentionChoice:
    """Chooses the slots that the question attends to most."""

    def __init__(self, slots: int, *, device: torch.device) -> None:
        self._weights = torch.zeros(slots, device=device)

    def add(self, weights: Tensor) -> None:
        """Add a layer's weights of the first slots."""
        self._weights[: len(weights)] += weights

    def chosen(self, free: Tensor, probe: QuestionProbe, *, spans: Sequence[ChunkSpan]) -> Tensor:
        """Flags as many of the free slots as the probe keeps; `spans` are cut into its stretches."""
        return _highest(_with_stretches(self._weights.cpu(), spans, tokens=probe.stretch), free, count=probe.keep)


class DeviationChoice:
    """Chooses the slots whose fresh keys and values are farthest from cached ones, in float32, by the layer's scale."""

    def __init__(self, slots: int, *, device: torch.device) -> None:
        self._off = [torch.zeros(slots, device=device) for _ in range(2)]
        self._scale = [torch.zeros((), device=device) for _ in range(2)]

    def add(self, places: Tensor, *, fresh: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor]) -> None:
        """Add the keys and values (H, T, D) of some slots."""
        for part in range(2):
            was = old[part].float()
            self._off[part][places] = (fresh[part].float() - was).square().sum((0, 2))
            self._scale[part] += was.square().sum()

    def chosen(self, free: Tensor, *, keep: int) -> Tensor:
        """Flags so many of the free slots. The only place that waits for an accelerator."""
        tiny = torch.finfo(torch.float32).tiny
        relative = [off / scale.clamp(min=tiny) for off, scale in zip(self._off, self._scale, strict=True)]
        return _highest((relative[0] + relative[1]).cpu(), free, count=keep)


def _with_stretches(scores: Tensor, spans: Sequence[ChunkSpan], *, tokens: int) -> Tensor:
    """Adds to each score the mean of its stretch: `tokens` of a chunk in a row, fewer at its end."""
    number = torch.zeros(len(scores), dtype=torch.long)
    count = 1  # all that is in no chunk
    for span in spans:
        number[span.start : span.stop] = count + torch.arange(span.stop - span.start) // tokens
        count += -(-(span.stop - span.start) // tokens)
    means = torch.zeros(count).index_add_(0, number, scores) / number.bincount(minlength=count).clamp(min=1)
    return scores + means[number]


def _highest(scores: Tensor, free: Tensor, *, count: int) -> Tensor:
    """Flags the free slots of the highest scores; of equal ones the first, on any device."""
    scores, count = scores.masked_fill(~free, -1.0).nan_to_num(), min(count, int(free.sum()))
    least = scores.topk(count).values[-1] if count else torch.inf
    chosen = scores > least
    chosen[(scores == least).nonzero()[: count - int(chosen.sum()), 0]] = True
    return chosen
