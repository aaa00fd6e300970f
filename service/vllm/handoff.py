"""One prompt computed here for vLLM: its ids, and layers in shared memory as they become final. Knows no HTTP."""

import hashlib
import struct
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.engine.engine import PlacedPrompt
from blend.run.context import LayerShape
from service.errors import NotFound
from service.vllm.shared_memory import SharedMemory


@dataclass(frozen=True, slots=True)
class HandedLayer(LayerShape):
    """A layer of a prompt; `index` counts all decoder layers, those too that keep nothing."""

    index: int


@dataclass(frozen=True, slots=True)
class LayerPart:
    """The tokens `start` to `stop`, the end exclusive, and of the heads the share of one of `ranks` workers."""

    start: int
    stop: int
    rank: int = 0
    ranks: int = 1

    def heads(self, count: int) -> slice:
        """The share of so many heads; where there are fewer than workers, several have the same."""
        first = self.rank * count // self.ranks
        return slice(first, first + max(1, count // self.ranks))


class Handoff:
    """A prompt's token ids, and the keys and values by layer of all of them but the last, as they become final.

    They lie in main memory as they travel: layer by layer, keys and then values, token by token, where other
    processes of this user may map them.
    """

    def __init__(self, prompt: PlacedPrompt) -> None:
        context = prompt.context
        some = context.keys(context.layers[0])
        self.ids = prompt.ids
        self.dtype = str(some.dtype).removeprefix("torch.")
        self.forms: Sequence[HandedLayer] = [
            HandedLayer(**asdict(shape), index=layer) for layer, shape in enumerate(context.shapes) if shape
        ]
        self.nbytes = self._count * context.token_bytes
        self._itemsize = some.dtype.itemsize
        self._memory: SharedMemory | None = SharedMemory(self.nbytes)
        self.name = self._memory.name  # under which others of this host find it, empty for nobody
        self._arrivals = {layer: promised() for layer in context.layers}

    @property
    def digest(self) -> str:
        """What the ids are recognised by: SHA-256 of them as 32-bit numbers, the lowest byte first."""
        return hashlib.sha256(struct.pack(f"<{len(self.ids)}i", *self.ids)).hexdigest()

    @property
    def final(self) -> int:
        """How many layers, the first ones, are there for good."""
        return sum(each.done() and each.exception() is None for each in self._arrivals.values())

    def arrival(self, layer: int) -> Future[None]:
        """The moment from which a layer is there for good. It fails with NotFound where the prompt is let go of before.

        Raises NotFound for a layer that keeps nothing.
        """
        if layer not in self._arrivals:
            raise self._nothing_such()
        return self._arrivals[layer]

    def put(self, layer: int, pair: Sequence[Tensor]) -> None:
        """Takes the keys and values (H, T, D) of a layer, in main memory, that change no more.

        Raises OSError where there is no memory for them.
        """
        memory = self._memory
        if memory is None or not memory.reserve(*self._span(layer)):
            return  # it was let go of
        for rows, given in zip(self._rows(memory, layer), pair, strict=True):
            np.copyto(rows, given.transpose(0, 1).view(torch.uint8).numpy())
        with suppress(InvalidStateError):
            self._arrivals[layer].set_result(None)

    def let_go(self) -> None:
        """Gives the memory back, and ends the waiting of all who wait for a layer."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.unlink()
        for each in self._arrivals.values():
            with suppress(InvalidStateError):
                each.set_exception(NotFound("the prompt was let go of"))

    def part(self, layer: int, wanted: LayerPart) -> bytes:
        """A part of a layer: its keys and then its values, token by token. Raises NotFound for what there is not."""
        arrival, memory = self.arrival(layer), self._memory
        if not 0 <= wanted.start < wanted.stop <= self._count or wanted.rank >= wanted.ranks:
            raise self._nothing_such()
        if memory is None or not arrival.done():
            raise NotFound("the prompt was let go of, or its layer is not there yet")
        tokens = slice(wanted.start, wanted.stop)
        return b"".join(rows[tokens, wanted.heads(rows.shape[1])].tobytes() for rows in self._rows(memory, layer))

    def _form(self, layer: int) -> HandedLayer:
        return next(each for each in self.forms if each.index == layer)

    @property
    def _count(self) -> int:
        return len(self.ids) - 1

    def _span(self, layer: int) -> tuple[int, int]:
        """Where the layer's bytes begin and end."""
        sizes = [self._count * self._itemsize * each.numbers for each in self.forms]
        place = [each.index for each in self.forms].index(layer)
        return sum(sizes[:place]), sum(sizes[: place + 1])

    def _rows(self, memory: SharedMemory, layer: int) -> Sequence[NDArray[np.uint8]]:
        """Where a layer's keys and values (T, H, D) lie, as bytes."""
        form = self._form(layer)
        start, stop = self._span(layer)
        values = start + self._count * self._itemsize * form.key_heads * form.key_dim
        whole = np.frombuffer(memory.bytes, np.uint8)
        keys, rest = whole[start:values], whole[values:stop]
        return keys.reshape(self._count, form.key_heads, -1), rest.reshape(self._count, form.value_heads, -1)

    def _nothing_such(self) -> NotFound:
        return NotFound(f"the prompt has {len(self.forms)} layers of {self._count} tokens, and no such part")


def promised() -> "Future[None]":
    """A moment that is yet to come, which nobody who waits for it can call off."""
    made: Future[None] = Future()
    made.set_running_or_notify_cancel()
    return made
