"""Layers of a prompt that come over HTTP, as codes where kvweave has them. Knows no cache."""

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from vllm_kvweave.packed_layer import VERSION, RowsForm, unpacked
from vllm_kvweave.paged_cache import PagedLayer, WorkerPlace
from vllm_kvweave.source import LayerForm, Part, Pull

SLOW = 125e6  # bytes a second, below which it takes longer to send numbers than to make and to unpack codes

log = logging.getLogger("vllm.kvweave")


class PulledParts:
    """The same part of each layer of one prompt: a worker's heads of some tokens."""

    def __init__(self, pull: Pull, part: Part, *, place: WorkerPlace, packed: int) -> None:
        """`packed`: the version of packed layers that kvweave has."""
        self._pull = pull
        self._part = part
        self._place = place
        self._packed = VERSION if packed >= VERSION else 0
        self._angles: dict[int, Tensor] = {}

    def fetch(self, layer: PagedLayer, form: LayerForm) -> Callable[[], tuple[Tensor, Tensor]]:
        """Fetches a layer. Returns what makes keys and values (T, H, D) of it, called where the device is free to."""
        part, size = self._part, self._place.torch_dtype.itemsize
        wanted = RowsForm(part.start, part.stop, layer.heads, layer.key_dim, layer.value_dim)
        numbers = (part.stop - part.start) * layer.heads * (layer.key_dim + layer.value_dim)
        plain = partial(self._pull.layer, form, part=part, nbytes=numbers * size)
        found = plain(packed=self._packed if self._pull.rate < SLOW else 0)
        if not found.is_packed:
            return lambda: self._plain(found.body, wanted)

        def unpack() -> tuple[Tensor, Tensor]:
            body = torch.frombuffer(found.body, dtype=torch.uint8).to(self._place.device)
            angles = partial(self._angles_of, form=form)
            try:
                return unpacked(body, wanted, dtype=self._place.torch_dtype, angles=angles)
            except (ValueError, KeyError, TypeError, RuntimeError) as error:
                log.warning("kvweave: layer %d comes as numbers, its codes are of no use: %s", form.index, error)
                return self._plain(plain(packed=0).body, wanted)

        return unpack

    def _plain(self, body: bytearray, wanted: RowsForm) -> tuple[Tensor, Tensor]:
        both = torch.frombuffer(body, dtype=self._place.torch_dtype)
        tokens = wanted.stop - wanted.start
        count = tokens * wanted.heads * wanted.key_dim
        keys = both[:count].reshape(tokens, wanted.heads, wanted.key_dim)
        return keys, both[count:].reshape(tokens, wanted.heads, wanted.value_dim)

    def _angles_of(self, table: int, *, form: LayerForm) -> Tensor:
        """Cosines and sines (2, T, n) of the part's tokens, fetched once for all layers that turn alike."""
        if table not in self._angles:
            both = torch.frombuffer(self._pull.angles(form, part=self._part), dtype=torch.float32)
            shaped = both.reshape(2, self._part.stop - self._part.start, -1)
            self._angles[table] = shaped.to(self._place.device)
        return self._angles[table]
