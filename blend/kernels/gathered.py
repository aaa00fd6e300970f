# numba and ctypes have few types:
# pyright: reportUnknownArgumentType=false
"""The numba kernel that gathers scattered arrays into one: a single call that releases the GIL.

Copied one by one, each array would release the GIL and wait for it again.
"""

import ctypes

import numpy as np
from numpy.typing import NDArray

from blend.kernels.compiled import compiled

_copy = ctypes.CDLL(None).memcpy
_copy.argtypes = [ctypes.c_size_t] * 3  # integers, as numba has no addresses
_copy.restype = ctypes.c_size_t


@compiled
def gathered(places: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Copies memory into `out`, one range behind the other; places (N, 2) are addresses and numbers of bytes."""
    to = out.ctypes.data
    for number in range(len(places)):
        _copy(to, places[number, 0], places[number, 1])
        to += places[number, 1]
