"""Stored rows into a context by numpy and torch, on any device: what no kernel takes. Knows no store and no model."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.place.placement import LayerPlaces, Numbers, RowTurn, in_lists
from blend.place.rotation import Angles, rotate_into
from store.record import Array, Dtype, LayerKV
from store.rows import START, TOKENS, numbers_of, records_of

DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
JOINED = 1 << 18  # numbers of short parts that are turned together: fewer cost more calls than work
ON_DEVICE = 1 << 23  # and on a GPU, whose calls cost more than most work, while what is turned takes memory


class TorchPlacement:
    """See `Placement`. Serves one dtype and device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._device = device
        self._dtype: Dtype = next(name for name, each in DTYPES.items() if each == dtype)
        self._most = JOINED if device.type == "cpu" else ON_DEVICE

    def place(self, layers: LayerPlaces) -> None:
        rows, sizes = layers.stored.rows, layers.stored.sizes
        slots = layers.slots[records_of(rows)]
        firsts = slots[:, :, 0] + rows[:, :, START]
        kept = np.minimum(rows[:, :, TOKENS], slots[:, :, 1] - firsts)
        for layer, ((keys, values), turns) in enumerate(zip(layers.out, layers.turns, strict=True)):
            shape = keys.shape[0], keys.shape[2], values.shape[0], values.shape[2]
            numbers = shape[0] * shape[1] + shape[2] * shape[3]
            filled = np.flatnonzero(kept[layer] > 0).tolist()
            for some in in_lists(filled, kept[layer, filled].tolist(), most=self._most // numbers):
                parts = [numbers_of(rows[layer, part], shape, sizes=sizes, dtype=self._dtype) for part in some]
                places = _places(firsts[layer, some], kept[layer, some])
                for out, turn, arrays in zip((keys, values), turns, _sides(parts, kept[layer, some]), strict=True):
                    self._write(out, arrays, places=places, turn=turn)

    def _write(self, out: Tensor, arrays: Sequence[Array], *, places: Numbers, turn: RowTurn) -> None:
        """Writes one behind the other, to ascending slots."""
        x = torch.from_dlpack(arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1))
        x = self._sent(x.view(torch.bfloat16) if x.dtype == torch.uint16 else x)
        first, stop = int(places[0]), int(places[-1]) + 1
        if stop - first == len(places):
            rotate_into(out[:, first:stop], x, rotation=turn.rotation, angles=_angles(turn, slice(first, stop)))
            return
        index = self._sent(torch.from_dlpack(places))
        if turn.rotation is not None:
            there = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            rotate_into(there, x, rotation=turn.rotation, angles=_angles(turn, index))
            x = there
        out.index_copy_(1, index, x)

    def _sent(self, tensor: Tensor) -> Tensor:
        """The tensor on the device. A GPU gets it out of pinned memory, whose copies nobody waits for: torch's own
        memory, which it takes back when they are done.
        """
        if self._device.type != "cuda":
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)


def _places(firsts: Numbers, kept: Numbers) -> Numbers:
    """The slots of parts, one behind the other."""
    stops = kept.cumsum()
    return (firsts - stops + kept).repeat(kept) + np.arange(stops[-1], dtype=np.int64)


def _sides(parts: Sequence[LayerKV], kept: NDArray[np.int64]) -> tuple[list[Array], list[Array]]:
    """The first tokens of keys and of values."""
    counts = kept.tolist()
    keys = [part.keys[:, :count] for part, count in zip(parts, counts, strict=True)]
    return keys, [part.values[:, :count] for part, count in zip(parts, counts, strict=True)]


def _angles(turn: RowTurn, where: slice | Tensor) -> Angles:
    return turn.angles.at(where) if turn.pairs else turn.angles
