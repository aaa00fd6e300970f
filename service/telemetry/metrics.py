"""The service's metrics: buckets, how many values a label has, text for Prometheus; totals by tenant. Knows no HTTP.

Every label is one of a bounded set: `labels.py` folds what comes in.
"""

import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from blend.engine.engine import PayerLoad
from blend.fuse.policy import POLICIES, policy_name
from service.errors import ServiceError
from service.reports import Report, Usage
from service.telemetry import labels
from service.telemetry.logs import fields
from store.blob_store import StorageUsage as Tier
from store.errors import StoreError

PREFIX = "kvweave_"
TENANTS, ENDPOINTS, ERRORS, TIERS = 100, 100, 100, 8  # the most values that have a label of their own
COMPUTED = "computed"  # the source of a chunk that no tier had
STORE_KEPT_S = 10.0  # a scrape does not walk the store more often
TOLD_EVERY_S = 60.0  # of refusals at one limit

# From 5 ms to 30 s no bucket is wider than half its upper end, so a quantile is off by no more than that.
FIRST_TOKEN_S = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.4, 0.6, 1, 1.5, 2.5, 4, 6, 10, 15, 22, 30)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TenantTotals:
    """The counts of one tenant's answers since the process started. `reused` tokens are those that were not computed.

    `chunks`: by source.
    """

    requests: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    chunks: Tally[str] = field(default_factory=Tally[str])

    @property
    def hit_rates(self) -> dict[str, float]:
        """The share of all used chunks that each tier had."""
        used = sum(self.chunks.values())
        return {tier: count / used for tier, count in self.chunks.items() if tier != COMPUTED}


