"""One prompt that was computed here, as whoever goes on with it gets it. Knows no HTTP and nobody who asks."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
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


@dataclass(frozen=True, slots=True)
class Handoff:
    """A prompt's token ids, and the keys and values (H, T, D) by layer of all of them but the last, in main memory."""

    ids: tuple[int, ...]
    dtype: str
    layers: Mapping[int, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, placed: PlacedPrompt) -> "Handoff":
        """What is handed over of a prompt. Buffers in main memory are taken over as they are, others copied."""
        count, context = len(placed.ids) - 1, placed.context
        layers = {layer: tuple(each.cpu() for each in context.seen(layer, count)) for layer in context.layers}
        keys, _ = layers[context.layers[0]]
        dtype = str(keys.dtype).removeprefix("torch.")
        return cls(placed.ids, dtype, {layer: (each[0], each[1]) for layer, each in layers.items()})

    @property
    def digest(self) -> str:
        """What the ids are recognised by: SHA-256 of them as 32-bit numbers, the lowest byte first."""
        return hashlib.sha256(struct.pack(f"<{len(self.ids)}i", *self.ids)).hexdigest()

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(each.untyped_storage().nbytes() for pair in self.layers.values() for each in pair)

    @property
    def forms(self) -> Sequence[HandedLayer]:
        """The layers' shapes."""
        shapes = ((layer, keys.shape, values.shape) for layer, (keys, values) in self.layers.items())
        return [HandedLayer(layer, keys[0], keys[2], values[0], values[2]) for layer, keys, values in shapes]

    def part(self, layer: int, wanted: LayerPart) -> bytes:
        """A part of a layer: its keys and then its values, token by token. Raises NotFound for what there is not."""
        pair = self.layers.get(layer)
        if pair is None or not 0 <= wanted.start < wanted.stop < len(self.ids) or wanted.rank >= wanted.ranks:
            raise NotFound(f"the prompt has {len(self.layers)} layers of {len(self.ids) - 1} tokens, and no such part")
        cut = (each[wanted.heads(each.shape[0]), wanted.start : wanted.stop].transpose(0, 1) for each in pair)
        return torch.cat([each.flatten() for each in cut]).view(torch.uint8).numpy().tobytes()
