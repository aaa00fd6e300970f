"""What prompts take where vLLM generates: its own prefill, or a fuse here and its way there. Measures nothing."""

from dataclasses import dataclass, field, fields

from service.model.speeds import ModelSpeeds, PromptSizes


@dataclass(frozen=True, slots=True)
class LinearTime:
    """Seconds that grow with a prompt's tokens."""

    base_s: float
    token_s: float

    @classmethod
    def through(cls, few: tuple[int, float], many: tuple[int, float]) -> "LinearTime":
        """The line through two measurements of tokens and seconds; it never falls."""
        token_s = max(0.0, (many[1] - few[1]) / max(1, many[0] - few[0]))
        return cls(max(0.0, few[1] - token_s * few[0]), token_s)

    def seconds(self, tokens: int) -> float:
        return self.base_s + self.token_s * tokens


@dataclass(slots=True)
class GeneratorTimes:
    """What was measured of vLLM, once it was there: the whole of a prompt until its first token, either way."""

    prefill: LinearTime | None = None
    handed: LinearTime | None = None


@dataclass(frozen=True, slots=True)
class HandedSpeeds(ModelSpeeds):
    """Our own speeds for the fuse, and vLLM's: it reads a prompt itself, or takes over what was fused here."""

    times: GeneratorTimes = field(default_factory=GeneratorTimes)

    @classmethod
    def over(cls, own: ModelSpeeds, times: GeneratorTimes) -> "HandedSpeeds":
        """Our own speeds with those of vLLM, which may come later."""
        return cls(**{each.name: getattr(own, each.name) for each in fields(ModelSpeeds)}, times=times)

    def full_s(self, sizes: PromptSizes) -> float:
        """What vLLM takes to read a prompt."""
        prefill = self.times.prefill
        return prefill.seconds(sizes.tokens) if prefill else ModelSpeeds.full_s(self, sizes)

    def prefix_s(self, sizes: PromptSizes) -> float:
        """What a prompt takes behind an exact beginning, with its way to vLLM."""
        return ModelSpeeds.prefix_s(self, sizes) + self._handed_s(sizes.tokens)

    def blend_s(self, sizes: PromptSizes, *, ratio: float = 0.0) -> float:
        """What a prompt takes by the operating point, with its way to vLLM."""
        return ModelSpeeds.blend_s(self, sizes, ratio=ratio) + self._handed_s(sizes.tokens)

    def _handed_s(self, tokens: int) -> float:
        return self.times.handed.seconds(tokens) if self.times.handed else 0.0
