"""One prompt that is computed here, as whoever goes on with it gets it. Knows no HTTP and nobody who asks."""

import hashlib
import mmap
import struct
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.engine.engine import PlacedPrompt
from service.errors import NotFound


@dataclass(frozen=True, slots=True)
class HandedLayer:
    """What a layer keeps for a token; `index` counts all decoder layers, those too that keep nothing."""

    index: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


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

    They lie in main memory as they travel: layer by layer, keys and then values, token by token.
    """

    def __init__(self, prompt: PlacedPrompt) -> None:
        context = prompt.context
        some = context.keys(context.layers[0])
        self.ids = prompt.ids
        self.dtype = str(some.dtype).removeprefix("torch.")
        self.forms: Sequence[HandedLayer] = [_form(layer, context.seen(layer, 0)) for layer in context.layers]
        self.nbytes = self._count * context.token_bytes
        self._memory = mmap.mmap(-1, max(1, self.nbytes))
        self._rows = dict(zip(context.layers, self._laid(some.dtype.itemsize), strict=True))
        self._arrivals = {layer: promised() for layer in context.layers}

    @property
    def digest(self) -> str:
        """What the ids are recognised by: SHA-256 of them as 32-bit numbers, the lowest byte first."""
        return hashlib.sha256(struct.pack(f"<{len(self.ids)}i", *self.ids)).hexdigest()

    def arrival(self, layer: int) -> Future[None]:
        """The moment from which a layer is there for good. It fails with NotFound where the prompt is let go of before.

        Raises NotFound for a layer that keeps nothing.
        """
        if layer not in self._arrivals:
            raise self._nothing_such()
        return self._arrivals[layer]

    def put(self, layer: int, pair: Sequence[Tensor]) -> None:
        """Takes the keys and values (H, T, D) of a layer, in main memory, that change no more."""
        for rows, given in zip(self._rows[layer], pair, strict=True):
            np.copyto(rows, given.transpose(0, 1).view(torch.uint8).numpy())
        with suppress(InvalidStateError):  # it was let go of
            self._arrivals[layer].set_result(None)

    def void(self) -> None:
        """Lets go of all who wait for a layer."""
        for each in self._arrivals.values():
            with suppress(InvalidStateError):
                each.set_exception(NotFound("the prompt was let go of"))

    def part(self, layer: int, wanted: LayerPart) -> bytes:
        """A part of a layer: its keys and then its values, token by token. Raises NotFound for what there is not."""
        arrival = self.arrival(layer)
        if not 0 <= wanted.start < wanted.stop <= self._count or wanted.rank >= wanted.ranks or not arrival.done():
            raise self._nothing_such()
        arrival.result()
        cut = (rows[wanted.start : wanted.stop, wanted.heads(rows.shape[1])] for rows in self._rows[layer])
        return b"".join(each.tobytes() for each in cut)

    @property
    def _count(self) -> int:
        return len(self.ids) - 1

    def _laid(self, itemsize: int) -> Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        """Where keys and values (T, H, D) of each layer lie, as bytes."""
        whole, at = np.frombuffer(self._memory, np.uint8), 0
        laid: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []
        for form in self.forms:
            both: list[NDArray[np.uint8]] = []
            for heads, dim in ((form.key_heads, form.key_dim), (form.value_heads, form.value_dim)):
                stop = at + self._count * heads * dim * itemsize
                both.append(whole[at:stop].reshape(self._count, heads, dim * itemsize))
                at = stop
            laid.append((both[0], both[1]))
        return laid

    def _nothing_such(self) -> NotFound:
        return NotFound(f"the prompt has {len(self.forms)} layers of {self._count} tokens, and no such part")


def promised() -> "Future[None]":
    """A moment that is yet to come, which nobody who waits for it can call off."""
    made: Future[None] = Future()
    made.set_running_or_notify_cancel()
    return made


def _form(layer: int, pair: tuple[Tensor, Tensor]) -> HandedLayer:
    keys, values = pair
    return HandedLayer(layer, keys.shape[0], keys.shape[2], values.shape[0], values.shape[2])
