"""Rows of a decoding step on a CPU, one of each request, in contexts of their own: written and attended by one call.

Letters: `N` rows, `H` kv heads, `Hq` query heads, `D` and `E` numbers of a key and of a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.model.context import Context, LayerShape, Segment

try:
    from blend.model.lone_kernel import lone_kernels
except ImportError:
    lone_kernels = None

_WORDS = {torch.float32: np.uint32(0), torch.bfloat16: np.uint16(0)}
_VIEWED = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16}


@cache
def lone_attention(dtype: torch.dtype, device: torch.device) -> "LoneAttention | None":
    """What attends such rows on this device, compiled the first time; None where torch does it request by request."""
    if lone_kernels is None or device.type != "cpu" or dtype not in _WORDS:
        return None
    return LoneAttention(dtype)


class LoneAttention:
    """Holds the compiled kernels of one dtype. Threads may share it."""

    def __init__(self, dtype: torch.dtype) -> None:
        assert lone_kernels is not None
        self.dtype = dtype
        self.word = _WORDS[dtype]
        self.kernels = lone_kernels(is_short=dtype == torch.bfloat16)
        self._learn_types()

    def rows(self, segments: Sequence[Segment]) -> "LoneRows | None":
        """A pass' rows; None where some have more of a context than one row, or share it.

        Where torch computes by several threads it reads a long context sooner than one thread here.
        """
        if torch.get_num_threads() > 1:
            return None
        contexts = [each.context for each in segments if type(each.context) is Context and len(each.slots) == 1]
        if len(contexts) < len(segments) or not all(self._takes(shape) for shape in contexts[0].shapes if shape):
            return None
        places = np.stack([each.addresses for each in contexts], axis=1)
        places[:, :, 2:] *= self.dtype.itemsize
        return LoneRows(self, contexts[0].shapes, places, np.array([each.slots.last for each in segments], np.int64))

    def _takes(self, shape: LayerShape) -> bool:
        """Whether its numbers are whole lanes, and each head of keys has its values."""
        return not (shape.key_dim | shape.value_dim) % self.kernels.lanes and shape.key_heads == shape.value_heads

    def _learn_types(self) -> None:
        """Call them once for nothing: numba may give a type two numbers and refuse it, where two threads call first."""
        nobody, nowhere, nothing = np.zeros(0, np.int64), np.zeros((0, 4), np.int64), np.zeros((0, 1, 1, 1), np.float32)
        self.kernels.attend(nothing, nothing, nowhere, nobody, 1, np.float32(1), self.word)
        words = np.zeros((0, 1, 1), self.word.dtype)
        self.kernels.write(words, words, nowhere, nobody)


@dataclass(frozen=True, slots=True)
class LoneRows:
    """Rows of a pass, one of each context: `places` (L, N, 4) as the kernels take them, and slots (N,)."""

    by: LoneAttention
    shapes: Sequence[LayerShape | None]
    places: NDArray[np.int64]
    slots: NDArray[np.int64]

    @property
    def most(self) -> int:
        """How many slots are visible to one of them."""
        return int(self.slots.max()) + 1

    def write(self, layer: int, keys: Tensor, *, values: Tensor) -> None:
        """Put a pass' keys and values (H, N, D) at their slots."""
        words = _VIEWED[keys.dtype]
        fresh = [each.transpose(0, 1).contiguous().view(words).numpy() for each in (keys, values)]
        self.by.kernels.write(*fresh, self.places[layer], self.slots)

    def attend(self, layer: int, query: Tensor, *, window: int, scale: float) -> Tensor:
        """Query (1, Hq, N, D) to (1, N, Hq, E), each row over so many slots up to its own."""
        shape, (heads, count, dim) = self.shapes[layer], query.shape[1:]
        assert shape is not None
        asked = query[0].transpose(0, 1).float().contiguous().view(count, shape.key_heads, -1, dim)
        found = torch.empty(1, count, heads, shape.value_dim)
        out = found.view(count, shape.key_heads, -1, shape.value_dim).numpy()
        places = self.places[layer]
        self.by.kernels.attend(out, asked.numpy(), places, self.slots, window, np.float32(scale), self.by.word)
        return found.to(query.dtype)
