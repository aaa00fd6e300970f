"""The caches that layers see while a CUDA graph of them is captured: where rows stand is read from a table in the
device's memory whenever the graph runs. Refuses what no graph can hold.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from blend.run.context import Context, Segment, span
from blend.run.gpu_rows import GpuRows
from blend.run.rows_cache import RowsCache


class CannotRecord(Exception):
    """What was to be recorded does what no recording holds."""


class RecordedCache(RowsCache):
    """The cache that one layer sees: rows are written, and attended, by the table alone."""

    def __init__(self, table: GpuRows, layer: int, *, most: int) -> None:
        """`most`: slots that a row may see, in any pass."""
        nothing = Context([], capacity=0, dtype=torch.float32, device=table.slots.device)
        super().__init__([Segment(nothing, span(0, len(table.slots), device=table.slots.device), 0)])
        self._at = layer
        self._rows = table
        self._most = most
        self._windows = dict[int, int]()  # of layers, asked before they are recorded, for that waits

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if layer_idx != self._at:
            raise CannotRecord(f"layer {self._at} stores keys as layer {layer_idx}")
        self._rows.write(layer_idx, key_states[0], values=value_states[0])
        self._returned[id(key_states)] = (layer_idx, key_states)
        return key_states, value_states

    def attend(
        self,
        query: Tensor,
        seen: tuple[Tensor, Tensor],
        *,
        scale: float,
        window: Callable[[int], int | None],
    ) -> Tensor:
        """Query (1, Hq, B, D) to (1, B, Hq, D): each row sees all before it and itself, or a window of that."""
        if self.layer_of(seen[0]) != self._at:
            raise CannotRecord(f"the attention of layer {self._at} makes other keys of those that it stored")
        width = self._windows.get(self._at) or window(self._most)
        if width is None:
            raise CannotRecord(f"the rows of layer {self._at} see otherwise than by a window up to themselves")
        self._windows[self._at] = width
        found = self._rows.attend(self._at, query, window=width, scale=scale)
        if found is None:
            raise CannotRecord(f"no kernel takes the heads of layer {self._at}")
        return found

    def sources(self, keys: Tensor, values: Tensor) -> Iterator[tuple[Segment, Tensor, Tensor]]:
        raise CannotRecord(f"layer {self._at} has an attention of its own")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        raise CannotRecord(f"layer {self._at} asks for positions, which are another pass' later")

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        raise CannotRecord(f"layer {self._at} makes a mask, which is another pass' later")

    @property
    def positions(self) -> Tensor:
        raise CannotRecord(f"layer {self._at} asks for positions, which are another pass' later")


class RecordedStepCache(RecordedCache):
    """The cache of a pass that is recorded whole, which reads its rows' positions anew whenever it runs."""

    def __init__(self, table: GpuRows, *, most: int) -> None:
        super().__init__(table, -1, most=most)

    def enter(self, layer: int, hidden: Tensor, *, given: object) -> Tensor:
        self._at = layer
        return hidden

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._offsets()

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._most, 0

    @property
    def positions(self) -> Tensor:
        return self._rows.slots.clamp(min=0)
