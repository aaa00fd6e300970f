"""OpenAI's chat completions and models, over the same pipeline as everything else. Knows no model."""

import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import unquote

from blake3 import blake3
from fastapi import APIRouter, Depends, Request, Response

from service.access.principal import Principal
from service.api.caller import must_see
from service.api.guards import BEARER, core_of, principal
from service.api.problems import request_id_of
from service.api.questions import SecondsGiven
from service.api.rendering import server_timing
from service.api.streams import EventStream, client_gone, unless_gone
from service.errors import ModelNotFound
from service.openai.answer_bodies import ChatCompletion, ErrorBody, Model, ModelList
from service.openai.completion import Envelope, completion, stream
from service.openai.defaults import Defaults, to_answer_request
from service.openai.errors import OpenAIRoute
from service.openai.request import ChatRequest

if TYPE_CHECKING:
    from service.app.core import Core

ALIAS: Final = "default"  # of the one model, whatever its name
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
_FAILURES: Final[dict[int | str, dict[str, object]]] = {
    "4XX": {"model": ErrorBody, "description": "The request is refused"},
    "5XX": {"model": ErrorBody, "description": "The service failed"},
}


def router() -> APIRouter:
    """The routes, over the core that the application has when a request comes."""
    routes = APIRouter(
        route_class=OpenAIRoute,
        dependencies=[Depends(BEARER), Depends(must_see)],
        responses=_FAILURES,
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

    @routes.get("/v1/models", summary="The model that answers")
    def models(request: Request, *, who: By) -> ModelList:  # pyright: ignore[reportUnusedFunction]
        return ModelList(data=[_model(core_of(request.app), who)])

    @routes.get("/v1/models/{model:path}", summary="The model that answers, by its name")
    def model_named(request: Request, model: str, *, who: By) -> Model:  # pyright: ignore[reportUnusedFunction]
        core = core_of(request.app)
        _check(core, unquote(model))  # a slash in a name comes as it is, or encoded still
        return _model(core, who)

    return routes


async def _complete(
    core: "Core", body: ChatRequest, *, request: Request, who: Principal, within_s: float | None
) -> Response:
    _check(core, body.model)
    number = request_id_of(request.scope) or secrets.token_hex(12)
    envelope = Envelope(f"chatcmpl-{number}", int(time.time()), core.model_name, _fingerprint(core.model_name))
    has_generator, usual = core.settings.generator is not None, core.model.usual
    defaults = Defaults(core.order, core.settings.top_k, has_generator=has_generator, usual=usual)
    ask = replace(to_answer_request(body, who, id=envelope.id, defaults=defaults), within_s=within_s)
    events = core.pipeline.answer(ask)
    if not body.stream:
        answer = await unless_gone(request, completion(events, envelope))
        return client_gone() if answer is None else _whole(answer)
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    lines = stream(events, envelope, choices=ask.sampling.choices, with_usage=with_usage)
    sure = await unless_gone(request, _first(lines))
    return client_gone() if sure is None else EventStream(lines)


def _whole(answer: ChatCompletion) -> Response:
    headers = {"Server-Timing": server_timing(answer.kvweave.report.timings_ms)}
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)


async def _first(lines: AsyncGenerator[bytes]) -> bytes:
    return await anext(lines)


def _check(core: "Core", model: str) -> None:
    if model not in (core.model_name, ALIAS):
        raise ModelNotFound(f"The model {model[:80]!r} does not exist: this service has {core.model_name!r}")


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
    )


def _fingerprint(model: str) -> str:
    return f"fp_{blake3(f'{model} {_VERSION}'.encode()).hexdigest()[:12]}"