class Metrics:
    """The service's metrics, counted from any thread. `clock`: seconds that only grow."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._endpoint, self._tenant = labels.SeenLabels(ENDPOINTS), labels.SeenLabels(TENANTS)
        self._policy, self._tier = labels.SeenLabels(len(POLICIES)), labels.SeenLabels(TIERS)
        self._error = labels.SeenLabels(ERRORS)
        self._method, self._stage = labels.one_of(labels.METHODS), labels.one_of(labels.STAGES)
        self._finish, self._state = labels.one_of(labels.FINISHES), labels.one_of(labels.UPLOAD_STATES)
        self._totals: dict[str, TenantTotals] = {}
        self._told: dict[str, float] = {}
        self._lock = Lock()
        self._refusal = labels.one_of(labels.REFUSALS)
        self._make_http()
        self._make_answers()
        self._make_captures()

    def _make_http(self) -> None:
        names = ["method", "route"]
        self._requests = self._counter("http_requests", "HTTP requests that ended", names=[*names, "status"])
        self._request_s = self._histogram(
            "http_request_seconds", "Until a response ended", names=names, buckets=SECONDS
        )

        self._refused = self._counter(
            "refusals", "Requests and connections that a limit turned away, by which", names=["limit"]
        )

    def _make_answers(self) -> None:
        count = self._counter
        self._answers = count("answers", "Answers that ended, by how", names=["tenant", "policy", "reason"])
        self._failures = count("answer_failures", "Answers that an error ended", names=["tenant", "error"])
        self._tokens = count(
            "tokens", "Tokens of answers; reused ones are the prefill that was saved", names=["tenant", "kind"]
        )
        self._chunks = count(
            "chunks", "Chunks in prompts, by the tier that had them, or computed", names=["tenant", "source"]
        )
        self._misses = count("chunk_misses", "Chunks that had to be computed, by why", names=["tenant", "reason"])
        self._first_s = self._histogram(
            "first_token_seconds", "From a request to the first token", names=["policy"], buckets=FIRST_TOKEN_S
        )
        self._stage_s = self._histogram("stage_seconds", "Stages of an answer", names=["stage"], buckets=SECONDS)

    def _make_captures(self) -> None:
        count = self._counter
        self._uploads = count("uploads", "Uploads that came to a state", names=["tenant", "state"])
        self._captured = count(
            "captured_chunks", "Chunks whose keys and values were computed and stored", names=["tenant"]
        )
        self._captured_tokens = count("captured_tokens", "Tokens of these chunks", names=["tenant"])
        self._captured_bytes = count("captured_bytes", "Bytes that these chunks take in the store", names=["tenant"])
        self._capture_s = count("capture_seconds", "Time that computing them took", names=["tenant"])

    def http(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """A response ended. `route` is a template, never a path."""
        verb, _, place = self._endpoint(f"{self._method(method)} {route}").partition(" ")
        place = place or labels.OTHER
        self._requests.labels(verb, place, labels.status(status)).inc()
        self._request_s.labels(verb, place).observe(seconds)

    def refused(self, limit: str) -> None:
        """A limit turned a request or a connection away. The log tells of the first, and then at most once a minute."""
        self._refused.labels(self._refusal(limit)).inc()
        now = self._clock()
        with self._lock:
            if now - self._told.get(limit, -TOLD_EVERY_S) < TOLD_EVERY_S:
                return
            self._told[limit] = now
        _log.warning("turned away, at a limit", extra=fields(limit=limit))

    def answered(self, tenant: str, *, usage: Usage, report: Report, reason: str) -> None:
        """An answer ended. `reason`: how."""
        self._answers.labels(self._tenant(tenant), self._policy(policy_name(report.policy)), self._finish(reason)).inc()
        self._count_tokens(tenant, usage)
        sources = [self._count_chunk(tenant, chunk.source) for chunk in report.chunks]
        for miss in (chunk.miss_reason for chunk in report.chunks if chunk.miss_reason):
            self._misses.labels(self._tenant(tenant), labels.miss(miss.reason)).inc()
        with self._lock:
            own = self._totals.setdefault(tenant, TenantTotals())
            own.requests += 1
            own.prompt_tokens += usage.prompt
            own.reused_tokens += usage.reused
            own.chunks.update(sources)
        for stage, milliseconds in report.timings_ms.items():
            self._observe(policy_name(report.policy), stage, seconds=milliseconds / 1000)

    def failed(self, tenant: str, *, error: str) -> None:
        """An answer ended by an error; `error` is the name of its class."""
        self._failures.labels(self._tenant(tenant), self._error(error)).inc()

    def uploaded(self, tenant: str, *, state: str) -> None:
        self._uploads.labels(self._tenant(tenant), self._state(state.lower())).inc()

    def captured(self, tenant: str, *, tokens: int, nbytes: int, seconds: float) -> None:
        """A chunk was computed and stored."""
        name = self._tenant(tenant)
        self._captured.labels(name).inc()
        self._captured_tokens.labels(name).inc(tokens)
        self._captured_bytes.labels(name).inc(nbytes)
        self._capture_s.labels(name).inc(seconds)

    def watch(self, name: str, help_text: str, *, read: Callable[[], float]) -> None:
        """Show a gauge that is read at every scrape. NaN while the service cannot tell."""

        def value() -> float:
            try:
                return read()
            except (ServiceError, StoreError, OSError):
                return float("nan")

        Gauge(f"{PREFIX}{name.removeprefix(PREFIX)}", help_text, registry=self._registry).set_function(value)

    def watch_engine(self, read: Callable[[], Mapping[str, PayerLoad]]) -> None:
        """Export each tenant's part of the engine, read at scrapes."""
        self._registry.register(_EngineCollector(read, tenant=self._tenant))

    def watch_store(self, read: Callable[[], Sequence[Tier]]) -> None:
        """Export what each tier holds, read at scrapes and cached for a while."""
        self._registry.register(_StoreCollector(read, tier=self._tier, clock=self._clock))

    def render(self) -> tuple[bytes, str]:
        """The text for a scrape, and its content type."""
        return generate_latest(_WithoutDates(self._registry)), CONTENT_TYPE_PLAIN_0_0_4

    def totals(self, tenant: str) -> TenantTotals:
        """The counts of this tenant alone, also where its label is `other`."""
        with self._lock:
            found = self._totals.get(tenant, TenantTotals())
            return replace(found, chunks=Tally(found.chunks))

    def _count_tokens(self, tenant: str, usage: Usage) -> None:
        counts = asdict(usage)
        counts["fresh"] = max(0, counts.pop("prompt") - usage.reused - usage.recomputed)
        for kind, count in counts.items():
            self._tokens.labels(self._tenant(tenant), kind).inc(count)

    def _count_chunk(self, tenant: str, source: str) -> str:
        name = source if source == COMPUTED else self._tier(source)
        self._chunks.labels(self._tenant(tenant), name).inc()
        return name

    def _observe(self, policy: str, stage: str, *, seconds: float) -> None:
        if stage == "first_token":
            self._first_s.labels(self._policy(policy)).observe(seconds)
        else:
            self._stage_s.labels(self._stage(stage)).observe(seconds)

    def _counter(self, name: str, help_text: str, *, names: Iterable[str]) -> Counter:
        return Counter(f"{PREFIX}{name}", help_text, tuple(names), registry=self._registry)

    def _histogram(self, name: str, help_text: str, *, names: Iterable[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{PREFIX}{name}", help_text, tuple(names), buckets=buckets, registry=self._registry)


class _WithoutDates(Collector):
    """A registry without the `_created` series that the library adds to every counter."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class _EngineCollector(Collector):
    """The engine's queues and the time that it gave, by tenant."""

    def __init__(self, read: Callable[[], Mapping[str, PayerLoad]], *, tenant: labels.Fold) -> None:
        self._read, self._tenant = read, tenant

    def collect(self) -> list[Metric]:
        waiting, running, seconds = Tally[str](), Tally[str](), dict[str, float]()
        for payer, load in self._read().items():
            name = self._tenant(payer)
            waiting[name] += load.waiting
            running[name] += load.running
            seconds[name] = seconds.get(name, 0.0) + load.seconds
        families = (
            GaugeMetricFamily(f"{PREFIX}engine_waiting", "Requests that wait for the model", labels=["tenant"]),
            GaugeMetricFamily(f"{PREFIX}engine_running", "Answers that the model works on", labels=["tenant"]),
            CounterMetricFamily(f"{PREFIX}engine_seconds", "The model's time that a tenant had", labels=["tenant"]),
        )
        for family, values in zip(families, (waiting, running, seconds), strict=True):
            for name, value in values.items():
                family.add_metric([name], value)
        return list(families)


class _StoreCollector(Collector):
    """The tiers. Shows none of them while the store does not answer."""

    def __init__(self, read: Callable[[], Sequence[Tier]], *, tier: labels.Fold, clock: Callable[[], float]) -> None:
        self._read, self._tier, self._clock = read, tier, clock
        self._rows: Sequence[Tier] = ()
        self._fresh_until = clock()
        self._lock = Lock()

    def collect(self) -> list[Metric]:
        blobs, nbytes, budget = families = (
            GaugeMetricFamily(f"{PREFIX}store_blobs", "Blobs in a tier", labels=["tier"]),
            GaugeMetricFamily(f"{PREFIX}store_bytes", "Bytes that a tier takes", labels=["tier"]),
            GaugeMetricFamily(f"{PREFIX}store_budget_bytes", "Bytes that a tier may take", labels=["tier"]),
        )
        for row in self._current():
            name = [self._tier(row.tier)]
            blobs.add_metric(name, row.blobs)
            nbytes.add_metric(name, row.nbytes)
            if row.budget is not None:
                budget.add_metric(name, row.budget)
        return list(families)

    def _current(self) -> Sequence[Tier]:
        with self._lock:
            if self._clock() >= self._fresh_until:
                try:
                    self._rows = self._read()
                except (ServiceError, StoreError, OSError):
                    self._rows = ()
                self._fresh_until = self._clock() + STORE_KEPT_S
            return self._rows
