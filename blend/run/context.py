"""Buffers for a request's keys and values, by layer, also behind a shared prefix; a CPU's large buffer is used again.

Letters: `H` kv heads, `C` capacity in tokens, `T` tokens, `D` head dim.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.run.states import ContextStates

Shape = tuple[int, int, int]

LARGE_BYTES = 32 << 20  # what is smaller the allocator keeps by itself

_ALIGNED = 64  # numbers: where each buffer begins


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer keeps for a token; heads and dims may differ between keys and values."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int

    @property
    def numbers(self) -> int:
        """How many numbers the layer keeps for each token."""
        return self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Slots:
    """Ascending places in a context. A slot is also the token's position in its prompt."""

    index: Tensor  # (T,) int64
    first: int
    last: int

    def __len__(self) -> int:
        return int(self.index.shape[0])

    @property
    def adjoining(self) -> bool:
        """Whether there is no hole between the first and the last."""
        return self.last - self.first + 1 == len(self)

    @property
    def where(self) -> slice | Tensor:
        """The index of these slots: a slice where one will do."""
        return slice(self.first, self.last + 1) if self.adjoining else self.index

    def part(self, start: int, stop: int) -> "Slots":
        """The slots `start` to `stop` of these, counted along them."""
        if stop - start == len(self):
            return self  # to ask where a part of them ends makes a GPU's stream wait
        if self.adjoining:
            return Slots(self.index[start:stop], self.first + start, self.first + stop - 1)
        part = self.index[start:stop]
        return Slots(part, int(part[0]), int(part[-1]))

    def among(self, chosen: Tensor) -> "Slots | None":
        """Those of these slots whose flag in `chosen` (T,) is set, if there are any."""
        part = self.index[chosen]
        return Slots(part, int(part[0]), int(part[-1])) if len(part) else None


def numbers(values: Sequence[int] | Sequence[Sequence[int]], *, device: torch.device) -> Tensor:
    """Whole numbers (int64) on the device; a GPU's stream is not waited for."""
    held = torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
    return held.to(device, non_blocking=True)


def span(start: int, stop: int, *, device: torch.device) -> Slots:
    """The slots from `start` up to but without `stop`, all of them."""
    return Slots(torch.arange(start, stop, device=device), start, stop - 1)


def scattered(places: Sequence[int], *, device: torch.device) -> Slots:
    """Any ascending slots, one for each place."""
    return Slots(numbers(places, device=device), places[0], places[-1])


def token_bytes(shapes: Sequence[LayerShape | None], dtype: torch.dtype) -> int:
    """How many bytes one token keeps in all layers."""
    return sum(shape.numbers for shape in shapes if shape) * dtype.itemsize


