"""The steps that layers see while they are recorded: where rows stand, and whose they are, is read from a table in the
device's memory whenever the recording runs.

Letters: `B` rows of a recording, `N` contexts, `L` layers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blend.kernels.kernels import attend_rows
from blend.run.context import Context, Segment, span
from blend.run.step import Step

COLUMNS = 4  # of the table of contexts


class CannotRecord(Exception):
    """A layer does what no recording holds."""


@dataclass(frozen=True, slots=True)
class RowRoom:
    """What tells recordings of so many rows where these stand, whose they are, and what ids they have."""

    rows: int
    block: int  # rows of a block
    blocks: int
    splits: int
    table: Tensor  # int64: owners (B,), blocks (_, 2), contexts (N, L, 4)
    parts: tuple[int, int, int]  # how many numbers each of them has
    slots: Tensor  # (B,) int64; below zero of rows that are nobody's
    ids: Tensor  # (B,) int64


class RecordedStep(Step):
    """The step that one layer sees: rows are written and see by the table."""

    def __init__(self, room: RowRoom, layer: int, *, layers: int, most: int) -> None:
        nothing = Context([], capacity=0, dtype=torch.float32, device=room.slots.device)
        super().__init__([Segment(nothing, span(0, room.rows, device=room.slots.device), 0)])
        self._at = layer
        self._room = room
        self._most = most
        self._windows = dict[int, int]()  # of layers, asked before they are recorded, for that waits
        self._apart = COLUMNS * layers

    @property
    def _told(self) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """The fields of `RowTables`, of the layer that runs."""
        owners, blocks, contexts = self._room.table.split_with_sizes(self._room.parts)
        return self._room.slots, owners, blocks.view(-1, 2), contexts[COLUMNS * self._at :], self._apart

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if layer_idx != self._at or key_states.stride(3) != 1 or value_states.stride(3) != 1:
            raise CannotRecord(f"it stores keys as layer {layer_idx}")
        assert attend_rows is not None
        attend_rows.write_rows(key_states[0], value_states[0], tables=attend_rows.RowTables(*self._told))
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
        if self.layer_of(seen[0]) != self._at or query.stride(3) != 1:
            raise CannotRecord("its attention makes other keys of those that it stored")
        heads, kv_heads, value_dim = query.shape[1], seen[1].shape[1], seen[1].shape[3]
        if seen[0].shape[1] != kv_heads or heads % kv_heads:
            raise CannotRecord("it has more heads of keys than of values")
        assert attend_rows is not None
        width = self._windows.get(self._at) or window(self._most)
        if width is None:
            raise CannotRecord("its rows see otherwise than by a window up to themselves")
        self._windows[self._at] = width
        form = attend_rows.Attention(kv_heads, value_dim, scale, self._room.block, self._room.splits, width)
        return attend_rows.attend_rows(query[0], form, tables=attend_rows.RowTables(*self._told))[None]

    def sources(self, keys: Tensor, values: Tensor) -> Iterator[tuple[Segment, Tensor, Tensor]]:
        raise CannotRecord("it has an attention of its own")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        raise CannotRecord("it asks for positions, which are another pass' later")

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        raise CannotRecord("it makes a mask, which is another pass' later")

    @property
    def positions(self) -> Tensor:
        raise CannotRecord("it asks for positions, which are another pass' later")


class WholeStep(RecordedStep):
    """The step of a pass that is recorded whole, which reads its rows' positions anew whenever it runs."""

    def __init__(self, room: RowRoom, *, layers: int, most: int) -> None:
        super().__init__(room, -1, layers=layers, most=most)

    def enter(self, layer: int, hidden: Tensor, *, given: object) -> Tensor:
        self._at = layer
        return hidden

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._offsets()

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._most, 0

    @property
    def positions(self) -> Tensor:
        return self._room.slots.clamp(min=0)
