"""A question in JSON, alone or as a chat: its fields, limits and defaults, and what the pipeline is asked by it."""

import secrets
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import Header
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from blend.fuse.policy import POLICIES, with_rule
from retriever.documents import Json
from service.answers.answer_request import AnswerRequest, Lookup, RequestDocument, Turn
from service.api.caller import Caller
from service.api.fields import (
    WHOLE,
    ChunkId,
    CollectionName,
    Filter,
    MinP,
    Name,
    OneOf,
    RepetitionPenalty,
    Seed,
    Stops,
    Strict,
    Text,
    Title,
    TokensDrawn,
    Whole,
    stop_strings,
)
from service.errors import Invalid

if TYPE_CHECKING:
    from service.settings import Settings

    PolicyName = str
else:
    PolicyName = Literal[tuple(POLICIES)]

SecondsGiven = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | SkipJsonSchema[None],
    Header(
        alias="X-Request-Timeout",
        description="Seconds in which the answer has to be whole; refused at once where that cannot be",
    ),
]


class Conversation(Strict):
    """The conversation that a request is a turn of, if it is of any."""

    session: Name | None = Field(
        None, description="Its name: what is computed is kept, blended too, for this key's next turn that begins alike"
    )
    session_keep_s: Annotated[int, Field(ge=0, le=7 * 24 * 3600), WHOLE] | None = Field(
        None,
        description="How long it is kept behind this turn, by default an hour; what is said here goes before all else "
        "that the key has. 0 ends the session with this turn",
    )


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

    policy: PolicyName | None = None
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
    top_k: TokensDrawn = 0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    stop: Stops | None = None
    seed: Seed | None = None
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = Field(None, discriminator="type")


class AskedQuestion(OneOf, Conversation):
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


def check_length(settings: "Settings", text: str, *, field: str) -> None:
    """Raise Invalid for a question that is longer than the settings allow."""
    most = settings.max_question_chars
    if len(text) > most:
        raise Invalid(f"a question has at most {most:,} characters, got {len(text):,}: shorten it", field=field)


def to_answer_request(by: Caller, wanted: AskedQuestion, *, sampling: SamplingIn | None) -> AnswerRequest:
    """What the pipeline is asked. Raises Invalid for what the schema cannot rule out."""
    settings = by.core.settings
    turns = _turns(wanted)
    check_length(settings, turns[-1].text, field="question" if wanted.question else "messages")
    if len(wanted.documents) > settings.max_documents:
        raise Invalid(f"a request has at most {settings.max_documents:,} documents", field="documents")
    return AnswerRequest(
        by.who,
        turns,
        lookup=_lookup(wanted, turns[-1].text, top_k=settings.top_k),
        chunk_ids=tuple(wanted.chunk_ids),
        documents=tuple(RequestDocument(each.text, each.title, each.id) for each in wanted.documents),
        order=None if wanted.blend is None else wanted.blend.over(by.core.model.order),
        sampling=_sampling(sampling),
        grammar=_grammar(sampling),
        asks=True,
        session=wanted.session or "",
        session_keep_s=wanted.session_keep_s,
        id=f"query-{secrets.token_hex(12)}",
    )


def _turns(wanted: AskedQuestion) -> tuple[Turn, ...]:
    turns = [Turn(message.role, message.content) for message in wanted.messages]
    turns = turns or [Turn("user", wanted.question)]
    if turns[-1].role != "user":
        raise Invalid(f"the last message is the user's question, got one of {turns[-1].role}", field="messages")
    if wanted.system is None:
        return tuple(turns)
    if turns[0].role == "system":
        raise Invalid("the messages have a system prompt already: leave one of both out", field="system")
    return (Turn("system", wanted.system), *turns)


def _lookup(wanted: AskedQuestion, query: str, *, top_k: int) -> Lookup | None:
    is_given = bool(wanted.chunk_ids or wanted.documents)
    count = wanted.top_k if wanted.top_k is not None else 0 if is_given else top_k
    if not count:
        return None
    return Lookup(
        query,
        collections=(wanted.collection,) if wanted.collection else (),
        where=wanted.filter,
        top_k=count,
        neighbors=wanted.neighbors,
        mode=wanted.mode,
        rerank=wanted.rerank,
    )


def _sampling(wanted: SamplingIn | None) -> Sampling:
    if wanted is None:
        return Sampling()
    return Sampling(**wanted.model_dump(exclude={"response_format", "stop"}), stop=stop_strings(wanted.stop))


def _grammar(wanted: SamplingIn | None) -> Json | None:
    match wanted and wanted.response_format:
        case ObjectFormat():
            return {}
        case SchemaFormat(json_schema=named):
            return named.schema_
        case _:
            return None
