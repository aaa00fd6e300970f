"""Which blending a request gets: a function of what stands in the request's log line, so that it can be replayed."""

from dataclasses import dataclass
from typing import Self

from blend.fuse.fuse import BlendOrder


@dataclass(frozen=True, slots=True)
class BlendInputs:
    """All that decides. `wanted`: what the request asks for, or the operating point; `draw`: a number in [0, 1).

    `is_on` and `share` are the operator's: whether blending is, and for which share of the requests.
    """

    wanted: BlendOrder
    is_on: bool
    share: float
    draw: float

    def __str__(self) -> str:
        switch = "on" if self.is_on else "off"
        return f"{self.wanted.policy} ratio={self.wanted.ratio!r} {switch} share={self.share!r} draw={self.draw!r}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inputs that a log line tells of."""
        policy, ratio, switch, share, draw = text.split()
        numbers = [float(each.partition("=")[2]) for each in (ratio, share, draw)]
        return cls(BlendOrder(policy, numbers[0]), switch == "on", *numbers[1:])


@dataclass(frozen=True, slots=True)
class BlendDecision:
    """The blending, and whether an operator decided it."""

    order: BlendOrder
    forced: bool = False


def decide(inputs: BlendInputs) -> BlendDecision:
    """The blending of a request."""
    if inputs.wanted.policy != "full" and (not inputs.is_on or inputs.draw >= inputs.share):
        return BlendDecision(BlendOrder("full", 0.0), forced=True)
    return BlendDecision(inputs.wanted)