class SpareMemory:
    """One large piece of a CPU's memory whose user is gone, for the next: fresh pages, which the system clears first,
    cost as much as a tenth of a prompt. Threads share it.
    """

    def __init__(self) -> None:
        self._piece = deque[NDArray[np.uint8]](maxlen=1)

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory of so many bytes with whatever was in it, free again with its last view."""
        if nbytes < LARGE_BYTES:
            return np.empty(nbytes, np.uint8)
        try:
            whole = self._piece.pop()
        except IndexError:
            whole = None
        if whole is None or not nbytes <= whole.nbytes <= 2 * nbytes:
            whole = np.empty(nbytes, np.uint8)
        taken = whole[:nbytes]
        finalize(taken, self._piece.append, whole).atexit = False
        return taken

    def let_go(self) -> None:
        """Give it back to the system."""
        self._piece.clear()


SPARE = SpareMemory()  # the process' own, as its allocator is


def _rooms(shapes: Sequence[Shape], *, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Buffers of these shapes. On a CPU they are parts of one array of numpy's, who asks for large pages: to take fresh
    memory in small ones costs more than what is written to it.
    """
    if device.type != "cpu":
        return [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    numbers = [math.prod(shape) for shape in shapes]
    starts = [0, *accumulate(-(-count // _ALIGNED) * _ALIGNED for count in numbers)]
    memory = torch.from_dlpack(SPARE.take((starts[-1] + _ALIGNED) * dtype.itemsize)).view(dtype)
    off = -memory.data_ptr() // dtype.itemsize % _ALIGNED
    places = zip(starts, numbers, shapes, strict=False)
    return [memory[off + start : off + start + count].view(shape) for start, count, shape in places]


def _by_layer(shapes: Sequence[LayerShape | None], buffers: Sequence[Tensor]) -> list[Tensor | None]:
    following = iter(buffers)
    return [next(following) if each else None for each in shapes]


class LayerBuffers:
    """Buffers (H, C, D) for the keys and values of each layer that keeps some."""

    def __init__(
        self, shapes: Sequence[LayerShape | None], keys: Sequence[Tensor | None], *, values: Sequence[Tensor | None]
    ) -> None:
        self.shapes = shapes
        self.states: ContextStates = ContextStates()
        self._keys = keys
        self._values = values

    def keys(self, layer: int) -> Tensor:
        """The buffer (H, C, D) of a layer's keys, rotated to their slots."""
        keys = self._keys[layer]
        assert keys is not None, f"layer {layer} keeps nothing of its own"
        return keys

    def values(self, layer: int) -> Tensor:
        """The buffer (H, C, D) of a layer's values."""
        values = self._values[layer]
        assert values is not None, f"layer {layer} keeps nothing of its own"
        return values

    def home(self, slots: Slots) -> tuple["LayerBuffers", slice | Tensor]:
        """Whose buffers hold these slots, and where."""
        return self, slots.where

    def seen(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values (H, T, D) of the first slots."""
        return self.keys(layer)[:, :tokens], self.values(layer)[:, :tokens]

    @property
    def layers(self) -> list[int]:
        """The layers that keep something."""
        return [index for index, keys in enumerate(self._keys) if keys is not None]


class Context(LayerBuffers):
    """The buffers of one request. What was never written is never read."""

    def __init__(
        self, shapes: Sequence[LayerShape | None], *, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.token_bytes = token_bytes(shapes, dtype)
        self.capacity = capacity
        self.placed = 0  # first slots that are computed already, and states behind them
        self.cached: Tensor | None = None  # flags of those that are as a record has them; None: full prefill's, all
        kept = [each for each in shapes if each]
        keys = [(each.key_heads, capacity, each.key_dim) for each in kept]
        values = [(each.value_heads, capacity, each.value_dim) for each in kept]
        rooms = _rooms([*keys, *values], dtype=dtype, device=device)
        super().__init__(shapes, _by_layer(shapes, rooms[: len(kept)]), values=_by_layer(shapes, rooms[len(kept) :]))

    @cached_property
    def addresses(self) -> NDArray[np.int64]:
        """Where each layer's keys and values begin, and how far apart their heads are, in numbers: (L, 4)."""
        found = np.zeros((len(self.shapes), 4), np.int64)
        for layer in self.layers:
            keys, values = self.keys(layer), self.values(layer)
            found[layer] = keys.data_ptr(), values.data_ptr(), keys.stride(0), values.stride(0)
        return found

    @property
    def nbytes(self) -> int:
        """The bytes of its buffers, and of the states that it begins behind."""
        return self.capacity * self.token_bytes + self.states.nbytes

    def part(self, layer: int, slots: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (H, T, D) at these slots."""
        return self.keys(layer)[:, slots], self.values(layer)[:, slots]

    def copy_first(self, tokens: int, source: "Context") -> None:
        """Take over the first slots of another context of the same model."""
        for layer in self.layers:
            self.keys(layer)[:, :tokens] = source.keys(layer)[:, :tokens]
            self.values(layer)[:, :tokens] = source.values(layer)[:, :tokens]
        self.states = source.states.behind(tokens) or ContextStates()

    def first(self, tokens: int) -> "Context":
        """A copy of the first slots, with room for no more."""
        some = self.keys(self.layers[0])
        copy = Context(self.shapes, capacity=tokens, dtype=some.dtype, device=some.device)
        copy.copy_first(tokens, self)
        return copy


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `start` to `stop` of a pass, which belong to one context."""

    context: LayerBuffers
    slots: Slots
    start: int

    @property
    def stop(self) -> int:
        """The number of the row behind the last."""
        return self.start + len(self.slots)

    @property
    def visible(self) -> int:
        """How many slots its last row may see."""
        return self.slots.last + 1


@dataclass(frozen=True, slots=True)
class RowsPlace:
    """Rows `start` to `stop` of a pass, and where they come to lie in a context's buffers."""

    context: LayerBuffers
    where: slice | Tensor
    start: int
    stop: int

    def write(self, layer: int, keys: Tensor, *, values: Tensor) -> None:
        """Put these rows' part of a pass' keys and values (H, T, D) there."""
        self.context.keys(layer)[:, self.where] = keys[:, self.start : self.stop]
        self.context.values(layer)[:, self.where] = values[:, self.start : self.stop]

    def joined(self, following: "RowsPlace") -> "RowsPlace | None":
        """Both in one, where the other's rows come to lie right behind these."""
        here, there = self.where, following.where
        if self.context is not following.context or self.stop != following.start:
            return None
        if not isinstance(here, slice) or not isinstance(there, slice) or here.stop != there.start:
            return None
        return RowsPlace(self.context, slice(here.start, there.stop), self.start, following.stop)


def places(segments: Sequence[Segment]) -> list[RowsPlace]:
    """Where the rows of a pass go; those that come to lie side by side go by one call."""
    found = list[RowsPlace]()
    for each in segments:
        place = RowsPlace(*each.context.home(each.slots), each.start, each.stop)
        joined = found[-1].joined(place) if found else None
        found[-1:] = [joined] if joined else [*found[-1:], place]
    return found


class PrefixedContext(LayerBuffers):
    """A context whose first slots are another one's, which it reads and never writes. The others are a `part` of
    `own`, where those of the other chunks of a pass lie side by side.

    What rows see is put together for one layer at a time.
    """

    def __init__(self, prefix: LayerBuffers, tokens: int, *, own: LayerBuffers, part: slice) -> None:
        """`tokens`: how many of the prefix' slots are the first ones here."""
        keys = [shape and own.keys(layer)[:, part] for layer, shape in enumerate(own.shapes)]
        values = [shape and own.values(layer)[:, part] for layer, shape in enumerate(own.shapes)]
        super().__init__(own.shapes, keys, values=values)
        self.states = prefix.states.behind(tokens) or ContextStates()
        self._prefix, self._own = prefix, own
        self._tokens = tokens
        self._start = part.start

    def home(self, slots: Slots) -> tuple[LayerBuffers, slice | Tensor]:
        """See `LayerBuffers`; the slots adjoin, behind those of the prefix."""
        assert slots.adjoining and slots.first >= self._tokens, f"{slots.first} to {slots.last} behind {self._tokens}"
        off = self._start - self._tokens
        return self._own, slice(slots.first + off, slots.last + 1 + off)

    def seen(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        """See `LayerBuffers`."""
        shared, own = self._prefix.seen(layer, self._tokens), super().seen(layer, tokens - self._tokens)
        return torch.cat((shared[0], own[0]), dim=1), torch.cat((shared[1], own[1]), dim=1)
