# vLLM's types are known where vLLM is installed, and checks run without it:
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# pyright: reportMissingModuleSource=false
"""The class that vLLM loads: translates between its connector API and our two halves. Decides nothing itself."""

import logging
import os
import re
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.version import __version__ as vllm_version

from vllm_kvweave.load_jobs import StepJobs
from vllm_kvweave.loading import Loading, PagedLayer, PagedRows, WorkerPlace
from vllm_kvweave.scheduling import Scheduling
from vllm_kvweave.source import Refused, Source
from vllm_kvweave.support import Deployment, Unsupported

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

log = logging.getLogger("vllm.kvweave")

TIMEOUT_S = 10.0  # until a prompt has come, where the settings do not say
RELEASE_S = 5.0
LAYER = re.compile(r"\.layers\.(\d+)\.")


class StepMetadata(KVConnectorMetadata):
    """What vLLM carries from its scheduler to its workers."""

    def __init__(self, step: StepJobs) -> None:
        self.step = step


class KvweaveConnector(KVConnectorBase_V1, SupportsHMA):
    """One stands in vLLM's scheduler, one in each of its workers.

    `kv_connector_extra_config`: `base_url` of kvweave and `timeout_s`. The variables KVWEAVE_BASE_URL and
    KVWEAVE_API_KEY name the address, where the settings do not, and the key.
    """

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _deployment(self._vllm_config).check()
        extra = self._kv_transfer_config.kv_connector_extra_config
        url = extra.get("base_url") or os.environ.get("KVWEAVE_BASE_URL", "")
        if not url:
            raise Unsupported("vllm-kvweave: name kvweave's address as base_url in kv_connector_extra_config")
        self._source = Source(url, os.environ.get("KVWEAVE_API_KEY", "").strip())
        self._releases = ThreadPoolExecutor(1, "kvweave-release")
        self._scheduling = Scheduling(self._release, timeout_s=float(extra.get("timeout_s", TIMEOUT_S)))
        self._loading: Loading | None = None
        self._is_idle = False
        self._ready: torch.cuda.Event | None = None  # where the device is when a load may begin to write

    # vLLM's scheduler calls these.

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens come from kvweave, and that vLLM need not wait for them; None: it is to ask again."""
        missing = self._scheduling.missing(request, num_computed_tokens)
        return missing, bool(missing)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """Notes the blocks that a load goes into."""
        self._scheduling.allocated(request, blocks.get_block_ids(), tokens=num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepMetadata:
        """What the workers are told with this step."""
        return StepMetadata(self._scheduling.next_step())

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Notes the loads that have ended in all workers."""
        failed = connector_output.failed_recving or ()
        self._scheduling.ended(connector_output.finished_recving or (), failed=failed)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, object] | None]:
        """Nothing of a request is kept when it is over; its completion tells how many tokens were loaded."""
        return False, self._scheduling.finished(request)

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, object] | None]:
        """See `request_finished`."""
        return False, self._scheduling.finished(request)

    def _release(self, handle: str) -> None:
        self._releases.submit(_release, self._source, handle)

    # Each of vLLM's workers calls these.

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        """Takes note of the layers, their groups and their writers."""
        modules = self._vllm_config.compilation_config.static_forward_context
        layers: list[PagedLayer] = []
        sizes: list[int] = []
        for number, group in enumerate(self._kv_cache_config.kv_cache_groups):
            sizes.append(group.kv_cache_spec.block_size)
            named = [name for name in group.layer_names if name in kv_caches]
            layers += [found for name in named if (found := _layer(name, modules[name], group=number))]
        place = WorkerPlace(
            get_tensor_model_parallel_rank(),
            get_tensor_model_parallel_world_size(),
            str(self._vllm_config.model_config.dtype).removeprefix("torch."),
            tuple(sizes),
            self._beside(next(iter(kv_caches.values())).device),
        )
        self._loading = Loading(self._source, layers, place=place)
        log.info("kvweave: prompts come into %d layers in %d groups, as %s", len(layers), len(sizes), place.dtype)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: object) -> None:
        """Begins the loads of this step, behind what the device has been told so far."""
        self._is_idle = forward_context.attn_metadata is None
        step = self._get_connector_metadata().step
        if step.jobs and self._ready is not None:
            self._ready.record()
        self._loads.begin(step)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The loads that have ended, and those of them that failed."""
        ended, failed = self._loads.ended(is_idle=self._is_idle)
        return KVConnectorTransferResults(finished_recving=ended, failed_recving=failed)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request runs when all of its layers are there."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: object, **kwargs: object) -> None:
        """Nothing: kvweave gives alone."""

    def wait_for_save(self) -> None:
        """Nothing, as nothing is saved."""

    def shutdown(self) -> None:
        """Lets go of the threads."""
        self._releases.shutdown(wait=False, cancel_futures=True)
        if self._loading is not None:
            self._loading.close()

    @property
    def _loads(self) -> Loading:
        assert self._loading is not None, "vLLM registers its caches before the first step"
        return self._loading

    def _beside(self, device: torch.device) -> Callable[[], AbstractContextManager[None]]:
        """What makes a load's copies run beside what a GPU computes; on a CPU there is nothing to do."""
        if device.type != "cuda":
            return nullcontext
        self._ready = torch.cuda.Event()
        return partial(_on_stream, device, self._ready)


def _deployment(config: "VllmConfig") -> Deployment:
    parallel, transfer, drafts = config.parallel_config, config.kv_transfer_config, config.speculative_config
    return Deployment(
        vllm_version,
        str(transfer.kv_role),
        str(transfer.kv_load_failure_policy),
        pipeline_ranks=parallel.pipeline_parallel_size,
        context_ranks=max(parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size),
        is_latent=bool(config.model_config.use_mla),
        drafts=str(drafts.method) if drafts is not None else "",
    )


def _layer(name: str, module: "Attention", *, group: int) -> PagedLayer | None:
    """A layer as we need it; None for one that reads another's keys and values. Raises Unsupported for another kind."""
    if getattr(module, "kv_sharing_target_layer_name", None):
        return None
    found = LAYER.search(name)
    if found is None or not hasattr(module.impl, "do_kv_cache_update") or not hasattr(module, "num_kv_heads"):
        raise Unsupported(f"vllm-kvweave: the layer {name} keeps something else than keys and values")
    return PagedLayer(
        int(found[1]), group, module.num_kv_heads, module.head_size, module.head_size_v, partial(_write, module)
    )


def _write(module: "Attention", rows: PagedRows) -> None:
    """Writes as the model itself does: the backend's writer knows the layout, the scales and the type of its cache."""
    cache = module.kv_cache
    keys, values, slots = (each.contiguous().to(cache.device) for each in (rows.keys, rows.values, rows.slots))
    module.impl.do_kv_cache_update(module, keys, values, cache, slots)


@contextmanager
def _on_stream(device: torch.device, ready: torch.cuda.Event) -> Generator[None]:
    """A stream of the load's own, behind the event; it is through when the block ends."""
    stream = torch.cuda.Stream(device)
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


def _release(source: Source, handle: str) -> None:
    try:
        source.release(handle, timeout_s=RELEASE_S)
    except Refused as error:  # its lease ends anyway
        log.debug("kvweave: a handle was not released: %s", error)
