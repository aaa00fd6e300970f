"""The body of a chat completion as OpenAI has it, and kvweave's fields beside. Knows no answer.

What cannot change an answer is taken and ignored; what would be missed in it is refused with the reason.
"""

from typing import Annotated, Final, Literal, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.config import JsonDict

from blend.model.template import Option
from service.bodies.fields import WHOLE, ChunkId, CollectionName, Name, OneOf, Strict
from service.bodies.query import SESSION, BlendIn, LooseIn, ObjectFormat, SchemaFormat, Stop, TextFormat

MOST_CHOICES: Final = 16
MOST_RULE: Final = 100_000  # characters of a grammar
MOST_TOKENS: Final = 2048  # of an answer whose request does not say: so much memory is set aside for it
NO_TOOLS: Final = "kvweave serves no tools: leave it out"
_NOTHING: Final[list[object]] = [None, False, "", "none", [], {}]

_ONLY_WITH_LOGPROBS: Final[JsonDict] = {
    "if": {"required": ["top_logprobs"], "properties": {"top_logprobs": {"type": "integer", "minimum": 1}}},
    "then": {"required": ["logprobs"], "properties": {"logprobs": {"const": True}}},
}


def _none(reason: str) -> AfterValidator:
    """A validator that takes nothing but the ways to say nothing."""

    def check(given: object) -> object:
        if given not in _NOTHING or type(given) in (int, float):  # 0 equals False
            raise ValueError(reason)
        return None

    return AfterValidator(check)


def _role(given: object) -> object:
    if given in ("tool", "function"):
        raise ValueError(f"kvweave serves no tools: leave out messages of the role {given!r}")
    return given


def _content(given: object) -> object:
    """Checks a content as pydantic would, but that other kinds of parts get a sentence of their own."""
    if not isinstance(given, str | list):
        raise ValueError("the content is a string, or a list of parts such as {type: text, text: ...}")
    for part in cast(list[object], given) if isinstance(given, list) else []:
        kind = cast(dict[str, object], part).get("type") if isinstance(part, dict) else part
        if kind != "text":
            raise ValueError(f"kvweave reads text only, got a part of the type {str(kind)[:40]!r}")
    return cast(object, given)


Unused = Annotated[object, WithJsonSchema({"description": "Accepted and not used"})]
Tools = Annotated[object, _none(NO_TOOLS), WithJsonSchema({"enum": _NOTHING, "description": "No tools are served"})]
Refused = Annotated[object, WithJsonSchema({"enum": _NOTHING, "description": "Not served"})]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
Rule = Annotated[str, StringConstraints(min_length=1, max_length=MOST_RULE)]
Schema = Annotated[dict[str, object], Field(examples=[{"type": "object"}])]
Most = Annotated[int, Field(ge=1, le=1_000_000), WHOLE]
Biases = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=1024, json_schema_extra={"additionalProperties": False}),
]


class Part(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn of a chat."""

    role: Annotated[Literal["system", "developer", "user", "assistant"], BeforeValidator(_role)]
    content: Annotated[str | list[Part], BeforeValidator(_content)] = Field(examples=["Where does Mira live?"])
    name: Unused = None
    refusal: Annotated[Refused, _none("kvweave writes no refusals: send what was said as content")] = None
    annotations: Unused = None
    audio: Annotated[Refused, _none("kvweave reads text only: leave it out")] = None
    tool_calls: Tools = None
    tool_call_id: Tools = None
    function_call: Tools = None

    @property
    def text(self) -> str:
        """The text of all parts, a line for each."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class StreamOptions(Strict):
    """What a stream tells besides."""

    include_usage: bool | None = None
    include_obfuscation: Unused = None


class Extras(Strict):
    """What kvweave takes and OpenAI does not."""

    documents: list[LooseIn] | None = Field(
        None, description="Read for this answer and kept nowhere; known chunks in them are reused", max_length=1000
    )
    chunk_ids: list[ChunkId] | None = Field(None, max_length=1000)
    collection: CollectionName | None = Field(None, description="Search this collection with the last message")
    blend: BlendIn | None = None
    session: Name | None = Field(None, description=SESSION)
    chat_template_kwargs: dict[str, Option] | None = Field(None, examples=[{"enable_thinking": False}])


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
    metadata: Unused = None
    service_tier: Unused = None
    safety_identifier: Unused = None
    prompt_cache_key: Unused = None
    prompt_cache_retention: Unused = None
    prompt_cache_options: Unused = None
    prediction: Unused = None
    reasoning_effort: Unused = None
    verbosity: Unused = None
    parallel_tool_calls: Unused = None
    modalities: list[Literal["text"]] | None = None


class Unserved(Strict):
    """What is refused, but for the ways to say that it is not wanted."""

    tools: Tools = None
    tool_choice: Tools = None
    functions: Tools = None
    function_call: Tools = None
    audio: Annotated[Refused, _none("kvweave writes text only: leave it out")] = None
    web_search_options: Annotated[Refused, _none("kvweave searches no web: leave it out")] = None
    moderation: Annotated[Refused, _none("kvweave moderates nothing: leave it out")] = None
    store: Annotated[Refused, _none("kvweave keeps no answers: leave it out")] = None


class ChatRequest(Extras, Neutral, Unserved):
    """A chat to go on with."""

    model_config = ConfigDict(json_schema_extra=_ONLY_WITH_LOGPROBS)

    model: str = Field(examples=["default"])
    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_tokens: Most | None = None
    max_completion_tokens: Most | None = Field(
        None, description=f"Of the answer, in JSON too; without it and max_tokens, {MOST_TOKENS:,} at most"
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES), WHOLE] | None = Field(
        None, description="Answers to the one prompt; more than one with a generator alone"
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = Field(None, discriminator="type")
    structured_outputs: StructuredOutputs | None = Field(None, description="As vLLM takes it; with a generator alone")
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Biases | None = None
