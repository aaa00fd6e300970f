"""The body of a chat completion as OpenAI has it, with kvweave's fields: limits, defaults, what is ignored or refused.

What cannot change an answer is taken and ignored; what would be missed in it is refused with the reason.
"""

from dataclasses import replace
from typing import Annotated, Final, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict

from blend.engine.sampling import LogitsProcessor, Sampling
from blend.text.template import Option
from service.api.fields import (
    WHOLE,
    ChunkId,
    CollectionName,
    MinP,
    OneOf,
    RepetitionPenalty,
    Seed,
    Stops,
    Strict,
    TokensDrawn,
    stop_strings,
)
from service.api.questions import BlendIn, Conversation, LooseIn, ObjectFormat, SchemaFormat, TextFormat
from service.model.logit_processors import LogitBias, Penalties, chained
from service.openai.tools import MOST_TOOLS, Tool, ToolCall, ToolChoice

MOST_CHOICES: Final = 16
MOST_RULE: Final = 100_000  # characters of a grammar
MOST_TOKENS: Final = 2048  # of an answer whose request does not say: so much memory is set aside for it
SMALLEST: Final = 1e-9  # a `top_p` of the likeliest token alone
NO_FUNCTIONS: Final = "kvweave knows tools, no functions: give it as tools"
_NOTHING: Final[list[object]] = [None, False, "", "none", [], {}]

_ONLY_WITH_LOGPROBS: Final[JsonDict] = {
    "if": {"required": ["top_logprobs"], "properties": {"top_logprobs": {"type": "integer", "minimum": 1}}},
    "then": {"required": ["logprobs"], "properties": {"logprobs": {"const": True}}},
}
# A tool's message names its call, an assistant's may be calls alone; all others have a content.
_CALLS: Final[JsonDict] = {"type": "array", "minItems": 1}
_CONTENT: Final[JsonDict] = {
    "allOf": [
        {
            "if": {"properties": {"role": {"const": "tool"}}, "required": ["role"]},
            "then": {"required": ["tool_call_id"], "properties": {"tool_call_id": {"type": "string"}}},
            "else": {"properties": {"tool_call_id": {"type": "null"}}},
        },
        {
            "if": {"properties": {"tool_calls": _CALLS}, "required": ["tool_calls"]},
            "then": {"properties": {"role": {"const": "assistant"}}},
            "else": {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
        },
    ]
}


def not_served(reason: str) -> AfterValidator:
    """A validator that takes nothing but the ways to say nothing."""

    def check(given: object) -> object:
        if given not in _NOTHING or type(given) in (int, float):  # 0 equals False
            raise ValueError(reason)
        return None

    return AfterValidator(check)


def texts_of(*kinds: str) -> BeforeValidator:
    """Checks a content as pydantic would, but that parts of other than these kinds get a sentence of their own."""

    def check(given: object) -> object:
        if given is not None and not isinstance(given, str | list):
            raise ValueError(f"the content is a string, or a list of parts such as {{type: {kinds[0]}, text: ...}}")
        for part in cast(list[object], given) if isinstance(given, list) else []:
            kind = cast(dict[str, object], part).get("type") if isinstance(part, dict) else part
            if kind not in kinds:
                raise ValueError(f"kvweave reads text only, got a part of the type {str(kind)[:40]!r}: leave it out")
        return cast(object, given)

    return BeforeValidator(check)


Unused = Annotated[object, WithJsonSchema({"description": "Accepted and not used"})]
Refused = Annotated[object, WithJsonSchema({"enum": _NOTHING, "description": "Not served"})]
Functions = Annotated[Refused, not_served(NO_FUNCTIONS)]
Rule = Annotated[str, StringConstraints(min_length=1, max_length=MOST_RULE)]
Schema = Annotated[dict[str, object], Field(examples=[{"type": "object"}])]
Most = Annotated[int, Field(ge=1, le=1_000_000), WHOLE]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
Biases = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=1024, json_schema_extra={"additionalProperties": False}),
]


