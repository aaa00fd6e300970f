"""A model as the rest of blend sees it: passes over rows, buffers, and keys that move between positions."""

from threading import Lock

import torch
from torch import Tensor
from transformers import PreTrainedModel

from blend.anatomy import Anatomy, LayerRule, angles, run
from blend.context import Context, Slots
from blend.gate import text_config
from blend.rotary import Angles, rotate_into, unrotate
from blend.step import Course, Segment, Step, Watch

TABLE_ROWS = 1024  # positions asked for at once


class Decoder:
    """Shared by all requests and threads; holds no state of any of them."""

    def __init__(self, model: PreTrainedModel, anatomy: Anatomy, *, window: int) -> None:
        self.model = model
        self.anatomy = anatomy
        self.window = window
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocabulary: int = text_config(model).vocab_size
        self._tables: dict[int, Angles] = {}
        self._growing = Lock()

    @property
    def token_bytes(self) -> int:
        """What one token keeps in a context."""
        return sum(shape.numbers for shape in self.anatomy.shapes if shape) * self.dtype.itemsize

    def context(self, capacity: int) -> Context:
        """Buffers for that many tokens."""
        return Context(self.anatomy.shapes, capacity=capacity, dtype=self.dtype, device=self.device)

    def prefill(
        self, context: Context, slots: Slots, *, ids: Tensor, course: Course | None = None, watch: Watch | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Compute rows of one context: the last row's logits (V,) or None, and the hidden states kept on the way."""
        step = Step([Segment(context, slots, 0)], course=course, watch=watch, direct=self.anatomy.direct)
        logits = run(self.model, step, ids=ids)
        return (None if logits is None else logits[0]), step.kept

    def advance(
        self, segments: list[Segment], ids: Tensor, *, course: Course | None = None, watch: Watch | None = None
    ) -> Tensor | None:
        """One pass for several contexts; logits (rows, V) of all rows, or None where the course stops before them."""
        step = Step(segments, course=course, watch=watch, direct=self.anatomy.direct)
        wanted = torch.arange(step.rows, device=self.device)
        return run(self.model, step, ids=ids, wanted=wanted)

    def place(self, context: Context, layer: int, *, slots: slice, keys: Tensor, values: Tensor) -> None:
        """Write position-free keys and values (H, T, D) of a layer to their slots, turned as the layer would."""
        rule = self._rule(layer)
        turned = self.angles(rule.table, slots.stop).at(slots)
        rotate_into(context.keys(layer)[:, slots], keys, rotation=rule.keys, angles=turned)
        rotate_into(context.values(layer)[:, slots], values, rotation=rule.values, angles=turned)

    def lift(self, context: Context, layer: int, *, slots: slice) -> tuple[Tensor, Tensor]:
        """The inverse of `place`: position-free copies of what stands at the slots."""
        rule = self._rule(layer)
        turned = self.angles(rule.table, slots.stop).at(slots)
        return (
            unrotate(context.keys(layer)[:, slots], rule.keys, angles=turned),
            unrotate(context.values(layer)[:, slots], rule.values, angles=turned),
        )

    def angles(self, table: int, count: int) -> Angles:
        """Angles of at least the positions up to `count`, in the layers of one table."""
        with self._growing:
            known = self._tables.get(table)
            if known is None or known.cos.shape[0] < count:
                self._grow(max(TABLE_ROWS, 1 << (count - 1).bit_length()))
            return self._tables[table]

    def _grow(self, count: int) -> None:
        tables = sorted({rule.table for rule in self.anatomy.rules if rule})
        found: dict[int, list[Angles]] = {table: [] for table in tables}
        for start in range(0, count, TABLE_ROWS):
            positions = torch.arange(start, min(start + TABLE_ROWS, count), device=self.device)
            part = angles(self.model, positions, tables=tables, last=len(self.anatomy.shapes) - 1)
            for table in tables:
                found[table].append(part.get(table) or Angles(torch.empty(len(positions), 0), torch.empty(0)))
        for table, parts in found.items():
            self._tables[table] = Angles(torch.cat([p.cos for p in parts]), torch.cat([p.sin for p in parts]))

    def _rule(self, layer: int) -> LayerRule:
        rule = self.anatomy.rules[layer]
        assert rule is not None, f"layer {layer} keeps nothing of its own"
        return rule
