"""Chooses Triton, numba or torch to place stored rows on a device, and warns where a kernel's package is missing."""

import logging
from functools import cache

import torch

from blend.kernels.kernels import cpu_place_kernel, gpu_place_kernel
from blend.place.cpu_placement import WORDS, CpuPlacement
from blend.place.gpu_placement import GpuPlacement
from blend.place.placement import Placement, SplitPlacement
from blend.place.torch_placement import TorchPlacement

log = logging.getLogger(__name__)


@cache
def placement(dtype: torch.dtype, device: torch.device) -> Placement:
    """What places on this device, compiled the first time that it is asked for."""
    by_torch = TorchPlacement(dtype, device)
    if device.type == "cuda":
        if gpu_place_kernel is not None:
            return SplitPlacement(GpuPlacement(dtype, device), plain=by_torch)
        log.warning("stored chunks are unpacked by torch, several times slower: pip install triton mends it")
    elif device.type == "cpu" and dtype in WORDS:
        if cpu_place_kernel is not None:
            return SplitPlacement(CpuPlacement(dtype, cpu_place_kernel), plain=by_torch)
        log.warning("stored chunks are unpacked by torch, several times slower: pip install 'kvweave[cpu]' mends it")
    return by_torch
