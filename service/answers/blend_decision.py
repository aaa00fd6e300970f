"""Chooses whether a prompt is read whole, behind an exact prefix or blended: by the switch, expected times, trials."""

from dataclasses import dataclass, replace

from blend.fuse.fuse import BlendOrder
from store.errors import MissReason

GAIN = 0.87  # of the exact way's time; blending that takes more is not worth what it may cost in quality
NEAR = 2.0  # times that the other way is expected to take at most, where it is tried
TRIED = 1 / 32  # of these prompts go the other way by default, so that its estimates stay current
EXACT = ("full", "prefix")


@dataclass(frozen=True, slots=True)
class Expected:
    """The seconds to the first token that are expected of each way: all read, behind an exact prefix, blended."""

    full_s: float
    prefix_s: float
    blend_s: float

    def __str__(self) -> str:
        return f"{self.full_s!r}/{self.prefix_s!r}/{self.blend_s!r}"

    @property
    def by_way(self) -> dict[str, float]:
        return {"full": self.full_s, "prefix": self.prefix_s, "blend": self.blend_s}

    @property
    def ms(self) -> dict[str, float]:
        return {way: round(1000 * seconds, 3) for way, seconds in self.by_way.items()}


@dataclass(frozen=True, slots=True)
class BlendInputs:
    """All that decides. `wanted`: what the request asks for, or the operating point; `draw`: a number in [0, 1).

    `is_on` and `share` are the operator's: whether blending is, and for which share of the requests. `expected` is
    None where the request names its policy, which it gets then, and where nothing was measured. `tried`: the share of
    prompts that go the other way where two are near. `hidden`: a larger ratio that costs no time, as reading takes it.
    """

    wanted: BlendOrder
    is_on: bool
    share: float
    draw: float
    expected: Expected | None = None
    tried: float = TRIED
    hidden: float = 0.0

    def __str__(self) -> str:
        switch = "on" if self.is_on else "off"
        order = f"{self.wanted.policy} ratio={self.wanted.ratio!r}"
        expected = "" if self.expected is None else f" expected_s={self.expected}"
        hidden = f" hidden={self.hidden!r}" if self.hidden else ""
        return f"{order} {switch} share={self.share!r} draw={self.draw!r} tried={self.tried!r}{expected}{hidden}"


@dataclass(frozen=True, slots=True)
class BlendDecision:
    """The blending, and why it is not the one wanted."""

    order: BlendOrder
    reason: MissReason | None = None


def decide(inputs: BlendInputs) -> BlendDecision:
    wanted, expected = replace(inputs.wanted, ratio=max(inputs.wanted.ratio, inputs.hidden)), inputs.expected
    if wanted.policy != "full" and (not inputs.is_on or inputs.draw >= inputs.share):
        return BlendDecision(BlendOrder("full", 0.0), MissReason.CONTROLLER)
    if wanted.policy in EXACT or expected is None:
        return BlendDecision(wanted)
    exact = BlendOrder("prefix" if expected.prefix_s < GAIN * expected.full_s else "full", 0.0)
    exact_s = min(expected.full_s, expected.prefix_s)
    blends = expected.blend_s < GAIN * exact_s
    is_near = NEAR * exact_s > expected.blend_s > exact_s / NEAR
    if is_near and tries(inputs):
        return BlendDecision(exact, MissReason.TRIAL) if blends else BlendDecision(wanted)
    return BlendDecision(wanted) if blends else BlendDecision(exact, MissReason.SOONER)


def tries(inputs: BlendInputs) -> bool:
    """Whether the way that is expected to be slightly slower is tried."""
    return inputs.draw < inputs.tried * inputs.share
