"""Prompts that are in place, over HTTP: POST /v1/fuse puts one in place, vLLM fetches it layer by layer."""

import asyncio
import secrets
import time
import zlib
from dataclasses import asdict, replace
from typing import Annotated

from fastapi import Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from blend.engine.engine import alike
from service.answers.events import Report, whole_answer
from service.api.caller import By, Caller
from service.api.fields import Whole
from service.api.questions import AskedQuestion, SamplingIn, to_answer_request
from service.api.rendering import SourceOut, UsageOut, rendered_source, rendered_usage, timed_answer
from service.api.streams import client_gone, unless_gone
from service.vllm.handoff import LayerPart
from service.vllm.handoff_receiver import HandoffReceiver
from service.vllm.handoffs import HandoffReaders

MEDIA = "application/octet-stream"
CHECKSUM = "X-Crc32"

Layer = Annotated[int, Path(ge=0, lt=1 << 16)]


class FuseRequest(AskedQuestion):
    """A question about the documents whose answer vLLM generates."""

    max_tokens: Whole = Field(256, ge=1, le=1_000_000, description="So much of the window is kept for the answer")


class HandoverParams(BaseModel):
    """What vLLM is told of a prompt."""

    handle: str
    tokens: int
    digest: str


class FuseAnswer(BaseModel):
    """A prompt in place. vLLM takes `ids` as `prompt`, `salt` as `cache_salt`, and `kv_transfer_params` as they are.

    Whoever knows the salt can have answers from this prompt's approximate caches: it is for this one prompt.
    """

    id: str
    ids: list[int]
    handle: str
    salt: str
    digest: str
    lease_s: float = Field(description="Seconds until the handle is forgotten")
    kv_transfer_params: dict[str, HandoverParams]
    sources: list[SourceOut]
    usage: UsageOut
    report: Report


class LayerOut(BaseModel):
    """What a layer keeps for a token."""

    index: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


class HandoffOut(BaseModel):
    """The form of a prompt that waits to be fetched. All of `tokens` but the last have keys and values."""

    tokens: int
    digest: str
    dtype: str
    layers: list[LayerOut]
    final: int = Field(description="So many layers, the first ones, are there")
    shared: str = Field(
        description="The name of a file in /dev/shm that has the layers one behind the other; empty where there is none"
    )


class HandoffQuery(BaseModel):
    """The form is told when so many layers, the first ones, are there."""

    model_config = ConfigDict(extra="forbid")

    final: int = Field(0, ge=0, lt=1 << 16)


class PartQuery(BaseModel):
    """A part of a layer: tokens, the end exclusive, and one of equal shares of the heads."""

    model_config = ConfigDict(extra="forbid")

    start: int = Field(ge=0, lt=1 << 31)
    stop: int = Field(ge=1, lt=1 << 31)
    rank: int = Field(0, ge=0, lt=1 << 16)
    ranks: int = Field(1, ge=1, lt=1 << 16)


async def fuse(request: Request, wanted: FuseRequest, *, by: By) -> Response:
    """Put the prompt of a question in place, for a vLLM with kvweave's connector to go on with."""
    answer = await unless_gone(request, _fused(wanted, by))
    if answer is None:
        return client_gone()
    return timed_answer(answer, answer.report.timings_ms)


async def _fused(wanted: FuseRequest, by: Caller) -> FuseAnswer:
    handoffs, who = by.core.handoffs, by.who
    receiver = HandoffReceiver(handoffs, HandoffReaders(who.tenant, time.monotonic(), who.bound))
    ask = to_answer_request(by, wanted, sampling=SamplingIn.model_validate({"max_tokens": wanted.max_tokens}))
    ask = replace(ask, receiver=receiver, id=f"fuse-{secrets.token_hex(12)}")
    is_told = False
    try:
        whole = await whole_answer(by.core.pipeline.answer(ask))
        end, is_told = whole.end, True
        order = alike(end.report.policy, ask.wanted_ratio(by.core.model.order))
        params = HandoverParams(
            handle=receiver.lease.handle, tokens=len(receiver.lease.handoff.ids), digest=receiver.lease.handoff.digest
        )
        return FuseAnswer(
            id=ask.id,
            ids=list(receiver.lease.handoff.ids),
            handle=params.handle,
            salt=handoffs.salt("" if ask.session_keep_s == 0 else ask.session_name, order),
            digest=params.digest,
            lease_s=handoffs.lease_s,
            kv_transfer_params={"kvweave": params},
            sources=[rendered_source(each) for each in whole.sources],
            usage=rendered_usage(end.usage),
            report=end.report,
        )
    finally:
        if not is_told:
            receiver.close()


async def get_handoff(by: By, handle: str, *, wanted: Annotated[HandoffQuery, Query()]) -> HandoffOut:
    """The form of a prompt that waits to be fetched, as soon as so many of its layers are final."""
    handoffs = by.core.handoffs
    found = handoffs.get(handle, by.who)
    for form in found.forms[: wanted.final]:
        await asyncio.wrap_future(found.arrival(form.index))
    if wanted.final >= len(found.forms):
        handoffs.map(handle, by.who)
    layers = [LayerOut(**asdict(each)) for each in found.forms]
    form = {"tokens": len(found.ids), "digest": found.digest, "dtype": found.dtype, "layers": layers}
    return HandoffOut.model_validate({**form, "final": found.final, "shared": found.name})


async def get_layer(by: By, handle: str, *, layer: Layer, part: Annotated[PartQuery, Query()]) -> Response:
    """Keys and values of a layer, as soon as they are final: keys first, token by token."""
    handoffs, wanted = by.core.handoffs, LayerPart(part.start, part.stop, part.rank, part.ranks)
    await asyncio.wrap_future(handoffs.get(handle, by.who).arrival(layer))
    body = await run_in_threadpool(handoffs.part, handle, by.who, layer=layer, wanted=wanted)
    return Response(body, media_type=MEDIA, headers={CHECKSUM: str(zlib.crc32(body))})


def release_handoff(by: By, handle: str, *, used: bool = True) -> Response:
    """Let go of a prompt that was fetched, or is wanted no more; `used=false` where nothing came of it."""
    by.core.handoffs.release(handle, by.who, used=used)
    return Response(status_code=204)
