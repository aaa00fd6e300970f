"""What is counted, that it adds up, and that no input makes it grow without end."""

import logging
import math
import re
from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.errors import Unavailable
from service.reports import ChunkReport, Report, Usage
from service.telemetry import labels
from service.telemetry.metrics import TOLD_EVERY_S, Metrics
from store.blob_store import StorageUsage as Tier
from store.errors import Miss, MissReason, StoreError, StoreUnavailable

REPORT = Report(
    "hybrid",
    0.15,
    chunks=(
        ChunkReport("a", "ram", None, 100, 0, 0),
        ChunkReport("b", "ram", None, 100, 0, 0),
        ChunkReport("c", "s3", None, 100, 0, 0),
        ChunkReport("d", "computed", Miss(MissReason.PREFIX), 100, 0, 0),
    ),
    dropped=(),
    timings_ms={"retrieve": 2.0, "first_token": 40.0, "total": 90.0, "a text": 1.0},
)
USAGE = Usage(prompt=500, completion=20, reused=255, recomputed=45)


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Values by name and sorted label values."""
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {(s.name, *(s.labels[key] for key in sorted(s.labels))): s.value for f in families for s in f.samples}


def ours(metrics: Metrics) -> list[str]:
    return [line for line in metrics.render()[0].decode().splitlines() if line.startswith("kvweave_")]


def test_an_answer_is_counted_by_tokens_chunks_misses_and_stages() -> None:
    metrics = Metrics()
    metrics.answered("acme", usage=USAGE, report=REPORT, reason="stop")
    found = samples(metrics)
    tokens = {kind: found["kvweave_tokens_total", kind, "acme"] for kind in ("reused", "recomputed", "fresh")}
    assert tokens == {"reused": 255, "recomputed": 45, "fresh": 200} and sum(tokens.values()) == USAGE.prompt
    assert found["kvweave_tokens_total", "completion", "acme"] == 20
    assert found["kvweave_chunks_total", "ram", "acme"] == 2
    assert found["kvweave_chunk_misses_total", "fingerprint_prefix", "acme"] == 1
    assert found["kvweave_answers_total", "hybrid", "stop", "acme"] == 1
    assert found["kvweave_first_token_seconds_sum", "hybrid"] == pytest.approx(0.04)
    assert found["kvweave_stage_seconds_sum", "total"] == pytest.approx(0.09)
    assert found["kvweave_stage_seconds_count", "other"] == 1


def test_totals_are_of_one_tenant_also_behind_the_last_that_has_a_label() -> None:
    metrics = Metrics()
    for number in range(300):
        metrics.answered(f"tenant-{number}", usage=USAGE, report=REPORT, reason="stop")
    totals = metrics.totals("tenant-299")
    assert (totals.requests, totals.prompt_tokens, totals.reused_tokens) == (1, 500, 255)
    assert totals.hit_rates == {"ram": 0.5, "s3": 0.25}
    assert metrics.totals("nobody").requests == 0 and metrics.totals("nobody").hit_rates == {}


def test_a_thousand_strange_values_leave_few_series() -> None:
    metrics = Metrics()
    for number in range(1000):
        odd = f'{number} \ud800"\n\\' + "x" * (number % 300)
        chunk = ChunkReport(odd, odd, Miss(MissReason.UNAVAILABLE, odd), 1, 0, 0)
        metrics.http(method=odd, route=odd, status=number, seconds=0.1)
        metrics.answered(odd, usage=USAGE, report=Report(odd, 0.1, (chunk,), (), {odd: 1.0}), reason=odd)
        metrics.failed(odd, error=odd)
        metrics.uploaded(odd, state=odd)
        metrics.captured(odd, tokens=1, nbytes=1, seconds=0.1)
    lines = ours(metrics)
    assert len(lines) < 6_000
    assert max(map(len, lines)) < 4 * labels.LETTERS
    found = samples(metrics)
    assert found["kvweave_answer_failures_total", "other", "other"] == 1000 - 100
    assert sum(value for key, value in found.items() if key[0] == "kvweave_captured_chunks_total") == 1000


def test_the_text_follows_the_practice_of_prometheus() -> None:
    metrics = Metrics()
    metrics.answered("acme", usage=USAGE, report=REPORT, reason="stop")
    metrics.http(method="GET", route="/v1/jobs/{job}", status=200, seconds=0.02)
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(body.decode()))
    names = {family.name for family in families if family.type != "unknown"}
    assert {"process_cpu_seconds", "python_info", "kvweave_http_requests"} <= names
    assert all(family.documentation for family in families)
    for family in (each for each in families if each.name.startswith("kvweave_")):
        assert re.fullmatch(r"kvweave_[a-z_]+", family.name)
        assert family.type != "histogram" or family.name.endswith("_seconds")
    assert b"_created" not in body


WORDS = {
    *("absent", "begun", "pending", "evicted", "corrupt", "foreign", "over_budget", "unsupported"),
    *("controller", "sooner", "trial", "unavailable", "tokens", "codec", "not_fetched"),
    *("fingerprint_weights", "fingerprint_architecture", "fingerprint_tokenizer", "fingerprint_rope"),
    *("fingerprint_dtype", "fingerprint_prefix", "fingerprint_capture"),
}


def test_known_words_of_misses_stay() -> None:
    assert {labels.miss(reason) for reason in MissReason} == WORDS
    assert labels.miss(MissReason.OVER_BUDGET) == "over_budget"
    assert labels.miss(MissReason.NEWER_FORMAT) == "unsupported"


def test_a_store_out_of_reach_shows_as_itself() -> None:
    metrics = Metrics()
    away = Miss(MissReason.UNAVAILABLE, StoreUnavailable.__name__)
    report = Report("hybrid", 0.15, (ChunkReport("a", "computed", away, 100, 0, 0),), (), {})
    metrics.answered("acme", usage=USAGE, report=report, reason="stop")
    metrics.failed("acme", error=StoreUnavailable.__name__)
    found = samples(metrics)
    assert found["kvweave_chunk_misses_total", "unavailable", "acme"] == 1
    assert found["kvweave_answer_failures_total", "StoreUnavailable", "acme"] == 1


def test_a_gauge_that_cannot_be_read_spoils_no_scrape() -> None:
    metrics = Metrics()

    def running() -> float:
        raise Unavailable("the model loads")

    metrics.watch("running_requests", "Requests that run", read=running)
    metrics.watch("kvweave_waiting_requests", "Requests that wait", read=lambda: 3)
    found = samples(metrics)
    assert math.isnan(found["kvweave_running_requests",])
    assert found["kvweave_waiting_requests",] == 3


def test_the_store_is_read_at_scrapes_and_not_more_often_than_every_ten_seconds() -> None:
    now = [0.0]
    reads: list[float] = []

    def read() -> Sequence[Tier]:
        reads.append(now[0])
        if len(reads) == 3:
            raise StoreError("s3://bucket does not answer")
        return [Tier("ram", 2, 200, None), Tier("lmdb", 3, 300, 1000)]

    metrics = Metrics(clock=lambda: now[0])
    metrics.watch_store(read)
    assert reads == []
    for now[0] in (1.0, 5.0, 10.9, 11.0):
        found = samples(metrics)
    assert reads == [1.0, 11.0]
    assert found["kvweave_store_bytes", "lmdb"] == 300 and found["kvweave_store_budget_bytes", "lmdb"] == 1000
    assert ("kvweave_store_budget_bytes", "ram") not in found
    now[0] = 30.0
    assert ("kvweave_store_bytes", "lmdb") not in samples(metrics)
    now[0] = 41.0
    assert samples(metrics)["kvweave_store_blobs", "ram"] == 2


def test_each_refusal_is_counted_and_one_line_a_minute_tells_of_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    metrics = Metrics(clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            metrics.refused("key")
        metrics.refused("slow_body")
        assert len(caplog.records) == 2
        now[0] += TOLD_EVERY_S
        metrics.refused("key")
        assert len(caplog.records) == 3
    found = samples(metrics)
    assert (found["kvweave_refusals_total", "key"], found["kvweave_refusals_total", "slow_body"]) == (101, 1)


def test_first_tokens_from_5_ms_to_30_s_fall_into_buckets_of_their_own() -> None:
    metrics = Metrics()
    times = (4, 8, 300, 2_000, 29_000, 31_000)
    for milliseconds in times:
        report = Report("full", 0.0, (), (), {"first_token": milliseconds})
        metrics.answered("acme", usage=USAGE, report=report, reason="stop")
    found = samples(metrics)
    counts = [value for key, value in found.items() if key[0] == "kvweave_first_token_seconds_bucket"]
    steps = [after - before for before, after in zip([0.0, *counts], counts, strict=False)]
    assert sorted(steps, reverse=True)[: len(times)] == [1.0] * len(times) and sum(steps) == len(times)
