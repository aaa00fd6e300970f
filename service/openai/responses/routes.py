"""The routes of responses, over the same pipeline as everything else. Knows no model."""

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Depends, Request, Response

from service.access.principal import Principal
from service.answers.answer_request import AnswerRequest
from service.api.guards import core_of, principal
from service.api.questions import SecondsGiven, TextFormat
from service.api.rendering import server_timing
from service.api.streams import client_gone, unless_gone
from service.errors import Invalid
from service.openai.defaults import Defaults, to_answer_request
from service.openai.model_check import check_model
from service.openai.responses.chat_body import chat_body, in_own_fields
from service.openai.responses.request import ResponseRequest, TextConfig
from service.openai.responses.response_bodies import ResponseBody
from service.openai.responses.response_events import ResponseEvents, whole_response
from service.openai.streams import streamed

if TYPE_CHECKING:
    from service.app.core import Core

By = Annotated[Principal, Depends(principal)]
_STREAM: Final = {
    "schema": {
        "type": "object",
        "description": "An event. Its data are one of OpenAI's events of responses",
        "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
        "required": ["event", "data"],
    }
}


def add_responses(routes: APIRouter) -> None:
    """Adds the routes, over the core that the application has when a request comes."""

    @routes.post(
        "/v1/responses",
        summary="Answer turns, as OpenAI's API of responses does",
        response_model=ResponseBody,
        responses={200: {"content": {"text/event-stream": _STREAM}}},
    )
    async def respond(  # pyright: ignore[reportUnusedFunction]
        body: ResponseRequest, request: Request, *, who: By, within_s: SecondsGiven = None
    ) -> Response:
        try:
            return await _respond(core_of(request.app), body, request=request, who=who, within_s=within_s)
        except Invalid as error:
            raise in_own_fields(error) from error


async def _respond(
    core: "Core", body: ResponseRequest, *, request: Request, who: Principal, within_s: float | None
) -> Response:
    check_model(core, body.model)
    ask = to_answer_request(chat_body(body), who, id=f"resp_{secrets.token_hex(24)}", defaults=Defaults.of(core))
    events = core.pipeline.answer(replace(ask, within_s=within_s))
    begun = _begun(body, ask, model=core.model_name)
    if body.stream:
        return await streamed(request, events, form=ResponseEvents(begun))
    response = await unless_gone(request, whole_response(events, begun))
    return client_gone() if response is None else _whole(response)


def _begun(body: ResponseRequest, ask: AnswerRequest, *, model: str) -> ResponseBody:
    """The response before its first token."""
    return ResponseBody(
        id=ask.id,
        created_at=int(time.time()),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model,
        temperature=ask.sampling.temperature,
        text=TextConfig(format=(body.text and body.text.format) or TextFormat(type="text")),
        top_logprobs=body.top_logprobs or 0,
        top_p=ask.sampling.top_p,
    )


def _whole(response: ResponseBody) -> Response:
    timings = response.kvweave.report.timings_ms if response.kvweave else {}
    return Response(
        response.model_dump_json(), media_type="application/json", headers={"Server-Timing": server_timing(timings)}
    )
