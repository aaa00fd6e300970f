# torch's binding of CUDA has no types:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportOptionalMemberAccess=false
"""Pinned host memory, which a GPU reads in place, without a copy; ordinary memory where the driver pins no more."""

import logging
from mmap import PAGESIZE, mmap

import numpy as np
import torch

from store.codec.unpacked import Memory

log = logging.getLogger(__name__)

_PORTABLE = 1  # for all devices of the process


class _Pages(mmap):
    """Pages of their own, registered with the driver while they live."""

    address = 0

    def __del__(self) -> None:
        if self.address:
            torch.cuda.cudart().cudaHostUnregister(self.address)


def pinned_memory(nbytes: int) -> Memory:
    """Pages for at least so many bytes; ordinary memory where the driver pins no more."""
    pages = _Pages(-1, max(PAGESIZE, -(-nbytes // PAGESIZE) * PAGESIZE))
    data = np.frombuffer(pages, np.uint8)
    address = data.ctypes.data
    failed = int(torch.cuda.cudart().cudaHostRegister(address, data.nbytes, _PORTABLE))
    if failed:
        log.warning("the driver pins no more memory (error %d): chunks in memory reach the GPU later", failed)
        return Memory(data)
    pages.address = address
    return Memory(data, is_pinned=True)
