"""The table in GPU memory of where rows of any contexts stand: kernels read it when they run, so a CUDA graph is told
anew for each pass. Attention falls back to torch where the device refuses a kernel.

Letters: `B` rows that there is room for, `R` of a pass, `N` contexts, `L` layers.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blend.kernels.kernels import gpu_rows_kernels
from blend.run.context import Context, LayerShape, Segment

log = logging.getLogger(__name__)

COLUMNS = 4  # of the table of contexts


def gpu_row_tables(
    shapes: Sequence[LayerShape | None], *, heads: object, device: torch.device
) -> "GpuRowTables | None":
    """What makes tables for a model with so many query heads; None where torch goes context by context."""
    if gpu_rows_kernels is None or not isinstance(heads, int):
        return None
    tables = GpuRowTables(shapes, heads=heads, device=device)
    return tables if tables.compiles() else None


class GpuRowTables:
    """Makes the tables of one model's passes on one device. Threads may share it."""

    def __init__(self, shapes: Sequence[LayerShape | None], *, heads: int, device: torch.device) -> None:
        self.shapes = shapes
        self._device = device
        kept = [shape for shape in shapes if shape and not heads % shape.key_heads]  # that are attended
        self._group = max([heads // shape.key_heads for shape in kept], default=1)
        self._heads = max([shape.key_heads for shape in kept], default=1)
        self._refused = set[LayerShape]()  # whose kernels the device has no room for

    def rows(self, segments: Sequence[Segment]) -> "GpuRows | None":
        """The table of a pass; None where its rows adjoin in one context, or some lie in buffers of several."""
        adjoin = len(segments) == 1 and segments[0].slots.adjoining
        if adjoin or not all(isinstance(each.context, Context) for each in segments):
            return None
        table = self.empty(segments[-1].stop, segments=len(segments))
        table.fill(segments)
        return table

    def empty(self, rows: int, *, segments: int) -> "GpuRows":
        """A table with room for so many rows, all of which are nobody's yet, in so many segments."""
        assert gpu_rows_kernels is not None
        block = gpu_rows_kernels.block_for(rows, self._group)
        blocks = -(-rows // block) + segments - 1
        splits = gpu_rows_kernels.splits_for(-(-rows // block) * self._heads)
        parts = rows, 2 * blocks, segments * len(self.shapes) * COLUMNS
        numbers = torch.zeros(sum(parts), dtype=torch.int64, device=self._device)
        slots = torch.full((rows,), -1, device=self._device)
        return GpuRows(self, (block, splits), slots, numbers, parts)

    def compiles(self) -> bool:
        """Whether the device takes the kernels: a row that is nobody's is written."""
        assert gpu_rows_kernels is not None
        layer, shape = next((layer, shape) for layer, shape in enumerate(self.shapes) if shape)
        keys = torch.zeros(shape.key_heads, 1, shape.key_dim, device=self._device)
        values = torch.zeros(shape.value_heads, 1, shape.value_dim, device=self._device)
        try:
            self.empty(1, segments=1).write(layer, keys, values=values)
        except gpu_rows_kernels.DeviceRefuses as error:
            log.info("rows are computed context by context: %s", error)
            return False
        return True

    def takes(self, shape: LayerShape, *, heads: int) -> bool:
        """Whether the kernel attends rows of a layer by so many query heads."""
        is_grouped = shape.key_heads == shape.value_heads and not heads % shape.key_heads
        return is_grouped and shape not in self._refused

    def without(self, shape: LayerShape, reason: Exception) -> None:
        """Attend rows of such layers by torch from now on."""
        self._refused.add(shape)
        log.info("rows of %s are attended context by context: %s", shape, reason)


@dataclass(slots=True)
class GpuRows:
    """A table with room for some rows. See `RowTable`."""

    by: GpuRowTables
    form: tuple[int, int]  # rows of a block, and into how many parts what they see is cut
    slots: Tensor  # (B,) int64; below zero of rows that are nobody's
    numbers: Tensor  # int64: owners (B,), blocks (_, 2), contexts (N, L, 4)
    parts: tuple[int, int, int]  # how many numbers each of them has
    most: int = 1

    def fill(self, segments: Sequence[Segment]) -> None:
        """Tell the device where a pass' rows stand. Their contexts have buffers of their own."""
        rows, block = self.parts[0], self.form[0]
        contexts = dict[int, tuple[int, Context]]()  # by who they are: their numbers
        owners, blocks = np.zeros(rows, np.int64), np.zeros((self.parts[1] // 2, 2), np.int64)
        filled = 0
        for each in segments:
            assert isinstance(each.context, Context)
            number, _ = contexts.setdefault(id(each.context), (len(contexts), each.context))
            owners[each.start : each.stop] = number
            for start in range(each.start, each.stop, block):
                blocks[filled] = start, min(block, each.stop - start)
                filled += 1
        numbers = np.concatenate([owners, blocks.ravel(), *(each.addresses.ravel() for _, each in contexts.values())])
        held = torch.empty(len(numbers), dtype=torch.int64, pin_memory=self.numbers.is_cuda)
        held.numpy()[:] = numbers
        self.numbers[: len(numbers)].copy_(held, non_blocking=True)
        self.slots[: segments[-1].stop].copy_(torch.cat([each.slots.index for each in segments]))
        self.slots[segments[-1].stop :].fill_(-1)
        self.most = max(each.visible for each in segments)

    def write(self, layer: int, keys: Tensor, *, values: Tensor) -> None:
        """See `RowTable`."""
        assert gpu_rows_kernels is not None
        fresh = [each if each.stride(2) == 1 else each.contiguous() for each in (keys, values)]
        gpu_rows_kernels.write_rows(fresh[0], fresh[1], tables=gpu_rows_kernels.GpuTables(*self._fields(layer)))

    def attend(self, layer: int, query: Tensor, *, window: int, scale: float) -> Tensor | None:
        """See `RowTable`."""
        shape, (block, splits) = self.by.shapes[layer], self.form
        if shape is None or gpu_rows_kernels is None or not self.by.takes(shape, heads=query.shape[1]):
            return None
        form = gpu_rows_kernels.Attention(shape.key_heads, shape.value_dim, scale, block, splits, window)
        queries = query[0] if query.stride(3) == 1 else query[0].contiguous()
        tables = gpu_rows_kernels.GpuTables(*self._fields(layer))
        try:
            return gpu_rows_kernels.attend_rows(queries, form, tables=tables)[None]
        except gpu_rows_kernels.DeviceRefuses as error:
            self.by.without(shape, error)
            return None

    def _fields(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """The fields of the kernels' `GpuTables`, for one layer."""
        owners, blocks, contexts = self.numbers.split_with_sizes(self.parts)
        return self.slots, owners, blocks.view(-1, 2), contexts[COLUMNS * layer :], COLUMNS * len(self.by.shapes)
