"""The largest errors that specs allow, and by how much a tensor that was read back misses them."""

from collections.abc import Callable

import numpy as np

from store.record import Dtype, largest, widen

OVERSHOOT = 2 ** (1 / 16) * (1 + 2**-7)  # a step is the next larger of the sizes 2**(e/16), rounded up to bfloat16
FLOOR = 2.0**-127 * (1 + 2**-10)  # half of the smallest step, and float32's rounding of the codes' reach


def rounding(wide: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Half the distance between neighbours of the dtype around each number, and float32's own rounding."""
    digits, smallest = {"float32": (24, 2.0**-149), "float16": (11, 2.0**-24), "bfloat16": (8, 2.0**-133)}[dtype]
    return np.maximum(np.abs(wide) * 2.0**-digits, smallest / 2) + np.abs(wide) * 2.0**-23


def largest_error(bits: float, width: np.ndarray) -> np.ndarray:
    """Half a step where the codes of one step reach over `width`, or one and a half of a trellis', half as wide."""
    in_trellis = bits != int(bits)
    return np.maximum(
        width * OVERSHOOT * 2.0 ** -(bits + 1) * (1.5 if in_trellis else 1), FLOOR * (3 if in_trellis else 1)
    )


def evened(bits: float, width: np.ndarray, *, axis: int) -> np.ndarray:
    """Between whole bits the geometric mean with the head's median, at most twice the width, and at least half of it,
    or what makes 16 levels of it.
    """
    if bits == int(bits):
        return width
    finest = width / min(2, 8 / 2**bits)
    return np.clip(np.sqrt(width * np.median(width, axis=axis, keepdims=True)), finest, 2 * width)


def key_bound(bits: float, keys: np.ndarray) -> np.ndarray:
    """For 64 to 127 tokens of a channel: the distance from least to most, or what float32 tells apart at that size."""
    width = evened(bits, np.ptp(keys, axis=1, keepdims=True) * 16 / 15, axis=2)
    return largest_error(bits, np.maximum(width, np.abs(keys).max(axis=1, keepdims=True) * 2.0**-25))


def value_bound(bits: float, values: np.ndarray) -> np.ndarray:
    """For the channels of one token and head: twice the largest magnitude."""
    return largest_error(bits, evened(bits, 2 * np.abs(values).max(axis=2, keepdims=True), axis=1))


def excess(before: np.ndarray, after: np.ndarray, dtype: Dtype, bound: Callable[[np.ndarray], np.ndarray]) -> float:
    """By how much the worst number misses the bound, and one rounding to the dtype; zero or less is kept."""
    old, new = widen(before, dtype).astype(np.float64), widen(after, dtype).astype(np.float64)
    allowed = bound(old) * (old.any(axis=1, keepdims=True) | old.any(axis=2, keepdims=True))
    allowed = allowed + rounding(np.minimum(np.abs(old) + allowed, largest(dtype)), dtype)
    return float((np.abs(old - new) - allowed).max())
