# numba and ctypes have few types:
# pyright: reportUnknownArgumentType=false
"""What numba compiles to bring arrays together that lie anywhere: one call in which other threads go on.

Array by array each copy would give the interpreter's lock away and wait for its turn again.
"""

import ctypes

import numpy as np
from numpy.typing import NDArray

from blend.kernels.compiled import compiled

_copy = ctypes.CDLL(None).memcpy
_copy.argtypes = [ctypes.c_size_t] * 3  # numbers, as numba makes no addresses
_copy.restype = ctypes.c_size_t


@compiled
def gathered(places: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Copies memory, of which places (N, 2) tell addresses and how many bytes, one behind the other."""
    to = out.ctypes.data
    for number in range(len(places)):
        _copy(to, places[number, 0], places[number, 1])
        to += places[number, 1]
