"""What a tenant has and what it saved; for operators what the store holds, and the switch for all."""

from service.access.control import BlendingSwitch
from service.api.caller import By, Caller
from service.bodies.stats import BlendSwitch, Served, Stats, TierUsage
from service.telemetry.metrics import TenantTotals

SAMPLE = 32  # chunks


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
        served=totals and _served(totals),
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


def _served(totals: TenantTotals) -> Served:
    return Served(
        requests=totals.requests,
        sources=dict(totals.chunks),
        hit_rates=totals.hit_rates,
        prompt_tokens=totals.prompt_tokens,
        tokens_saved=totals.reused_tokens,
    )


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
