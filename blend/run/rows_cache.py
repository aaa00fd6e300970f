"""The cache object that a model sees in one pass: where fresh keys go, what rows see, at which layers it starts, ends.

All state of a pass lives in its `RowsCache`; the model holds none, so passes of other requests may run in other
threads, or inside this one between two of its layers.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from blend.run.context import Segment, places
from blend.run.inputs import halves

ACTIVE: ContextVar["RowsCache | None"] = ContextVar("active cache", default=None)


Arguments = tuple[tuple[object, ...], dict[str, object]]  # of a layer, but for the hidden states


class PassHalted(Exception):
    """Leaves a forward pass at the layer behind which nobody needs its rows."""


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Which layers a pass runs: from `start`, entered with `hidden` (1, T, E), to the keys and values of `stop`, or to
    what enters `until`. What enters the layers `noted` is written to the contexts.
    """

    start: int = 0
    hidden: Tensor | None = None
    keep: int | None = None  # hand back the rows' hidden states as they enter this layer
    stop: int | None = None  # None: to the logits
    until: int | None = None
    noted: frozenset[int] = frozenset()


class RowTable(Protocol):
    """The seam of tables that tell the rows of a pass: where keys and values of each go, and where those lie that it
    sees. One call writes or attends them, by a kernel of numba's (`cpu_rows.py`) or of Triton's (`gpu_rows.py`).

    Letters: `N` rows, `H` kv heads, `Hq` query heads, `D` and `E` numbers of a key and of a value.
    """

    @property
    def most(self) -> int:
        """How many slots are visible to a row at most."""
        ...

    def write(self, layer: int, keys: Tensor, *, values: Tensor) -> None:
        """Put a pass' keys (H, N, D) and values at their slots."""
        ...

    def attend(self, layer: int, query: Tensor, *, window: int, scale: float) -> Tensor | None:
        """Query (1, Hq, N, D) to (1, N, Hq, E), each row over so many slots up to its own.

        None where the kernel does not take a layer's heads.
        """
        ...


