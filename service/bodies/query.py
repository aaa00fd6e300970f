"""A question and its answer."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from blend.fuse.fuse import BlendOrder
from blend.fuse.policy import with_rule
from service.answers.events import ChunkReport, Report
from service.bodies.fields import WHOLE, ChunkId, CollectionName, Filter, Name, OneOf, Strict, Text, Title, Whole
from service.bodies.search import SourceOut

SESSION = "The conversation, for vLLM to keep what it has of it for this key's next turn"
Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class MessageIn(Strict):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant", "developer"]
    content: str = Field(max_length=1_000_000)


class LooseIn(Strict):
    """A document that comes with the request. It is read for this answer and kept nowhere.

    Where its text is a known chunk, or holds some, their caches are reused.
    """

    text: Text
    title: Title = ""
    id: Name = ""


class BlendIn(Strict):
    """How caches are reused; what is left out is as in the settings."""

    policy: Literal["full", "prefix", "reuse", "heads", "deviation", "hybrid", "ask"] | None = None
    ratio: float | None = Field(None, ge=0, le=1, description="The share of cached tokens that are recomputed")

    def over(self, default: BlendOrder) -> BlendOrder:
        """The blending that is asked for, with the default's where this says nothing."""
        policy = default.policy if self.policy is None else with_rule(self.policy, default=default.policy)
        return BlendOrder(policy, default.ratio if self.ratio is None else self.ratio)


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A JSON schema with its name, as OpenAI writes it."""

    name: str = Field("", max_length=64)
    description: str = Field("", max_length=10_000)
    schema_: dict[str, object] = Field(alias="schema", description="A JSON schema", examples=[{"type": "object"}])
    strict: bool | None = None


class SchemaFormat(Strict):
    """JSON that obeys a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class SamplingIn(Strict):
    """How tokens are chosen."""

    max_tokens: Whole = Field(256, ge=1, le=1_000_000, description="Of the answer, in JSON too")
    temperature: float = Field(0.0, ge=0, le=2, description="0 takes the likeliest token")
    top_p: float = Field(1.0, gt=0, le=1)
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = Field(None, discriminator="type")


class AskedQuestion(OneOf):
    """A question about the documents, or a chat whose last message is one, and what is put into its prompt."""

    choices = ("question", "messages")
    remedy = "give either question or messages"

    question: str = Field("", min_length=1, max_length=1_000_000, examples=["At what temperature does water boil?"])
    messages: list[MessageIn] = Field(
        default_factory=list[MessageIn], min_length=1, max_length=1000, description="The last is the user's"
    )
    system: str | None = Field(None, max_length=1_000_000, description="A system prompt; caches are reused behind it")
    collection: CollectionName | None = Field(None, description="All collections, where there is none")
    filter: Filter | None = None
    top_k: Annotated[int, Field(ge=0, le=100), WHOLE] | None = Field(
        None, description="0 searches nothing, and so does null where chunk_ids or documents are given"
    )
    neighbors: Whole = Field(0, ge=0, le=10, description="Chunks before and behind each hit that come along")
    mode: Literal["lexical", "vector", "hybrid"] | None = None
    rerank: bool = False
    chunk_ids: list[ChunkId] = Field(default_factory=list[str], max_length=1000)
    documents: list[LooseIn] = Field(default_factory=list[LooseIn], max_length=100_000)
    blend: BlendIn | None = None
    session: Name = Field("", description=SESSION)


class QueryRequest(AskedQuestion):
    """A question about the documents, or a chat whose last message is one."""

    sampling: SamplingIn | None = None
    stream: bool = Field(False, description="Answer with server-sent events")


class UsageOut(BaseModel):
    """What an answer took, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    reused_tokens: int
    recomputed_tokens: int


class QueryAnswer(BaseModel):
    """The answer and what it rests on."""

    id: str
    answer: str
    finish_reason: Literal["stop", "length", "cancelled"]
    sources: list[SourceOut]
    usage: UsageOut
    report: Report


class RetrievedEvent(BaseModel):
    """The event `retrieved`: what the answer rests on."""

    id: str
    sources: list[SourceOut]


class LoadedEvent(BaseModel):
    """The event `loaded`: where the chunks' caches come from."""

    chunks: tuple[ChunkReport, ...]


class FusedEvent(BaseModel):
    """The event `fused`: the prompt is in place; the first token follows."""

    usage: UsageOut
    report: Report


class TokenEvent(BaseModel):
    """The event `token`: some more of the answer."""

    text: str