class Part(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str
    cache_control: Unused = None


class Message(Strict):
    """One turn of a chat."""

    model_config = ConfigDict(json_schema_extra=_CONTENT)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | list[Part] | None, texts_of("text")] = Field(
        None, examples=["Where does Mira live?"], validate_default=False
    )
    name: Unused = None
    refusal: Annotated[Refused, not_served("kvweave writes no refusals: send what was said as content")] = None
    annotations: Unused = None
    cache_control: Unused = None
    reasoning_content: Unused = None
    audio: Annotated[Refused, not_served("kvweave reads text only: leave it out")] = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=MOST_TOOLS)
    tool_call_id: str | None = Field(None, max_length=200)
    function_call: Functions = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise ValueError("the content is a string, or a list of parts; without tool_calls it is required")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are the assistant's, got some of the role {self.role!r}")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("a message of the role 'tool' has a tool_call_id, and no other has one")
        return self

    @property
    def text(self) -> str:
        given = self.content or ""
        return given if isinstance(given, str) else "\n".join(part.text for part in given)

    @property
    def calls(self) -> dict[str, object]:
        """What the message has of tools, as it was given."""
        found: dict[str, object] = {"tool_call_id": self.tool_call_id} if self.tool_call_id else {}
        return {**found, "tool_calls": [each.model_dump() for each in self.tool_calls]} if self.tool_calls else found


class StreamOptions(Strict):
    """What a stream tells besides."""

    include_usage: bool | None = None
    include_obfuscation: Unused = None
    continuous_usage_stats: Unused = None


class Extras(Conversation):
    """What kvweave takes and OpenAI does not."""

    documents: list[LooseIn] | None = Field(
        None, description="Read for this answer and kept nowhere; known chunks in them are reused", max_length=1000
    )
    chunk_ids: list[ChunkId] | None = Field(None, max_length=1000)
    collection: CollectionName | None = Field(None, description="Search this collection with the last message")
    blend: BlendIn | None = None
    chat_template_kwargs: dict[str, Option] | None = Field(None, examples=[{"enable_thinking": False}])


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


class StructuredOutputs(OneOf):
    """What the answer obeys, word for word what vLLM is told: exactly one of these."""

    choices = ("json", "regex", "choice", "grammar")
    remedy = "give exactly one of json, regex, choice and grammar"

    json_: Schema = Field(
        default_factory=dict[str, object], alias="json", description="A JSON schema, as vLLM obeys it"
    )
    regex: Rule = Field("", examples=["K[0-9]+"])
    choice: list[Rule] = Field(default_factory=list[str], min_length=1, max_length=1000)
    grammar: Rule = Field("", description="In EBNF, or what else vLLM's backend reads")


class Neutral(Strict):
    """What changes no answer of this service."""

    user: Unused = None
    service_tier: Unused = None
    safety_identifier: Unused = None
    prompt_cache_key: Unused = None
    prompt_cache_retention: Unused = None
    prompt_cache_options: Unused = None
    prediction: Unused = None
    reasoning_effort: Unused = None
    verbosity: Unused = None
    modalities: list[Literal["text"]] | None = None


class Unserved(Strict):
    """What is refused, but for the ways to say that it is not wanted."""

    functions: Functions = None
    function_call: Functions = None
    audio: Annotated[Refused, not_served("kvweave writes text only: leave it out")] = None
    web_search_options: Annotated[Refused, not_served("kvweave searches no web: leave it out")] = None
    moderation: Annotated[Refused, not_served("kvweave moderates nothing: leave it out")] = None
    store: Annotated[Refused, not_served("kvweave keeps no answers: leave it out")] = None


class ChatRequest(Extras, SamplingFields, Neutral, Unserved):
    """A chat to go on with."""

    model_config = ConfigDict(json_schema_extra=_ONLY_WITH_LOGPROBS)

    metadata: Unused = None
    model: str = Field(examples=["default"])
    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_tokens: Most | None = None
    max_completion_tokens: Most | None = Field(
        None, description=f"Of the answer, in JSON too; without it and max_tokens, {MOST_TOKENS:,} at most"
    )
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES), WHOLE] | None = Field(
        None, description="Answers to the one prompt; more than one with a generator alone"
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = Field(None, discriminator="type")
    structured_outputs: StructuredOutputs | None = Field(None, description="As vLLM takes it; with a generator alone")
    tools: list[Tool] | None = Field(None, description="Where the model's template knows tools", max_length=MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def has_tools(self) -> bool:
        """Whether tools may be called, or were."""
        return bool(self.tools) or any(each.calls for each in self.messages)
