"""What linear-attention, convolution and state-space layers keep: one state of all tokens before a slot, by request.

Such a layer runs the rows of a pass in order, each behind the one before, whatever slots lie between: cached tokens
that no pass runs are unknown to it. Knows no model.
"""

from collections.abc import Iterator, Mapping, Sequence
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

    def like(self, device: torch.device) -> "LayerState":
        """One of the same tokens, with room for the parts and nothing in it."""
        parts = tuple(None if each is None else torch.empty_like(each, device=device) for each in self.parts)
        return LayerState(self.first, self.stop, parts)


class ContextStates:
    """The states of one request by layer, as they are now, as it began, and as they were at the slot `mark`; behind the
    last two a prompt may begin again.
    """

    def __init__(self, begun: Mapping[int, LayerState] | None = None) -> None:
        self.mark = 0
        self._begun = begun or dict[int, LayerState]()
        self._marked: dict[int, LayerState] = {}
        self._now: dict[int, LayerState] = {}

    @property
    def stop(self) -> int:
        """The slot behind the last one that any layer ran: none of them can run one before it again."""
        return max((each.stop for each in self._now.values()), default=0)

    def before(self, layer: int, slot: int) -> LayerState | None:
        """The state that a row at this slot comes behind, which may be written to; None where it is the first row."""
        now = self._now.get(layer)
        if now is not None and now.stop <= slot:
            return now
        for kept in (self._marked.get(layer), self._begun.get(layer)):
            if kept is not None and kept.stop <= slot:
                return kept.copy()
        assert now is None or slot <= now.first, f"layer {layer} stopped at slot {now.stop}, none goes on at {slot}"
        return None

    def keep(self, layer: int, state: LayerState) -> None:
        """Take a layer's state as it is now."""
        self._now[layer] = state
        if state.stop == self.mark:
            self._marked[layer] = state.copy()

    def behind(self, slot: int) -> "ContextStates | None":
        """States to begin with behind this slot, shared: whoever does writes to copies. None where they are gone."""
        for kept in (self._marked, self._begun):
            if kept and all(each.stop == slot for each in kept.values()):
                return ContextStates(kept)
        if any(each.stop != slot for each in self._now.values()):
            return None
        return ContextStates({layer: each.copy() for layer, each in self._now.items()})

    def like(self, device: torch.device) -> "ContextStates":
        """Some to begin with at the same slots, with room for them and nothing in it."""
        return ContextStates({layer: each.like(device) for layer, each in self._begun.items()})

    def tensors(self) -> Iterator[Tensor]:
        """Yields the parts of those it began with, in the order of their layers."""
        for _, state in sorted(self._begun.items()):
            yield from (each for each in state.parts if each is not None)

    @property
    def nbytes(self) -> int:
        """The bytes of those it began with."""
        return sum(each.nbytes for each in self.tensors())


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
