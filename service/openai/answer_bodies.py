"""What OpenAI's clients read: answers, chunks of answers, models, errors. Types alone."""

from typing import Literal

from pydantic import BaseModel, Field

from service.answers.events import Report
from service.api.rendering import SourceOut


class TopLogprob(BaseModel):
    """A token that could have stood there."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class Logprobs(BaseModel):
    """The log probabilities of each token of the content."""

    content: list[TokenLogprob] | None
    refusal: None = None


class CachedTokens(BaseModel):
    """The tokens of the prompt that were not computed for this answer."""

    cached_tokens: int


class CompletionUsage(BaseModel):
    """What an answer took, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Extra(BaseModel):
    """What kvweave tells of an answer, besides what OpenAI does."""

    report: Report
    sources: list[SourceOut]
    recomputed_tokens: int


class AnsweredFunction(BaseModel):
    """What is called, with its arguments as text of JSON; in chunks, parts of both."""

    name: str | None = None
    arguments: str | None = None


class AnsweredCall(BaseModel):
    """A tool that is to be called."""

    id: str
    type: Literal["function"] = "function"
    function: AnsweredFunction


class CallDelta(BaseModel):
    """What a chunk adds to the call with this number."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: AnsweredFunction | None = None


class AnswerMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    tool_calls: list[AnsweredCall] | None = None
    refusal: None = None


class Choice(BaseModel):
    """An answer. There is one, where `n` asks for no more."""

    index: int = 0
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(BaseModel):
    """A whole answer."""

    id: str = Field(examples=["chatcmpl-5f1d0c2ab7e94d0e"])
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(examples=[1_760_000_000])
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: CompletionUsage
    kvweave: Extra


class MessageDelta(BaseModel):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(BaseModel):
    """A part of an answer. There is none in the chunk that tells the usage."""

    index: int = 0
    delta: MessageDelta
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatCompletionChunk(BaseModel):
    """A part of an answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | None = None
    kvweave: Extra | None = None


class Model(BaseModel):
    """A model that answers."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "kvweave"
    max_model_len: int = Field(description="Tokens of prompt and answer")
    search: Literal["lexical", "hybrid"] = Field(description="How documents are found, where a request does not say")
    search_waits: str = Field(
        description="What search by vectors waits for; empty where it does not",
        examples=["vectors of 120 of 418 chunks are made"],
    )
    embedder: str = Field(description="The model's name at /v1/embeddings; empty while there is no embedder")


class ModelList(BaseModel):
    """The models. There is one."""

    object: Literal["list"] = "list"
    data: list[Model]


class ErrorDetail(BaseModel):
    """What went wrong. `param` is the field that is at fault, where one is."""

    message: str = Field(examples=["The model 'gpt-x' does not exist: this service has 'default'"])
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(examples=["model"])
    code: str | None = Field(examples=["model_not_found"])


class ErrorBody(BaseModel):
    """What went wrong."""

    error: ErrorDetail
