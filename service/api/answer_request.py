"""Turns a request's JSON into what the pipeline is asked."""

import secrets
from typing import TYPE_CHECKING, Annotated

from fastapi import Header
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from blend.engine.sampling import Sampling
from retriever.documents import Json
from service.answers.answer_request import AnswerRequest, Lookup, RequestDocument, Turn
from service.api.caller import Caller
from service.bodies.query import AskedQuestion, ObjectFormat, SamplingIn, SchemaFormat
from service.errors import Invalid

if TYPE_CHECKING:
    from service.settings import Settings

SecondsGiven = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | SkipJsonSchema[None],
    Header(
        alias="X-Request-Timeout",
        description="Seconds in which the answer has to be whole; refused at once where that cannot be",
    ),
]


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
        order=None if wanted.blend is None else wanted.blend.over(by.core.order),
        sampling=_sampling(sampling),
        grammar=_grammar(sampling),
        asks=True,
        session=wanted.session,
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
        collection=wanted.collection or "",
        where=wanted.filter,
        top_k=count,
        neighbors=wanted.neighbors,
        mode=wanted.mode,
        rerank=wanted.rerank,
    )


def _sampling(wanted: SamplingIn | None) -> Sampling:
    if wanted is None:
        return Sampling()
    stop = [wanted.stop] if isinstance(wanted.stop, str) else wanted.stop or []
    return Sampling(
        max_tokens=wanted.max_tokens,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        stop=tuple(stop),
        seed=wanted.seed,
    )


def _grammar(wanted: SamplingIn | None) -> Json | None:
    match wanted and wanted.response_format:
        case ObjectFormat():
            return {}
        case SchemaFormat(json_schema=named):
            return named.schema_
        case _:
            return None
