"""Brings prompts into vLLM's paged cache, in threads of a worker. Knows no layout: a layer's own writer is called.

A load that fails, for whatever reason, is reported as such, and vLLM computes the prompt.
"""

import logging
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial
from mmap import mmap
from pathlib import Path
from threading import Condition, Event

import torch
from torch import Tensor

from vllm_kvweave.load_jobs import LoadJob, StepJobs
from vllm_kvweave.source import Part, PromptForm, Pull, Refused, Source

log = logging.getLogger("vllm.kvweave")

PULLS = 4  # prompts at once
NULL = 0  # vLLM's block for what a sliding window has left
UNUSED_S = 1.0  # that kvweave may take to hear of a load that failed, before vLLM does
IDLE_S = 0.005  # a step that computes nothing waits so long for a load: vLLM asks again at once

FOLDER = Path("/dev/shm")
NAME = re.compile(r"kvweave-[A-Za-z0-9_-]{16,64}")


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Keys and values (T, H, D) of a layer, and the slots (T,) that they go into."""

    keys: Tensor
    values: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """A layer of this worker: the decoder layer's `index`, its cache group, the heads that the worker has of it, and
    what writes into its cache.
    """

    index: int
    group: int
    heads: int
    key_dim: int
    value_dim: int
    write: Callable[[PagedRows], None]

    @property
    def dims(self) -> int:
        """How many numbers a head keeps for a token, keys and values."""
        return self.key_dim + self.value_dim


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker stands: its rank among those that share the heads, what it computes in, and a group's block sizes.

    `beside` is entered around what a load does where the cache lies, so that it runs beside what the worker computes.
    """

    rank: int
    ranks: int
    dtype: str
    block_sizes: tuple[int, ...]
    beside: Callable[[], AbstractContextManager[object]]

    @property
    def torch_dtype(self) -> torch.dtype:
        """What numbers are, as torch names it."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found


class Loading:
    """A worker's half of the connector."""

    def __init__(self, source: Source, layers: Sequence[PagedLayer], *, place: WorkerPlace) -> None:
        self._source = source
        self._layers = sorted(layers, key=lambda each: each.index)
        self._place = place
        self._changed = Condition()
        self._running: dict[str, Event] = {}  # set where the load is wanted no more
        self._ended: set[str] = set()
        self._failed: set[str] = set()
        self._pulls = ThreadPoolExecutor(PULLS, "kvweave-pull")

    def begin(self, step: StepJobs) -> None:
        """Begins the loads of a step, and calls off what it names. Returns at once."""
        for name in step.cancelled:
            if (called_off := self._running.get(name)) is not None:
                called_off.set()
        for job in step.jobs:
            called_off = self._running[job.request] = Event()
            self._pulls.submit(self._run, job, called_off)

    def ended(self, *, is_idle: bool) -> tuple[set[str], set[str]]:
        """The requests whose loads have ended since it was asked last, and those of them that failed."""
        with self._changed:
            if is_idle and not self._ended:  # also where another rank's load is the one that is waited for
                self._changed.wait(IDLE_S)
            ended, self._ended = self._ended, set()
            failed, self._failed = self._failed, set()
        return ended, failed

    def close(self) -> None:
        """Calls off what runs, and lets go of the threads."""
        for called_off in list(self._running.values()):
            called_off.set()
        self._pulls.shutdown(cancel_futures=True)

    def _run(self, job: LoadJob, called_off: Event) -> None:
        is_failed = True
        try:
            self._load(job, called_off)
            is_failed = False
        except Refused as error:
            log.warning("kvweave: request %s is computed by vLLM: %s", job.request, error)
        except Exception as error:
            log.exception("kvweave: request %s is computed by vLLM", job.request, exc_info=error)
        finally:  # each load ends once, or its blocks would be held for ever
            with self._changed:
                self._ended.add(job.request)
                if is_failed:
                    self._failed.add(job.request)
                del self._running[job.request]
                self._changed.notify()

    def _load(self, job: LoadJob, called_off: Event) -> None:
        """Brings a prompt, or tells kvweave that it was not used, before vLLM begins to compute it."""
        is_there = False
        try:
            with closing(self._source.pull(job.handle, timeout_s=job.timeout_s)) as pull:
                self._bring(pull, job, called_off=called_off)
            is_there = True
        finally:
            if not is_there:
                with suppress(Refused):
                    self._source.release(job.handle, timeout_s=UNUSED_S, used=False)

    def _bring(self, pull: Pull, job: LoadJob, *, called_off: Event) -> None:
        form = pull.form()
        self._check(job, form)
        places = [_places(job, group, size=size) for group, size in enumerate(self._place.block_sizes)]
        part = Part(job.start, job.stop, self._place.rank, self._place.ranks)
        memory = mapped_prompt(form.shared, form.start(len(form.layers)) * self._place.torch_dtype.itemsize)
        for number, layer in enumerate(self._layers):
            if called_off.is_set():
                raise Refused("it is wanted no more")
            kept, slots = places[layer.group]
            if memory is None:
                nbytes = (job.stop - job.start) * layer.heads * layer.dims * self._place.torch_dtype.itemsize
                rows = partial(self._pulled, pull.layer(form.layers[number], part=part, nbytes=nbytes), layer)
            else:
                is_last = number + 1 == len(self._layers)  # who asks for all says that he has all
                form = pull.form(number + 1) if is_last or number >= form.final else form
                rows = partial(self._mapped, memory, job, form=form, number=number)
            with torch.inference_mode(), self._place.beside():
                keys, values = rows()
                layer.write(PagedRows(keys[kept], values[kept], slots))

    def _check(self, job: LoadJob, form: PromptForm) -> None:
        """Raises Refused where the prompt is another, or another model's."""
        if form.digest != job.digest or form.tokens != job.stop + 1:
            raise Refused("the handle is for other token ids")
        if form.dtype != self._place.dtype:
            raise Refused(f"the prompt's numbers are {form.dtype}, vLLM computes in {self._place.dtype}: give both one")
        if [each.index for each in self._layers] != [each.index for each in form.layers]:
            raise Refused(f"the prompt has {len(form.layers)} layers, and vLLM others: both serve one model")
        for layer, other in zip(self._layers, form.layers, strict=True):
            shares = {_share(each, self._place.ranks) for each in (other.key_heads, other.value_heads)}
            if shares != {layer.heads} or (other.key_dim, other.value_dim) != (layer.key_dim, layer.value_dim):
                raise Refused(f"layer {layer.index} has another shape in vLLM: both serve one model")

    def _pulled(self, body: bytearray, layer: PagedLayer) -> tuple[Tensor, Tensor]:
        """Keys and values (T, H, D) out of a body."""
        both = torch.frombuffer(body, dtype=self._place.torch_dtype)
        count = len(both) // layer.dims
        keys, values = both.split_with_sizes([count * layer.key_dim, count * layer.value_dim])
        return keys.reshape(-1, layer.heads, layer.key_dim), values.reshape(-1, layer.heads, layer.value_dim)

    def _mapped(self, memory: mmap, job: LoadJob, *, form: PromptForm, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values (T, H, D) of this worker's heads, where they lie."""
        place, layer = self._place, form.layers[number]
        whole = torch.frombuffer(memory, dtype=self._place.torch_dtype)[form.start(number) : form.start(number + 1)]
        keys = whole[: (form.tokens - 1) * layer.key_heads * layer.key_dim]
        cut: list[Tensor] = []
        for rows, heads in ((keys, layer.key_heads), (whole[len(keys) :], layer.value_heads)):
            first = place.rank * heads // place.ranks
            mine = slice(first, first + _share(heads, place.ranks))
            cut.append(rows.reshape(form.tokens - 1, heads, -1)[job.start : job.stop, mine])
        return cut[0], cut[1]


def _share(heads: int, ranks: int) -> int:
    """How many heads each of so many workers has; where there are fewer heads than workers, several have the same."""
    return max(1, heads // ranks)


def _places(job: LoadJob, group: int, *, size: int) -> tuple[Tensor, Tensor]:
    """A flag for each of the job's tokens that has a block in a group, and the slots of those that have."""
    tokens = torch.arange(job.start, job.stop)
    blocks = torch.tensor(job.blocks[group], dtype=torch.int64)[tokens // size]
    kept = blocks != NULL
    return kept, (blocks * size + tokens % size)[kept]


def mapped_prompt(name: str, nbytes: int) -> mmap | None:
    """The memory that kvweave names; None where this host, or this user, has none of this name and size."""
    if not NAME.fullmatch(name):
        return None
    try:
        file = os.open(FOLDER / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        is_fitting = found.st_uid == os.geteuid() and 0 < nbytes == found.st_size
        return mmap(file, nbytes) if is_fitting else None
    except OSError:
        return None
    finally:
        os.close(file)
