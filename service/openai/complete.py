"""Handlers of /v1/chat/completions and /v1/completions: the pipeline asked, its answers whole or as a stream."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Final

from blake3 import blake3
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from service.answers.answer_request import AnswerRequest
from service.answers.events import WholeAnswer, whole_answer
from service.answers.pipeline import Pipeline
from service.api.caller import By, Caller
from service.api.problems import request_id_of
from service.api.questions import SecondsGiven
from service.api.rendering import timed_answer
from service.api.streams import client_gone, streamed, unless_gone
from service.model.served_model import ServedModel
from service.openai.completion import Chunks, Envelope, completion
from service.openai.defaults import Defaults, to_answer_request
from service.openai.models import check_model
from service.openai.request import ChatRequest
from service.openai.text_completion import TextChunks, TextRequest, text_completion

_VERSION: Final = version("kvweave")


async def complete(body: ChatRequest, request: Request, *, by: By, within_s: SecondsGiven = None) -> Response:
    core, envelope = by.core, _envelope(by, body.model, request=request, kind="chatcmpl")
    ask = await run_in_threadpool(to_answer_request, body, by.who, id=envelope.id, defaults=Defaults.of(core))
    events = core.pipeline.answer(replace(ask, within_s=within_s))
    if not body.stream:
        whole = await unless_gone(request, whole_answer(events))
        return (
            client_gone() if whole is None else timed_answer(completion(whole, envelope), whole.end.report.timings_ms)
        )
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    return await streamed(request, events, form=Chunks(envelope, choices=ask.sampling.choices, with_usage=with_usage))


async def go_on(body: TextRequest, request: Request, *, by: By, within_s: SecondsGiven = None) -> Response:
    core, envelope = by.core, _envelope(by, body.model, request=request, kind="cmpl")
    asked = body.asked(by.who, id=envelope.id, defaults=Defaults.of(core))
    if body.stream:
        events = core.pipeline.answer(replace(asked[0], within_s=within_s))
        return await streamed(request, events, form=TextChunks(body, envelope))
    answers = await unless_gone(request, _each(core.pipeline, asked, within_s=within_s))
    if answers is None:
        return client_gone()
    whole = text_completion(body, [completion(each, envelope) for each in answers], envelope=envelope)
    return Response(whole.model_dump_json(), media_type="application/json")


def _envelope(by: Caller, model: str, *, request: Request, kind: str) -> Envelope:
    """What each part of the answer says. Raises ModelNotFound for another model than the one that there is."""
    check_model(by.core, model)
    number = request_id_of(request.scope) or secrets.token_hex(12)
    return Envelope(f"{kind}-{number}", int(time.time()), by.core.model_name, _fingerprint(by.core.model))


async def _each(pipeline: Pipeline, asked: Sequence[AnswerRequest], *, within_s: float | None) -> list[WholeAnswer]:
    """The answers, one after the other, all of them within the time."""
    begun, answers = time.monotonic(), list[WholeAnswer]()
    for each in asked:
        left_s = None if within_s is None else within_s - (time.monotonic() - begun)
        answers.append(await whole_answer(pipeline.answer(replace(each, within_s=left_s))))
    return answers


def _fingerprint(model: ServedModel) -> str:
    """What changes with what computes, whatever its name."""
    return f"fp_{blake3(f'{model.fingerprint.digest} {_VERSION}'.encode()).hexdigest()[:12]}"
