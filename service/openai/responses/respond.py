"""Handlers of /v1/responses: asked whole or as a stream, with file_search; kept, shown, forgotten. Knows no model."""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from service.answers.answer_request import AnswerRequest
from service.answers.events import Source
from service.answers.kept_answers import KeptAnswer
from service.api.caller import By, Caller
from service.api.questions import SecondsGiven, TextFormat
from service.api.rendering import timed_answer
from service.api.streams import client_gone, streamed, unless_gone
from service.errors import Invalid
from service.openai.defaults import Defaults, to_answer_request
from service.openai.list_pages import At
from service.openai.models import check_model
from service.openai.responses.chat_body import chat_body, in_own_fields, messages_of
from service.openai.responses.previous_response import given_items, kept_answer, previous_response
from service.openai.responses.request import ResponseId, ResponseRequest, TextConfig
from service.openai.responses.response_bodies import GivenItems, ResponseBody, ResponseDeleted
from service.openai.responses.response_events import ResponseEvents
from service.openai.responses.response_items import SearchItem
from service.openai.stored_files import collection_for


async def respond(body: ResponseRequest, request: Request, *, by: By, within_s: SecondsGiven = None) -> Response:
    try:
        return await _respond(by, body, request=request, within_s=within_s)
    except Invalid as error:
        raise in_own_fields(error) from error


def kept(by: By, response_id: ResponseId, *, stream: Literal["false"] | None = None) -> Response:
    del stream  # it has ended
    return Response(previous_response(by, response_id).body, media_type="application/json")


def given(by: By, response_id: ResponseId, *, at: At) -> GivenItems:
    kept = previous_response(by, response_id)
    return given_items(kept.messages[: kept.asked], at, name=response_id.removeprefix("resp_"))


def forget(by: By, response_id: ResponseId) -> ResponseDeleted:
    previous_response(by, response_id)
    by.core.kept_answers.forget(by.who, response_id)
    return ResponseDeleted(id=response_id)


async def _respond(by: Caller, body: ResponseRequest, *, request: Request, within_s: float | None) -> Response:
    core, previous = by.core, body.previous_response_id
    check_model(core, body.model)
    before = await run_in_threadpool(previous_response, by, previous) if previous else None
    ask = await run_in_threadpool(_asked, by, body, before=before)

    def keep(response: ResponseBody, sources: Sequence[Source]) -> None:
        if response.store:
            answer = kept_answer(response, messages_of(body.input), sources=sources, before=before)
            core.kept_answers.keep(by.who, response.id, answer=answer)

    events = core.pipeline.answer(replace(ask, within_s=within_s))
    search = SearchItem(ask.lookup, body.shows_results) if body.search and ask.lookup else None
    form = ResponseEvents(_begun(body, ask, model=core.model_name), keep, search=search)
    if body.stream:
        return await streamed(request, events, form=form)
    response = await unless_gone(request, form.whole(events))
    if response is None:
        return client_gone()
    return timed_answer(response, response.kvweave.report.timings_ms if response.kvweave else {})


def _asked(by: Caller, body: ResponseRequest, *, before: KeptAnswer | None) -> AnswerRequest:
    """What the pipeline is asked. Raises NotFound for a vector store that is not there, or not for this key."""
    search, names, defaults = body.search, list[str](), Defaults.of(by.core)
    if search:
        with by.tenant.catalog.view() as view:
            stores = dict.fromkeys(search.vector_store_ids)
            names = [collection_for(by, view, vector_store_id=each).name for each in stores]
        defaults = replace(defaults, top_k=search.max_num_results or defaults.top_k)
    chat = chat_body(body, [json.loads(each) for each in before.messages] if before else (), searched=names)
    ask = to_answer_request(chat, by.who, id=f"resp_{secrets.token_hex(24)}", defaults=defaults)
    if not (ask.lookup and search):
        return ask
    where, ranking = search.filters and search.filters.to_filter(), search.ranking_options
    least = ranking.score_threshold if ranking else None
    return replace(ask, lookup=replace(ask.lookup, collections=tuple(names), where=where, least=least))


def _begun(body: ResponseRequest, ask: AnswerRequest, *, model: str) -> ResponseBody:
    """The response before its first token."""
    return ResponseBody(
        id=ask.id,
        created_at=int(time.time()),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        store=body.store is not False,
        temperature=ask.sampling.temperature,
        text=TextConfig(format=(body.text and body.text.format) or TextFormat(type="text")),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=ask.sampling.top_p,
    )
