"""Packed codes straight to their slots in a context, on a CPU and by several threads at once.

The numbers are those that `unpack` and `rotate_into` make, a rotation rounded perhaps otherwise in float32's last bit,
but nothing is written between codes and context, which takes a quarter of the time. Needs numba, of the extra `cpu`.
"""

import logging
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.model.rotation import Angles, Rotation
from store.record import FramedPart

try:
    from blend.model.place_kernel import place_kernel
except ImportError:
    place_kernel = None

log = logging.getLogger(__name__)

IS_COMPILED = place_kernel is not None  # so that codes are placed as they lie in frames, on a CPU

Turn = tuple[bool, int, NDArray[np.float32], NDArray[np.float32]]  # see `turn`

_NO_ANGLES = np.zeros((0, 0), np.float32)
_WORDS = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16}


@cache
def packed_placer(dtype: torch.dtype, device: torch.device) -> "PackedPlacer | None":
    """What places on this device, compiled the first time that it is asked for; None where torch has to do it."""
    if device.type != "cpu" or dtype not in _WORDS:
        return None
    if place_kernel is None:
        log.warning("stored chunks are unpacked by torch, several times slower: pip install 'kvweave[cpu]' mends it")
        return None
    return PackedPlacer(dtype)


class PackedPlacer:
    """Holds the compiled kernel of one dtype. Threads may share it."""

    def __init__(self, dtype: torch.dtype) -> None:
        assert place_kernel is not None
        self._words = _WORDS[dtype]
        self._kernel = place_kernel(is_short=dtype == torch.bfloat16)

    def place(
        self, out: tuple[Tensor, Tensor], part: FramedPart, *, rows: int, slot: int, turns: tuple[Turn, Turn]
    ) -> None:
        """Write the part's first rows to keys and values (H, C, D) of a context, from the slot on."""
        keys, values = (each.view(self._words).numpy() for each in out)
        self._kernel(part.data, part.sizes, tuple(part.layout), (rows, slot), turns, (keys, values))


def turn(rotation: Rotation | None, angles: Angles) -> Turn:
    """How rows turn whose angles (T, n) these are, as the kernel takes it."""
    if rotation is None or not rotation.pairs:
        return True, 0, _NO_ANGLES, _NO_ANGLES
    sin = angles.sin if rotation.sign > 0 else -angles.sin
    return rotation.pairing == "halves", rotation.start, angles.cos.numpy(), sin.numpy()
