"""A worker's paged cache as loads see it: layers, and what writes into them. Knows no layout and no vLLM."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Keys and values (T, H, D) of a layer, and the slots (T,) that they go into."""

    keys: Tensor
    values: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """A layer of this worker: the decoder layer's `index`, its cache group, the heads that the worker has of it, and
    what writes into its cache.
    """

    index: int
    group: int
    heads: int
    key_dim: int
    value_dim: int
    write: Callable[[PagedRows], None]

    @property
    def dims(self) -> int:
        """How many numbers a head keeps for a token, keys and values."""
        return self.key_dim + self.value_dim


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker stands: its rank among those that share the heads, what it computes in, and a group's block sizes.

    `beside` is entered around what a load does where the cache lies, so that it runs beside what the worker computes.
    """

    rank: int
    ranks: int
    dtype: str
    block_sizes: tuple[int, ...]
    beside: Callable[[], AbstractContextManager[object]]

    @property
    def torch_dtype(self) -> torch.dtype:
        """What numbers are, as torch names it."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found
