"""How tokens are drawn, in the fields that OpenAI's and vLLM's bodies have. Knows no prompt and no answer."""

from dataclasses import replace
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from blend.engine.sampling import LogitsProcessor, Sampling
from service.api.fields import MinP, RepetitionPenalty, Seed, Stops, Strict, TokensDrawn, stop_strings
from service.model.logit_processors import LogitBias, Penalties, chained

SMALLEST: Final = 1e-9  # the likeliest token alone

Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
Biases = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=1024, json_schema_extra={"additionalProperties": False}),
]


class SamplingFields(Strict):
    """How tokens are drawn, and where an answer stops; what is left out is as the model's authors have it."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: TokensDrawn | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    stop: Stops | None = None
    seed: Seed | None = None

    def over(self, usual: Sampling) -> Sampling:
        """The sampling that is asked for, with the usual one's where this says nothing."""
        said = self.model_dump(include={"temperature", "top_k", "min_p", "repetition_penalty"}, exclude_none=True)
        if self.top_p is not None:
            said["top_p"] = max(self.top_p, SMALLEST)
        return replace(usual, **said, seed=self.seed, stop=stop_strings(self.stop), processor=self._processor)

    @property
    def _processor(self) -> LogitsProcessor | None:
        frequency, presence = self.frequency_penalty or 0.0, self.presence_penalty or 0.0
        biases = {int(token): bias for token, bias in (self.logit_bias or {}).items()}
        return chained(
            LogitBias(biases) if biases else None,
            Penalties(frequency=frequency, presence=presence) if frequency or presence else None,
        )
