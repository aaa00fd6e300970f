"""The scheduler's half, driven as vLLM's scheduler drives it: in any order, with failures, aborts and preemptions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_kvweave.load_jobs import LoadJob, digest_of
from vllm_kvweave.scheduling import Scheduling, handover_of
from vllm_kvweave.support import Deployment, Unsupported

BLOCK = 4


@dataclass
class Request:
    """vLLM's request, as far as the connector sees it."""

    request_id: str
    prompt_token_ids: list[int] | None
    cache_salt: str | None = "secret"
    kv_transfer_params: dict[str, object] | None = None
    lora_request: object = None
    mm_features: list[object] = field(default_factory=list)


def handed(name: str, length: int, **wrong: object) -> Request:
    ids = list(range(length))
    said = {"handle": f"handle-{name}", "tokens": length, "digest": digest_of(ids)}
    return Request(name, ids, kv_transfer_params={"kvweave": {**said, **wrong}})


class ScriptedScheduler:
    """vLLM's scheduler: what it asks of a connector, in its order, and what must hold each time."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.connector = Scheduling(self.released.append, timeout_s=10)
        self.jobs: dict[str, LoadJob] = {}  # under way in the workers
        self.loads: dict[str, int] = {}  # of each request, ever
        self.cancelled: set[str] = set()

    def admit(self, request: Request, cached: int) -> int | None:
        """The tokens that are loaded; asked twice, as where blocks were short the first time. None: it has to wait."""
        missing = self.connector.missing(request, cached)
        assert self.connector.missing(request, cached) == missing
        if missing is not None:
            blocks = -(-len(request.prompt_token_ids or ()) // BLOCK)
            self.connector.allocated(request, (list(range(1, blocks + 1)),), tokens=missing)
        return missing

    def step(self) -> None:
        told = self.connector.next_step()
        for job in told.jobs:
            assert job.request not in self.jobs
            self.jobs[job.request] = job
            self.loads[job.request] = self.loads.get(job.request, 0) + 1
        self.cancelled |= set(told.cancelled)
        assert not self.connector.next_step().jobs

    def end(self, name: str, *, is_failed: bool) -> None:
        job = self.jobs.pop(name)
        self.connector.ended({name}, failed={name} if is_failed else set())
        assert self.released.count(job.handle) <= 1


def held(connector: Scheduling) -> int:
    """How many requests and handles something is remembered of."""
    return sum(len(kept) for kept in vars(connector).values() if isinstance(kept, dict | set))


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 6))
def test_whatever_happens_each_prompt_is_loaded_once_and_nothing_is_kept(seed: int, count: int) -> None:
    draw = random.Random(seed)
    vllm = ScriptedScheduler()
    requests = {str(n): handed(str(n), draw.randint(1, 40)) for n in range(count)}
    for name, request in requests.items():
        tokens, cached = len(request.prompt_token_ids or ()), BLOCK * draw.randint(0, 5)
        cached = min(cached, (tokens - 1) // BLOCK * BLOCK)
        missing = vllm.admit(request, cached)
        assert missing == tokens - 1 - cached
        if draw.random() < 0.8:
            vllm.step()
        is_failed = draw.random() < 0.4
        if name in vllm.jobs and draw.random() < 0.6:
            job = vllm.jobs[name]
            assert (job.start, job.stop) == (cached, tokens - 1)
            vllm.end(name, is_failed=is_failed)
            assert vllm.admit(request, 0) == 0, "asked again behind a failure or a preemption"
            vllm.connector.allocated(request, ([1],), tokens=0)
            said = vllm.connector.finished(request)
            assert said == {"kvweave": {"loaded": 0 if is_failed else missing}}
        else:  # the client leaves
            vllm.connector.finished(request)
            vllm.step()
            if name in vllm.jobs:
                assert name in vllm.cancelled
                vllm.end(name, is_failed=is_failed)
    vllm.step()
    for name in list(vllm.jobs):
        vllm.end(name, is_failed=False)
    assert set(vllm.loads.values()) <= {1}
    assert sorted(vllm.released) == sorted(f"handle-{name}" for name in vllm.loads)
    assert held(vllm.connector) == 0


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 5), tokens=st.integers(2, 40))
def test_requests_of_one_handle_load_it_once_and_share_its_blocks(seed: int, count: int, tokens: int) -> None:
    draw, vllm = random.Random(seed), ScriptedScheduler()
    requests = [handed("one", tokens) for _ in range(count)]
    for number, request in enumerate(requests):
        request.request_id = str(number)
    waiting, running, cached, failed = [*requests], list[Request](), 0, False
    while waiting or running:
        for request in draw.sample(waiting, len(waiting)):
            is_loading = bool(vllm.jobs)
            missing = vllm.admit(request, cached)
            if missing is None:
                assert is_loading
                continue
            assert missing == (0 if failed else tokens - 1 - cached)
            waiting.remove(request)
            running.append(request)
            vllm.step()
        for request in draw.sample(running, draw.randint(1, len(running))):
            name, leaves = request.request_id, draw.random() < 0.3
            if leaves:
                vllm.connector.finished(request)
                vllm.step()
            if name in vllm.jobs:
                is_failed = not leaves and draw.random() < 0.2
                vllm.end(name, is_failed=is_failed)
                failed |= is_failed
                cached = cached if failed or leaves else (tokens - 1) // BLOCK * BLOCK
            if not leaves:
                vllm.connector.finished(request)
            running.remove(request)
        if waiting and draw.random() < 0.1:
            vllm.connector.finished(waiting.pop())
    assert vllm.released.count("handle-one") == 1
    assert held(vllm.connector) == 0


WRONG = {
    "no salt": Request("1", [1, 2, 3], None, {"kvweave": {"handle": "h", "tokens": 3, "digest": digest_of([1, 2, 3])}}),
    "other ids": handed("1", 9, digest=digest_of([1])),
    "another length": handed("1", 9, tokens=8),
    "a bool for a number": handed("1", 9, tokens="9"),
    "no handle": handed("1", 9, handle=None),
    "an endless handle": handed("1", 9, handle="h" * 1000),
    "no time": handed("1", 9, timeout_s=0),
    "a list": Request("1", [1, 2], "salt", {"kvweave": ["handle"]}),
    "embeddings": Request("1", None, "salt", {"kvweave": {"handle": "h", "tokens": 3, "digest": "d"}}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_request_with_a_fault_is_computed_by_vllm(what: str) -> None:
    vllm = ScriptedScheduler()
    assert vllm.admit(WRONG[what], 0) == 0
    vllm.step()
    assert not vllm.jobs
    assert vllm.connector.finished(WRONG[what]) == {"kvweave": {"loaded": 0}}
    assert held(vllm.connector) == 0


def test_adapters_and_media_are_computed_by_vllm() -> None:
    for more in ({"lora_request": object()}, {"mm_features": [object()]}):
        request = handed("1", 9)
        for name, value in more.items():
            setattr(request, name, value)
        assert ScriptedScheduler().admit(request, 0) == 0


def test_requests_of_others_are_none_of_its_business() -> None:
    connector = Scheduling(lambda _: None, timeout_s=1)
    cases: list[dict[str, object] | None] = [None, {}, {"nixl": {"remote": 1}}]
    for params in cases:
        request = Request("1", [1, 2, 3], None, params)
        assert connector.missing(request, 0) == 0
        assert connector.finished(request) is None
    assert held(connector) == 0
    assert handover_of({"nixl": 1}) is None


def test_a_request_waits_no_longer_than_the_operator_allows() -> None:
    for asked, gets in ((2.5, 2.5), (1000, 10)):
        vllm = ScriptedScheduler()
        vllm.admit(handed("1", 9, timeout_s=asked), 0)
        vllm.step()
        assert vllm.jobs["1"].timeout_s == gets


FITTING = Deployment("0.32.0", "kv_consumer", "recompute")
UNFITTING = {
    "this release is made for vLLM 0.31 and 0.32, and this is 0.28.1": {"version": "0.28.1"},
    "kvweave gives alone": {"role": "kv_both"},
    '"kv_load_failure_policy": "recompute"': {"failure_policy": "fail"},
    "use tensor parallelism": {"pipeline_ranks": 2},
    "set it to 1": {"context_ranks": 2},
    "latent attention": {"is_latent": True},
    "drafts of 'eagle'": {"drafts": "eagle"},
}


def test_what_is_tested_may_start() -> None:
    FITTING.check()
    Deployment("0.31.0", "kv_consumer", "recompute", drafts="ngram").check()


@pytest.mark.parametrize("sentence", UNFITTING)
def test_what_would_be_wrong_stops_the_start(sentence: str) -> None:
    said = {"version": "0.32.0", "role": "kv_consumer", "failure_policy": "recompute", **UNFITTING[sentence]}
    with pytest.raises(Unsupported, match=sentence):
        Deployment(**said).check()
