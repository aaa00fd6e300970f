"""What requests may say, as types of JSON objects. What is left out is as the service is set."""

from typing import Any, Literal, NotRequired, Required, TypedDict

Json = dict[str, Any]
Policy = Literal["full", "prefix", "reuse", "heads", "deviation", "hybrid", "ask", "replay"]
Mode = Literal["lexical", "vector", "hybrid"]


class NewChunk(TypedDict, total=False):
    """A chunk that is kept verbatim; its metadata is laid over the document's. `id` comes back as its name."""

    id: str
    text: Required[str]
    metadata: Json


class NewDocument(TypedDict, total=False):
    """A document: a `text` that the service cuts, or `chunks` that you cut. Without an id it gets a digest."""

    id: str
    title: str
    text: str
    chunks: list[NewChunk]
    metadata: Json


class LooseDocument(TypedDict):
    """A document that comes with a request. It is read for this answer and kept nowhere."""

    text: str
    title: NotRequired[str]
    id: NotRequired[str]


class Message(TypedDict):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str


class Blend(TypedDict, total=False):
    """How caches are reused. `ratio`: the share of cached tokens that are recomputed, from 0 to 1."""

    policy: Policy
    ratio: float


class Sampling(TypedDict, total=False):
    """How tokens are chosen; `top_k` counts tokens here.

    `response_format` is as OpenAI has it: text, json_object or json_schema.
    """

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    stop: str | list[str] | None
    seed: int | None
    response_format: Json | None


class DocumentFields(TypedDict, total=False):
    """The whole of a document that is replaced. Without a collection it stays where it is."""

    title: str
    text: str
    chunks: list[NewChunk]
    metadata: Json
    collection: str


class Rules(TypedDict, total=False):
    """How a collection's documents are cut and captured. `search`: off, where another index finds its chunks.

    `floor`: what a find has to do with a question at least; `on_empty`: what becomes of one for which nothing is found.
    """

    chunk_tokens: int
    system: str | None
    embedder: str
    search: bool
    in_context: bool
    floor: float | None
    on_empty: Literal["answer", "refuse"]
    filler: list[str] | None


class SearchOptions(TypedDict, total=False):
    """Where to look, and how. `neighbors`: so many chunks before and behind each hit come along."""

    collection: str | None
    filter: Json | None
    top_k: int
    neighbors: int
    mode: Mode | None
    rerank: bool


class QueryOptions(TypedDict, total=False):
    """What an answer rests on, and how it is made. `top_k` 0 searches nothing.

    `session`: the conversation: what is computed of it is kept for this key's next turn that begins alike, for
    `session_keep_s`, by default an hour; 0 ends it.
    """

    system: str | None
    collection: str | None
    filter: Json | None
    top_k: int | None
    neighbors: int
    mode: Mode | None
    rerank: bool
    chunk_ids: list[str]
    documents: list[LooseDocument]
    blend: Blend | None
    sampling: Sampling | None
    session: str
    session_keep_s: int | None


class ChatOptions(TypedDict, total=False):
    """What is read before the last message, and how the answer is made.

    `chunk_ids`, `documents` and `collection` bring passages; text of known chunks in the messages is recognised anyway.
    """

    model: str
    chunk_ids: list[str] | None
    documents: list[LooseDocument] | None
    collection: str | None
    blend: Blend | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    stop: str | list[str] | None
    seed: int | None
    response_format: Json | None
    logprobs: bool | None
    top_logprobs: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: dict[str, float] | None
    structured_outputs: Json | None
    chat_template_kwargs: Json | None
    session: str | None
    session_keep_s: int | None


class Choice(TypedDict, total=False):
    """The chunks that are meant: give exactly one of these."""

    document_ids: list[str]
    chunk_ids: list[str]
    collection: str


class RerankOptions(TypedDict, total=False):
    """What is to be ordered: texts, or chunks."""

    documents: list[str]
    chunk_ids: list[str]
    top_n: int | None
