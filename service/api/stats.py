"""What those who run the service ask: health, readiness, stats, metrics for Prometheus, and the switch of blending."""

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request, Response
from pydantic import BaseModel, Field

from service.api.caller import By, Caller
from service.api.fields import Strict
from service.api.guards import core_of
from service.api.rendering import rendered
from service.errors import Unavailable
from service.truth.control import BlendingSwitch

SAMPLE = 32  # chunks
_THREADS = CapacityLimiter(4)  # of their own: handlers that wait can take all of the framework's


class Health(BaseModel):
    """Whether the service lives, or is ready."""

    status: str = Field(examples=["ok"])
    search_waits: str = Field(default="", description="What search by vectors waits for; empty where it does not")


class TierUsage(BaseModel):
    """What one tier of the store holds; no budget where nothing limits it."""

    tier: str = Field(examples=["lmdb"])
    blobs: int = Field(examples=[1200])
    bytes: int = Field(examples=[9_600_000_000])
    budget: int | None = Field(examples=[200_000_000_000])


class Served(BaseModel):
    """What requests of this tenant met since the process began. `sources`: chunks by where their caches came from."""

    requests: int
    sources: dict[str, int] = Field(examples=[{"ram": 40, "lmdb": 9, "computed": 1}])
    hit_rates: dict[str, float] = Field(description="By tier, in [0, 1]", examples=[{"ram": 0.8, "lmdb": 0.18}])
    prompt_tokens: int
    tokens_saved: int = Field(description="Tokens of prompts whose keys and values were reused")


class Stats(BaseModel):
    """What a tenant has. `served` is null for a key with a filter, `store` for all but operators."""

    documents: int
    chunks: int
    served: Served | None
    store: list[TierUsage] | None
    bytes_per_token: float | None = Field(description="Of a sample of the stored chunks; null where none is")


class BlendSwitch(Strict):
    """Whether requests reuse caches at all, and which share of them does; null for the share in the settings."""

    enabled: bool
    share: float | None = Field(None, ge=0, le=1)


def stats(by: By) -> Stats:
    """Show what the tenant has and saved. A key with a filter learns of what it sees, nothing of what others asked."""
    totals = None if by.is_bound else by.core.metrics.totals(by.who.tenant)
    with by.tenant.catalog.view() as view:
        if by.is_bound:
            documents, chunks = view.count(by.allowed()), len(view.chunks_of(by.allowed()))
        else:
            counts = view.counts()
            documents, chunks = counts.documents, counts.chunks
    return Stats(
        documents=documents,
        chunks=chunks,
        served=totals and rendered(Served, totals, sources=totals.chunks, tokens_saved=totals.reused_tokens),
        store=_tiers(by) if by.who.is_operator else None,
        bytes_per_token=_bytes_per_token(by),
    )


def get_blend(by: By) -> BlendSwitch:
    """Show whether requests reuse caches."""
    switch = by.core.control.switch()
    return BlendSwitch(enabled=switch.enabled, share=switch.share)


def put_blend(by: By, switch: BlendSwitch) -> BlendSwitch:
    """Switch reuse off for all, or let a share of the requests do it. It holds at once."""
    by.core.control.set_switch(BlendingSwitch(switch.enabled, switch.share))
    return get_blend(by)


def _tiers(by: Caller) -> list[TierUsage]:
    return [
        TierUsage(tier=each.tier, blobs=each.blobs, bytes=each.nbytes, budget=each.budget)
        for each in by.core.store.usage()
    ]


def _bytes_per_token(by: Caller) -> float | None:
    """The stored bytes a token, from some of the stored chunks, spread over all; None where none is stored."""
    caches = by.tenant.caches
    with by.tenant.catalog.view() as view:
        chunks: list[int] = view.chunks_of(by.allowed()).tolist()
        passages = view.holding(chunks[:: max(1, len(chunks) // SAMPLE)][:SAMPLE], by.allowed())
    states = caches.states(passages)
    stored = [(states[each.id].nbytes, len(caches.captures.model.ids(each.text) or ())) for each in passages]
    stored = [(nbytes, tokens) for nbytes, tokens in stored if nbytes and tokens]
    return sum(nbytes for nbytes, _ in stored) / sum(tokens for _, tokens in stored) if stored else None


async def healthz() -> Health:
    """The process lives."""
    return Health(status="ok")


async def readyz(request: Request) -> Health:
    """The model is loaded and the store answers."""
    core = core_of(request.app)
    reason = await run_sync(core.not_ready, limiter=_THREADS)
    if reason is not None:
        raise Unavailable(reason)
    return Health(status="ready", search_waits=core.search_waits())


async def metrics(by: By) -> Response:
    """Everything that the service counts, in the text format of Prometheus."""
    body, media = await run_sync(by.core.metrics.render, limiter=_THREADS)
    return Response(body, media_type=media)
