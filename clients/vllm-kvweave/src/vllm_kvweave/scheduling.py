"""Which tokens of which request come from kvweave, decided in vLLM's scheduler. Touches no tensor and waits for nobody.

A request brings `{"kvweave": {"handle", "tokens", "digest"}}` among its `kv_transfer_params`, and a `cache_salt`. All
tokens but the last are loaded; whatever is wrong, vLLM computes the prompt as it would any other.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from vllm_kvweave.load_jobs import LoadJob, StepJobs, digest_of

log = logging.getLogger("vllm.kvweave")  # a child of vLLM's logger: its handlers show it

NAME = "kvweave"  # of our entry in the parameters
LONGEST_HANDLE = 128


class SchedulerRequest(Protocol):
    """What is read of vLLM's request."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt_token_ids(self) -> Sequence[int] | None: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def kv_transfer_params(self) -> Mapping[str, object] | None: ...
    @property
    def lora_request(self) -> object: ...
    @property
    def mm_features(self) -> Sequence[object]: ...


@dataclass(frozen=True, slots=True)
class Handover:
    """What a request says of its prompt. `timeout_s`: how long its load may take, where it says."""

    handle: str
    tokens: int
    digest: str
    timeout_s: float | None = None


def handover_of(params: Mapping[str, object] | None) -> Handover | None:
    """What a request's parameters say for kvweave; None where they say nothing. Raises ValueError for a misspelling."""
    given = (params or {}).get(NAME)
    if given is None:
        return None
    said = cast("Mapping[str, object]", given if isinstance(given, Mapping) else {})
    match said.get("handle"), said.get("tokens"), said.get("digest"), said.get("timeout_s"):
        case str(handle), int(tokens), str(digest), None | int() | float() as timeout_s if 0 < len(
            handle
        ) <= LONGEST_HANDLE and (timeout_s is None or timeout_s > 0):
            return Handover(handle, tokens, digest, timeout_s)
        case _:
            raise ValueError("the parameters for kvweave are handle, tokens and digest, as kvweave gave them")


class Scheduling:
    """The scheduler's half of the connector. A request is loaded once: asked again, it is computed.

    Where several requests have one handle, as the answers of one request with `n` have, one loads and the others wait:
    they find its blocks in vLLM's cache, and load what no whole block holds.
    vLLM asks again behind a load that failed and behind a preemption; another answer than nothing would never end.
    """

    def __init__(self, release: Callable[[str], None], *, timeout_s: float) -> None:
        self._release = release
        self._timeout_s = timeout_s
        self._tried: set[str] = set()
        self._loading: dict[str, LoadJob] = {}
        self._waiting: dict[str, set[str]] = {}  # requests, by the handle that another one loads
        self._loaded: dict[str, int] = {}
        self._left: set[str] = set()  # ended before their loads did
        self._next = StepJobs()

    def missing(self, request: SchedulerRequest, computed: int) -> int | None:
        """How many tokens behind those that vLLM has would come from kvweave; None: another request loads them now.

        May be asked any number of times.
        """
        if any(request.request_id in names and self._loads(handle) for handle, names in self._waiting.items()):
            return None  # asked at each step: what it said is known to be right
        wanted = self._wanted(request)
        if wanted is None or computed >= wanted.tokens - 1:
            return 0
        if self._loads(wanted.handle):
            self._waiting.setdefault(wanted.handle, set()).add(request.request_id)
            return None
        return wanted.tokens - 1 - computed

    def allocated(self, request: SchedulerRequest, blocks: tuple[list[int], ...], *, tokens: int) -> None:
        """Notes the blocks that `tokens` of the request go into; vLLM says 0 when they are for its own computing."""
        wanted = self._wanted(request)
        if wanted is None:
            return
        if not tokens:
            self._waits_no_more(request.request_id)
            return
        stop = wanted.tokens - 1
        patience = self._timeout_s if wanted.timeout_s is None else min(wanted.timeout_s, self._timeout_s)
        name = request.request_id
        job = LoadJob(name, wanted.handle, wanted.digest, stop - tokens, stop, blocks, patience)
        self._tried.add(name)
        self._loading[name] = job
        self._next.jobs.append(job)
        self._waits_no_more(name)

    def next_step(self) -> StepJobs:
        """What the workers are told with this step."""
        told, self._next = self._next, StepJobs()
        return told

    def ended(self, loaded: Collection[str], *, failed: Collection[str]) -> None:
        """Notes loads that have ended in all workers, those that failed in any among them.

        Their handles are let go, but where others wait for them still.
        """
        for name in loaded:
            job = self._loading.pop(name, None)
            if job is None:
                continue
            if name in failed:
                self._tried.update(self._waiting.pop(job.handle, ()))
            self._let_go(job.handle)
            if name in self._left:
                self._left.discard(name)
            else:
                self._loaded[name] = 0 if name in failed else job.stop - job.start

    def finished(self, request: SchedulerRequest) -> dict[str, object] | None:
        """What the completion tells: how many tokens were loaded. A load that is under way is called off."""
        name = request.request_id
        if name in self._loading:
            self._next.cancelled.append(name)
            self._left.add(name)
        self._waits_no_more(name)
        self._tried.discard(name)
        loaded = self._loaded.pop(name, 0)
        return {NAME: {"loaded": loaded}} if NAME in (request.kv_transfer_params or {}) else None

    def _loads(self, handle: str) -> bool:
        return any(job.handle == handle for job in self._loading.values())

    def _waits_no_more(self, name: str) -> None:
        """A request that waited for another's load is served, or over."""
        for handle in [handle for handle, names in self._waiting.items() if name in names]:
            self._waiting[handle].discard(name)
            self._let_go(handle)

    def _let_go(self, handle: str) -> None:
        """Releases a handle that nobody loads or waits for."""
        if not self._waiting.get(handle) and not self._loads(handle):
            self._waiting.pop(handle, None)
            self._release(handle)

    def _wanted(self, request: SchedulerRequest) -> Handover | None:
        """What is to be loaded for a request that was not tried yet. One with a fault is tried, and told of once."""
        if request.request_id in self._tried:
            return None
        try:
            wanted = handover_of(request.kv_transfer_params)
            if wanted is not None:
                _check(request, wanted)
        except ValueError as error:
            log.warning("kvweave: request %s is computed by vLLM: %s", request.request_id, error)
            self._tried.add(request.request_id)
            return None
        return wanted


def _check(request: SchedulerRequest, wanted: Handover) -> None:
    """Raises ValueError for a request whose prompt is not the one that was handed over."""
    ids = request.prompt_token_ids or ()
    if not request.cache_salt:
        raise ValueError("without a cache_salt its blocks would be taken for exact ones by other requests")
    if request.lora_request is not None or request.mm_features:
        raise ValueError("adapters and media are in no prompt of kvweave")
    if wanted.tokens != len(ids) or wanted.digest != digest_of(ids):
        raise ValueError("the handle is for other token ids")
