"""Stored rows into a context on a CPU by numba, of the extra `cpu`: float32 and bfloat16 alone, from several threads.

Nothing is written between codes and context, which takes a quarter of the time of `TorchPlacement`.
"""

from collections.abc import Callable
from itertools import groupby

import numpy as np
import torch

from blend.place.placement import LayerPlaces, RowTurn
from store.rows import IN_CODES, ROW

WORDS = {torch.float32: np.uint32(0), torch.bfloat16: np.uint16(0)}  # of the dtypes that are placed

_NO_ROWS, _NO_SLOTS, _NO_SIZES = np.zeros((1, 0, ROW), np.int64), np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
_NO_TURN = RowTurn().arrays


class CpuPlacement:
    """See `KernelPlacement`. Holds the compiled kernel of one dtype, which `compiled` returns."""

    takes = IN_CODES

    def __init__(self, dtype: torch.dtype, compiled: Callable[..., Callable[..., None]]) -> None:
        self._word = WORDS[dtype]
        self._limit = np.float32(torch.finfo(dtype).max)
        self._kernel = compiled(is_short=dtype == torch.bfloat16)
        self._learn_types()

    def place(self, layers: LayerPlaces) -> None:
        out, (_, rows, sizes), slots, turns = layers
        assert all(each.is_contiguous() for both in out for each in both), "a layer's keys lie in one piece"
        begins = np.array([[each.data_ptr() for each in both] for both in out], np.int64)
        shapes = tuple(out[0][0].shape), tuple(out[0][1].shape)
        stop = 0
        for _, alike in groupby(turns, key=id):
            same = [*alike]
            start, stop = stop, stop + len(same)  # layers that turn alike go by one call
            angles = same[0][0].arrays, same[0][1].arrays
            buffers = begins[start:stop], *shapes, self._word
            self._kernel((rows[start:stop], slots), sizes, self._limit, angles, buffers)

    def _learn_types(self) -> None:
        """Call it once for nothing: numba may give a type two numbers and refuse it, where two threads call first."""
        nowhere = np.zeros((1, 2), np.int64), (0, 0, 0), (0, 0, 0), self._word
        self._kernel((_NO_ROWS, _NO_SLOTS), _NO_SIZES, self._limit, (_NO_TURN, _NO_TURN), nowhere)
