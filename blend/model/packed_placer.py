"""Packed codes straight to their slots in a context, on a CPU and by several threads at once.

The numbers are those that `unpack` and `rotate_into` make, a rotation rounded perhaps otherwise in float32's last bit,
but nothing is written between codes and context, which takes a quarter of the time. Needs numba, of the extra `cpu`.
"""

import logging
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from blend.model.rotation import Angles, Rotation
from store.record import PackedTensor, codes_per_byte

try:
    from blend.model.place_kernel import place_kernel
except ImportError:
    place_kernel = None

log = logging.getLogger(__name__)

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
        self, out: Tensor, tensors: Sequence[PackedTensor], *, slots: slice, rotation: Rotation | None, angles: Angles
    ) -> None:
        """Write as many of the tensors' first tokens as there are slots to a buffer (H, C, D) of a context.

        They stand one behind the other along T. `angles` (T, n) are those of the slots.
        """
        words = out.view(self._words).numpy()
        cos = sin = _NO_ANGLES
        is_halves, first = True, 0
        if rotation is not None and rotation.pairs:
            cos, sin = angles.cos.numpy(), (angles.sin if rotation.sign > 0 else -angles.sin).numpy()
            is_halves, first = rotation.pairing == "halves", rotation.start
        slot = slots.start
        for each in tensors:
            tokens = min(each.tokens, slots.stop - slot)
            scales = np.ascontiguousarray(each.scales)
            centers = np.zeros((len(scales), 0, 0), np.float32) if each.centers is None else each.centers
            form = (each.bits, 8 // codes_per_byte(each.bits), tokens, slot)
            self._kernel(each.codes, scales, centers, cos, sin, form, (is_halves, first, slot - slots.start), words)
            slot += tokens
            if slot == slots.stop:
                return
