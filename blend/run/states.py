"""What linear-attention, convolution and state-space layers keep: one state of all tokens before a slot, by request.

Such a layer runs the rows of a pass in order, each behind the one before, whatever slots lie between: cached tokens
that no pass runs are unknown to it. Knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Parts = tuple[Tensor | None, ...]  # (N, ...) each, of N requests; None where the layer has no such part


@dataclass(frozen=True, slots=True)
class LayerState:
    """A layer's state of the tokens that it ran, of which the slot `first` was the first, and all are before `stop`."""

    first: int
    stop: int
    parts: Parts

    def copy(self) -> "LayerState":
        return LayerState(self.first, self.stop, tuple(None if each is None else each.clone() for each in self.parts))

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.parts if each is not None)


class ContextStates:
    """The states of one request by layer, as they are now, and as they were at the slot `mark`, behind which a prompt
    may begin again.
    """

    def __init__(self, mark: int = 0, marked: dict[int, LayerState] | None = None) -> None:
        self.mark = mark
        self._marked = {} if marked is None else marked
        self._now: dict[int, LayerState] = {}

    def before(self, layer: int, slot: int) -> LayerState | None:
        """The state that a row at this slot comes behind, which may be written to; None where it is the first row."""
        now, marked = self._now.get(layer), self._marked.get(layer)
        if now is not None and now.stop <= slot:
            return now
        if marked is not None and marked.stop <= slot:
            return marked.copy()
        assert now is None or slot <= now.first, f"layer {layer} stopped at slot {now.stop}, none goes on at {slot}"
        return None

    def keep(self, layer: int, state: LayerState) -> None:
        """Take a layer's state as it is now."""
        self._now[layer] = state
        if state.stop == self.mark:
            self._marked[layer] = state.copy()

    def at_mark(self) -> "ContextStates":
        """The states at the mark, shared: whoever begins behind them writes to copies."""
        return ContextStates(self.mark, self._marked)

    @property
    def nbytes(self) -> int:
        """The bytes at the mark."""
        return sum(each.nbytes for each in self._marked.values())


def stacked(states: Sequence[LayerState | None]) -> Parts | None:
    """The parts of several requests in one batch; None where none of them has a state, zeros for who has none."""
    known = next((each for each in states if each is not None), None)
    if known is None or len(states) == 1:
        return known and known.parts
    return tuple(
        None
        if part is None
        else torch.cat([torch.zeros_like(part) if each is None else _part(each, at) for each in states])
        for at, part in enumerate(known.parts)
    )


def _part(state: LayerState, at: int) -> Tensor:
    part = state.parts[at]
    assert part is not None
    return part