def _nothing(layer: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class LayerHooks:
    """What is called on the way: before each layer, and with the stop layer's fresh keys and values (H, T, D).

    `probe` is called in each of the `probed` layers with the attention of the pass' last `probed_rows` rows: weights
    (S,) of all that they may see, which are one together for each row. The pass ends behind the last of these layers.
    """

    before: Callable[[int], None] = _nothing
    compare: Callable[[Tensor, Tensor], None] | None = None
    probed: tuple[int, ...] = ()
    probe: Callable[[Tensor], object] | None = None
    probed_rows: int = 1


class Replay(Protocol):
    """One pass over layers some of which are recorded."""

    def layer(
        self, index: int, inner: Callable[..., object], *, hidden: Tensor, more: Arguments
    ) -> tuple[object] | None:
        """What the layer returns, alone in a tuple; None where it has to run by itself."""
        ...


class RowsCache(Cache):
    """Writes fresh rows to their slots and returns what they may see."""

    def __init__(
        self,
        segments: Sequence[Segment],
        *,
        layer_range: LayerRange | None = None,
        hooks: LayerHooks | None = None,
        table: RowTable | None = None,
        table_layers: frozenset[int] = frozenset(),
    ) -> None:
        """`table`: the rows of all segments, for one call. `table_layers`: those whose attention takes the returned
        keys as they are, so that it may look them up by the table instead.
        """
        super().__init__(layers=[])
        self.segments = tuple(segments)
        self.layer_range = layer_range or LayerRange()
        self.kept: Tensor | None = None
        self.replay: Replay | None = None  # by which layers run that are recorded
        self._hooks = hooks or LayerHooks()
        self._table = table
        self._table_layers = table_layers
        self._places = [table] if table else places(self.segments)
        self._returned: dict[int, tuple[int, Tensor]] = {}
        self._at = -1  # the layer that runs

    @property
    def probed_rows(self) -> int:
        """How many last rows are probed in the layer that runs."""
        return self._hooks.probed_rows if self._at in self._hooks.probed else 0

    def probe(self, weights: Tensor) -> None:
        """Called by the attention of a probed layer with the weights (S,) of the probed rows."""
        assert self._hooks.probe is not None
        self._hooks.probe(weights)
        if self._at == self._hooks.probed[-1]:
            raise PassHalted

    @property
    def rows(self) -> int:
        """How many rows the pass has."""
        return self.segments[-1].stop

    @property
    def positions(self) -> Tensor:
        """The position of each row."""
        parts = [segment.slots.index for segment in self.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def enter(self, layer: int, hidden: Tensor, *, given: object) -> Tensor | None:
        """Called with what enters each layer, and its position embeddings; returns what shall enter, None to skip."""
        layer_range = self.layer_range
        if layer < layer_range.start:
            return None
        if layer == layer_range.start and layer_range.hidden is not None:
            hidden = layer_range.hidden
        if layer in layer_range.noted:
            self._note(layer, hidden)
        if layer == layer_range.keep:
            self.kept = hidden.clone() if self.replay else hidden
        if layer == layer_range.until:
            raise PassHalted
        self._hooks.before(layer)
        self._at = layer
        return hidden

    def _note(self, layer: int, hidden: Tensor) -> None:
        shape = self.segments[0].context.shapes[layer]
        assert shape is not None, f"layer {layer} has no room for what enters it"
        keys, values = halves(hidden, shape)
        for place in self._places:
            place.write(layer, keys, values=values)

    def is_plain(self, layer: int) -> bool:
        """Whether nobody wants more of a layer than what it returns."""
        return layer != self.layer_range.stop and layer not in self._hooks.probed

    def attend(
        self,
        query: Tensor,
        seen: tuple[Tensor, Tensor],
        *,
        scale: float,
        window: Callable[[int], int | None],
    ) -> Tensor | None:
        """Query (1, Hq, T, D) to (1, T, Hq, D), by the table; None where it has to be done segment by segment.

        `window` tells how many of so many slots a row sees up to its own, None where it sees otherwise.
        """
        layer = self.layer_of(seen[0]) if self._table else None
        if self._table is None or layer is None or layer not in self._table_layers:
            return None
        width = window(self._table.most)
        return None if width is None else self._table.attend(layer, query, window=width, scale=scale)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Called by the model's attention with the fresh rows (1, H, T, D), keys already rotated."""
        stopping = layer_idx == self.layer_range.stop
        if stopping and self._hooks.compare:
            self._hooks.compare(key_states[0], value_states[0])
        for place in self._places:
            place.write(layer_idx, key_states[0], values=value_states[0])
        if stopping:
            raise PassHalted
        returned = self._visible(layer_idx, (key_states, value_states))
        self._returned[id(returned[0])] = (layer_idx, returned[0])
        return returned

    def _visible(self, layer: int, fresh: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if len(self.segments) > 1 and layer in self._table_layers:
            return fresh  # a token for `layer_of`: nobody reads them
        seen = [each.context.seen(layer, each.visible) for each in self.segments]
        keys, values = ([part[None] for part in parts] for parts in zip(*seen, strict=True))
        if len(seen) == 1:
            return keys[0], values[0]
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)

    def layer_of(self, keys: Tensor) -> int | None:
        """The layer whose `update` returned exactly this object; None where the model made keys out of it."""
        found = self._returned.get(id(keys))
        return None if found is None else found[0]

    def sources(self, keys: Tensor, values: Tensor) -> Iterator[tuple[Segment, Tensor, Tensor]]:
        """Yields for each segment the keys and values (1, H, T, D) that its rows may see."""
        layer = self.layer_of(keys)
        start = 0
        for each in self.segments:
            stop = start + each.visible
            if layer is None or len(self.segments) == 1:  # what `update` returned is at hand
                yield each, keys[:, :, start:stop], values[:, :, start:stop]
            else:
                known = each.context.seen(layer, each.visible)
                yield each, known[0][None], known[1][None]
            start = stop

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Where the first row stands; for scattered rows a vector that makes `arange(rows) + it` their positions."""
        only = self.segments[0].slots
        return only.first if len(self.segments) == 1 and only.adjoining else self._offsets()

    def _offsets(self) -> int:
        positions = self.positions
        vector: Tensor = positions - torch.arange(self.rows, device=positions.device)
        return vector  # type: ignore[return-value]  # models add it to an arange, and to nothing else

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """See `get_seq_length`, which it equals."""
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """How many keys a mask would cover, and where they start."""
        return max(each.visible for each in self.segments), 0


@contextmanager
def active(cache: RowsCache) -> Generator[None]:
    """Make the cache known to the attention and the layers that run inside."""
    token = ACTIVE.set(cache)
    try:
        yield
    finally:
        ACTIVE.reset(token)
