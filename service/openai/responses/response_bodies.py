"""What OpenAI's clients read of a response: whole, and event by event. Types alone."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.openai.answer_bodies import Extra, TokenLogprob
from service.openai.list_pages import ListBody
from service.openai.responses.request import TextConfig
from service.openai.responses.tools import Choice, Tool
from service.openai.vector_store_bodies import FoundFile

EndStatus = Literal["completed", "incomplete"]


class FileCitation(BaseModel):
    """A file that the text may rest on. `index`: where in the text, which is its end."""

    type: Literal["file_citation"] = "file_citation"
    file_id: str
    filename: str
    index: int


class OutputText(BaseModel):
    """The text of an answer."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[FileCitation] = Field(default_factory=list[FileCitation])
    logprobs: list[TokenLogprob] = Field(default_factory=list[TokenLogprob])


class OutputMessage(BaseModel):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Literal["in_progress"] | EndStatus
    content: list[OutputText]

    @property
    def text(self) -> str:
        """All that it says."""
        return "".join(part.text for part in self.content)


class CalledItem(BaseModel):
    """A function that is to be called, with its arguments as text of JSON."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: Literal["in_progress"] | EndStatus = "in_progress"
    call_id: str
    name: str
    arguments: str = ""


class FoundText(FoundFile):
    """A passage that was found. `filename`: its document's title, or its id."""

    text: str


class FileSearchCall(BaseModel):
    """The search of a vector store. `results`: where they are asked for."""

    id: str
    type: Literal["file_search_call"] = "file_search_call"
    status: Literal["in_progress", "searching", "completed"]
    queries: list[str]
    results: list[FoundText] | None = None


OutputItem = OutputMessage | CalledItem | FileSearchCall


class InputTokens(BaseModel):
    """The tokens of the prompt that were not computed for this answer."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokens(BaseModel):
    """The tokens of an answer that nobody reads. There are none."""

    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    """What an answer took, in tokens."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class ResponseError(BaseModel):
    """What went wrong behind the first token."""

    code: Literal["server_error"] = "server_error"
    message: str


class IncompleteDetails(BaseModel):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseBody(BaseModel):
    """A response, as far as it has come."""

    id: str = Field(examples=["resp_5f1d0c2ab7e94d0e"])
    object: Literal["response"] = "response"
    created_at: int = Field(examples=[1_760_000_000])
    completed_at: int | None = None
    status: Literal["in_progress", "failed"] | EndStatus = "in_progress"
    background: Literal[False] = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = Field(default_factory=list[OutputItem])
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: Choice
    tools: list[Tool]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    kvweave: Extra | None = None


class ResponseDeleted(BaseModel):
    """A response that is not kept any more."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class GivenText(BaseModel):
    """The text of a message that a response answers."""

    type: Literal["input_text"] = "input_text"
    text: str


class GivenMessage(BaseModel):
    """A message that a response answers."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer"]
    status: Literal["completed"] = "completed"
    content: list[GivenText]


class GivenOutput(BaseModel):
    """What a function gave, which a response answers."""

    id: str
    type: Literal["function_call_output"] = "function_call_output"
    status: Literal["completed"] = "completed"
    call_id: str
    output: str


GivenItem = GivenMessage | OutputMessage | CalledItem | GivenOutput


class GivenItems(ListBody):
    """A page of what a response answers, with what was said before it."""

    data: list[GivenItem]


class StreamEvent(BaseModel):
    """An event of a stream, with its place among all; what it tells are fields besides, by its type."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int
