"""Packed codes straight to their slots in a context, on a CPU and by several threads at once.

The numbers are those that `unpack` and `rotate_into` make, a rotation rounded perhaps otherwise in float32's last bit,
but nothing is written between codes and context, which takes a quarter of the time. Needs numba, of the extra `cpu`.
"""

import logging
from functools import cache
from itertools import groupby

import numpy as np
import torch

from blend.kernels.kernels import place_kernel
from blend.place.row_turn import ROW, CodePlacer, LayerPlaces, RowTurn

try:
    from blend.place.span_placer import SpanPlacer
except ImportError:
    SpanPlacer = None

log = logging.getLogger(__name__)

IS_COMPILED = place_kernel is not None  # so that codes are placed as they lie in frames, on a CPU

_NO_ROWS, _NO_SLOTS, _NO_SIZES = np.zeros((1, 0, ROW), np.int64), np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
_NO_TURN = RowTurn().arrays
_WORDS = {torch.float32: np.uint32(0), torch.bfloat16: np.uint16(0)}


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
        self._word = _WORDS[dtype]
        self._limit = np.float32(torch.finfo(dtype).max)
        self._kernel = place_kernel(is_short=dtype == torch.bfloat16)
        self._learn_types()

    def place(self, layers: LayerPlaces) -> None:
        """Write what is stored, layers by one call that turn alike."""
        out, (rows, slots, sizes), turns = layers
        assert all(each.is_contiguous() for both in out for each in both), "a layer's keys lie in one piece"
        begins = np.array([[each.data_ptr() for each in both] for both in out], np.int64)
        shapes = tuple(out[0][0].shape), tuple(out[0][1].shape)
        stop = 0
        for _, alike in groupby(turns, key=id):
            same = [*alike]
            start, stop = stop, stop + len(same)
            angles = same[0][0].arrays, same[0][1].arrays
            buffers = begins[start:stop], *shapes, self._word
            self._kernel((rows[start:stop], slots), sizes, self._limit, angles, buffers)

    def _learn_types(self) -> None:
        """Call it once for nothing: numba may give a type two numbers and refuse it, where two threads call first."""
        nowhere = np.zeros((1, 2), np.int64), (0, 0, 0), (0, 0, 0), self._word
        self._kernel((_NO_ROWS, _NO_SLOTS), _NO_SIZES, self._limit, (_NO_TURN, _NO_TURN), nowhere)
