"""The body of a response as OpenAI has it, with kvweave's fields: limits, what is ignored or refused. Knows no answer.

As there, what cannot change an answer is taken and ignored; what would be missed in it is refused with the reason.
"""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints

from service.api.fields import WHOLE, Strict
from service.api.questions import NamedSchema, ObjectFormat, TextFormat
from service.openai.request import Extras, Most, Neutral, Refused, SamplingFields, Unused, not_served
from service.openai.responses.input_items import Items
from service.openai.responses.tools import Choice, ChosenFunction, FileSearch, FlatFunction, Tools

MOST_METADATA: Final = 16

_LOGPROBS: Final = "message.output_text.logprobs"
_RESULTS: Final = "file_search_call.results"

Metadatum = Annotated[str, StringConstraints(max_length=512)]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
Labels = Annotated[dict[MetadataKey, Metadatum], Field(max_length=MOST_METADATA, examples=[{"topic": "letters"}])]
ResponseId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Included = Literal[
    "message.output_text.logprobs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
]


class FlatSchema(NamedSchema):
    """JSON that obeys a schema."""

    model_config = ConfigDict(serialize_by_alias=True)

    type: Literal["json_schema"]


class TextConfig(Strict):
    """The form of the answer's text."""

    format: TextFormat | ObjectFormat | FlatSchema | None = Field(None, discriminator="type")
    verbosity: Unused = None


class ResponseStreamOptions(Strict):
    """What a stream tells besides."""

    include_obfuscation: Unused = None


class UnservedHere(Strict):
    """What is refused, but for the ways to say that it is not wanted."""

    conversation: Annotated[Refused, not_served("kvweave keeps answers alone: use previous_response_id")] = None
    background: Annotated[Refused, not_served("kvweave answers at once or as a stream: leave it out")] = None
    prompt: Annotated[Refused, not_served("kvweave keeps no prompts: send its text as instructions")] = None
    context_management: Annotated[Refused, not_served("kvweave compacts nothing: leave it out")] = None
    moderation: Annotated[Refused, not_served("kvweave moderates nothing: leave it out")] = None


def _uncut(given: object) -> object:
    if given == "auto":
        raise ValueError("kvweave leaves out no turns, and says so where they are too long: leave it out")
    return given


class ResponseRequest(Extras, SamplingFields, Neutral, UnservedHere):
    """Turns to answer."""

    model: str = Field(examples=["default"])
    input: Items = Field(examples=["Where does Mira live?"])
    previous_response_id: ResponseId | None = Field(None, description="The response that the input goes on from")
    store: bool | None = Field(None, description="false keeps nothing of it")
    instructions: str | None = Field(None, description="A system prompt before all turns")
    max_output_tokens: Most | None = None
    text: TextConfig | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: list[Included] | None = Field(None, max_length=16)
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    metadata: Labels | None = None
    truncation: Annotated[Literal["disabled"] | None, BeforeValidator(_uncut)] = None
    reasoning: Unused = None
    max_tool_calls: Unused = None
    tools: Tools | None = None
    tool_choice: Choice | None = Field(None, description="none searches nothing and calls nothing")
    parallel_tool_calls: bool | None = None

    @property
    def functions(self) -> list[FlatFunction]:
        """The tools that are functions."""
        return [each for each in self.tools or () if isinstance(each, FlatFunction)]

    @property
    def file_search(self) -> FileSearch | None:
        """The tool that searches, if there is one."""
        return next((each for each in self.tools or () if isinstance(each, FileSearch)), None)

    @property
    def search(self) -> FileSearch | None:
        """What is searched for the answer: nothing where another tool, or none, is chosen."""
        return None if self.tool_choice == "none" or isinstance(self.tool_choice, ChosenFunction) else self.file_search

    @property
    def wants_logprobs(self) -> bool:
        """Whether the log probabilities of tokens are told."""
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or ())

    @property
    def shows_results(self) -> bool:
        """Whether the item of a search has what was found."""
        return _RESULTS in (self.include or ())
