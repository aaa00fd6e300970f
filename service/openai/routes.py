"""OpenAI's completions and models, over the same pipeline as everything else. Knows no model."""

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import unquote

from blake3 import blake3
from fastapi import APIRouter, Depends, Request, Response

from service.access.principal import Principal
from service.answers.events import Event
from service.answers.whole_answer import WholeAnswer, whole_answer
from service.api.answer_streams import streamed
from service.api.caller import must_see
from service.api.guards import BEARER, core_of, principal
from service.api.problems import request_id_of
from service.api.questions import SecondsGiven
from service.api.rendering import timed_answer
from service.api.streams import client_gone, unless_gone
from service.model.served_model import ServedModel
from service.openai.answer_bodies import ChatCompletion, ErrorBody, Model, ModelList
from service.openai.completion import Chunks, Envelope, completion
from service.openai.defaults import Defaults, to_answer_request
from service.openai.embeddings import EmbeddingList, EmbeddingRequest, embed
from service.openai.errors import OpenAIRoute
from service.openai.model_check import check_model
from service.openai.request import ChatRequest
from service.openai.responses.routes import add_responses
from service.openai.text_completion import TextChunks, TextCompletion, TextRequest, text_completion

if TYPE_CHECKING:
    from service.app.core import Core

# Where failures have OpenAI's form: what is answered here, and what its clients ask for that is not.
PREFIXES: Final = tuple(
    f"/v1/{each}"
    for each in (
        *("chat/", "models", "completions", "responses", "embeddings", "files", "uploads", "images", "audio", "videos"),
        *("moderations", "batches", "fine_tuning", "assistants", "threads", "vector_stores", "realtime", "evals"),
    )
)

By = Annotated[Principal, Depends(principal)]
_VERSION: Final = version("kvweave")
_STREAM: Final = {
    "schema": {
        "type": "object",
        "description": "An event. Its data are a chat.completion.chunk, or an error; the last is [DONE]",
        "properties": {"data": {"type": "string"}},
        "required": ["data"],
    }
}
FAILURES: Final[dict[int | str, dict[str, object]]] = {
    "4XX": {"model": ErrorBody, "description": "The request is refused"},
    "5XX": {"model": ErrorBody, "description": "The service failed"},
}


def router() -> APIRouter:
    """The routes, over the core that the application has when a request comes."""
    routes = APIRouter(
        route_class=OpenAIRoute,
        dependencies=[Depends(BEARER), Depends(must_see)],
        responses=FAILURES,
        tags=["OpenAI-compatible"],
    )

    @routes.post(
        "/v1/chat/completions",
        summary="Answer a chat, as OpenAI's API does",
        response_model=ChatCompletion,
        responses={200: {"content": {"text/event-stream": _STREAM}}},
    )
    async def complete(  # pyright: ignore[reportUnusedFunction]
        body: ChatRequest, request: Request, *, who: By, within_s: SecondsGiven = None
    ) -> Response:
        return await _complete(core_of(request.app), body, request=request, who=who, within_s=within_s)

    @routes.post(
        "/v1/completions",
        summary="Go on with texts as they are",
        response_model=TextCompletion,
        responses={200: {"content": {"text/event-stream": _STREAM}}},
    )
    async def go_on(  # pyright: ignore[reportUnusedFunction]
        body: TextRequest, request: Request, *, who: By, within_s: SecondsGiven = None
    ) -> Response:
        return await _go_on(core_of(request.app), body, request=request, who=who, within_s=within_s)

    @routes.post("/v1/embeddings", summary="Vectors of texts, as search has them", response_model=EmbeddingList)
    async def embeddings(body: EmbeddingRequest, request: Request, *, who: By) -> Response:  # pyright: ignore[reportUnusedFunction]
        return await embed(core_of(request.app), body, request=request, who=who)

    @routes.get("/v1/models", summary="The model that answers")
    def models(request: Request, *, who: By) -> ModelList:  # pyright: ignore[reportUnusedFunction]
        return ModelList(data=[_model(core_of(request.app), who)])

    @routes.get("/v1/models/{model:path}", summary="The model that answers, by its name")
    def model_named(request: Request, model: str, *, who: By) -> Model:  # pyright: ignore[reportUnusedFunction]
        core = core_of(request.app)
        check_model(core, unquote(model))  # a slash in a name comes as it is, or encoded still
        return _model(core, who)

    add_responses(routes)
    return routes


async def _complete(
    core: "Core", body: ChatRequest, *, request: Request, who: Principal, within_s: float | None
) -> Response:
    envelope = _envelope(core, body.model, request=request, kind="chatcmpl")
    ask = replace(to_answer_request(body, who, id=envelope.id, defaults=Defaults.of(core)), within_s=within_s)
    events = core.pipeline.answer(ask)
    if not body.stream:
        whole = await unless_gone(request, whole_answer(events))
        return (
            client_gone() if whole is None else timed_answer(completion(whole, envelope), whole.end.report.timings_ms)
        )
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    return await streamed(request, events, form=Chunks(envelope, choices=ask.sampling.choices, with_usage=with_usage))


def _envelope(core: "Core", model: str, *, request: Request, kind: str) -> Envelope:
    """What each part of the answer says. Raises ModelNotFound for another model than the one that there is."""
    check_model(core, model)
    number = request_id_of(request.scope) or secrets.token_hex(12)
    return Envelope(f"{kind}-{number}", int(time.time()), core.model_name, _fingerprint(core.model))


async def _go_on(
    core: "Core", body: TextRequest, *, request: Request, who: Principal, within_s: float | None
) -> Response:
    envelope = _envelope(core, body.model, request=request, kind="cmpl")
    asked = [
        core.pipeline.answer(replace(each, within_s=within_s))
        for each in body.asked(who, id=envelope.id, defaults=Defaults.of(core))
    ]
    if body.stream:
        return await streamed(request, asked[0], form=TextChunks(body, envelope))
    answers = await unless_gone(request, _each(asked))
    if answers is None:
        return client_gone()
    whole = text_completion(body, [completion(each, envelope) for each in answers], envelope=envelope)
    return Response(whole.model_dump_json(), media_type="application/json")


async def _each(asked: Sequence[AsyncGenerator[Event]]) -> list[WholeAnswer]:
    """The answers, one after the other."""
    return [await whole_answer(events) for events in asked]


def _model(core: "Core", who: Principal) -> Model:
    library = core.tenant(who).library
    with library.catalog.view() as view:
        mode, waits = library.mode(view), library.awaited(view, counts=who.bound is None)
    return Model(
        id=core.model_name,
        created=int(core.created),
        max_model_len=core.window,
        search=mode,
        search_waits=waits,
        embedder=core.embedder_name,
    )


def _fingerprint(model: ServedModel) -> str:
    """What changes with what computes, whatever its name."""
    return f"fp_{blake3(f'{model.fingerprint.digest} {_VERSION}'.encode()).hexdigest()[:12]}"
