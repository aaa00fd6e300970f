"""Packed codes straight to their slots in a context, on a CPU and by several threads at once.

The numbers are those that `unpack` and `rotate_into` make, a rotation rounded perhaps otherwise in float32's last bit,
but nothing is written between codes and context, which takes a quarter of the time. Needs numba, of the extra `cpu`.
"""

import logging
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from blend.model.row_turn import ROW, CodePlacer, LayerPlaces, RowTurn

try:
    from blend.model.place_kernel import place_kernel
except ImportError:
    place_kernel = None
try:
    from blend.model.span_placer import SpanPlacer
except ImportError:
    SpanPlacer = None

log = logging.getLogger(__name__)

IS_COMPILED = place_kernel is not None  # so that codes are placed as they lie in frames, on a CPU

_NO_ROWS, _NO_SIZES = np.zeros((0, ROW), np.int64), np.zeros(0, np.float32)
_NO_TURN = RowTurn().arrays
_WORDS = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16}


@cache
def packed_placer(dtype: torch.dtype, device: torch.device) -> CodePlacer | None:
    """What places on this device, compiled the first time that it is asked for; None where torch has to do it."""
    if device.type == "cuda":
        if SpanPlacer is not None:
            return SpanPlacer(dtype, device)
        log.warning("stored chunks are unpacked by torch, several times slower: pip install triton mends it")
        return None
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
        self._limit = np.float32(torch.finfo(dtype).max)
        self._kernel = place_kernel(is_short=dtype == torch.bfloat16)
        self._learn_types()

    def place(self, layers: Sequence[LayerPlaces]) -> None:
        """Write what is stored of some layers, each in one call."""
        for out, stored, turns in layers:
            keys, values = (each.view(self._words).numpy() for each in out)
            both = turns[0].arrays, turns[1].arrays
            self._kernel((stored.rows, stored.slots), stored.sizes, self._limit, both, (keys, values))

    def _learn_types(self) -> None:
        """Call it once for nothing: numba may give a type two numbers and refuse it, where two threads call first."""
        nowhere = torch.zeros((0, 0, 0), dtype=self._words).numpy()
        self._kernel((_NO_ROWS, _NO_ROWS), _NO_SIZES, self._limit, (_NO_TURN, _NO_TURN), (nowhere, nowhere))
