"""A model as the rest of blend sees it: prefill, replay, decoding, rotary tables, whether CUDA graphs are used."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import Lock

import torch
from torch import Tensor
from transformers import PreTrainedModel

from blend.place.placement import LayerPlaces, Numbers, RowTurn
from blend.place.placements import placement
from blend.place.rotation import Angles, rotate_into
from blend.run.attention import NAME
from blend.run.context import Context, Segment, Slots, numbers, token_bytes
from blend.run.cpu_rows import CpuRowTables, cpu_row_tables
from blend.run.gpu_rows import GpuRowTables, gpu_row_tables
from blend.run.inputs import whole
from blend.run.layer_gate import text_config
from blend.run.layer_graphs import LayerGraphs, LayersPass
from blend.run.model_layers import LayerRule, ModelLayers, angles, run
from blend.run.recordings import Recorder
from blend.run.rows_cache import LayerHooks, LayerRange, RowsCache
from blend.run.step_graphs import StepGraphs
from store.rows import StoredRows

TABLE_ROWS = 1024  # positions asked for at once
UNTURNED = Angles(torch.empty(0, 0), torch.empty(0, 0))  # for layers without positions


class Decoder:
    """Shared by all requests and threads; holds no state of any of them."""

    def __init__(self, model: PreTrainedModel, model_layers: ModelLayers, *, window: int) -> None:
        self.model = model
        self.model_layers = model_layers
        self.window = window
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocabulary: int = text_config(model).vocab_size
        self.token_bytes = token_bytes(model_layers.shapes, model.dtype)  # that one token keeps in a context
        # What a request's states take, now and at their mark, counted in tokens.
        self.state_tokens = -(-2 * model_layers.state_bytes // self.token_bytes)
        self._placement = placement(self.dtype, self.device)
        self._row_tables: CpuRowTables | GpuRowTables | None = cpu_row_tables(self.dtype, self.device)
        if self.device.type == "cuda":
            self._row_tables = self._gpu_tables()
        self._tables: dict[int, Angles] = {}
        self._turns: dict[LayerRule, tuple[Angles, tuple[RowTurn, RowTurn]]] = {}  # by which angles
        self._known = 0  # positions in each table
        self._growing = Lock()
        self._graphs: tuple[LayerGraphs, StepGraphs] | None = None

    def _gpu_tables(self) -> GpuRowTables | None:
        heads = getattr(text_config(self.model), "num_attention_heads", None)
        return gpu_row_tables(self.model_layers.shapes, heads=heads, device=self.device)

    def context(self, capacity: int) -> Context:
        """A context with buffers for that many tokens."""
        return Context(self.model_layers.shapes, capacity=capacity, dtype=self.dtype, device=self.device)

    def prefill(
        self,
        context: Context,
        slots: Slots,
        *,
        ids: Tensor,
        layer_range: LayerRange | None = None,
        hooks: LayerHooks | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Compute rows of one context: the last row's logits (V,) or None, and the hidden states kept on the way."""
        segments = [Segment(context, slots, 0)]
        with self._graphs[0].replaying(segments) if self._graphs else nullcontext() as replay:
            rows = self._cache(segments, layer_range, hooks=hooks, replay=replay)
            logits = run(self.model, rows, ids=ids)
        return (None if logits is None else logits[0]), rows.kept

    def replay(
        self, context: Context, slots: Slots, *, ids: Tensor, replayed: Tensor, hooks: LayerHooks | None = None
    ) -> Tensor | None:
        """Compute rows of one context, but for the `replayed` (T,): these run through each stretch of layers that keep
        a state alone, and enter it as the context has it, so that their keys and values stay. The logits (V,) of the
        last row, None where that is replayed.
        """
        hooks = hooks or LayerHooks()
        fresh, replayed = (each.to(self.device) for each in (~replayed, replayed))
        own, theirs = slots.among(fresh), slots.among(replayed)
        assert theirs is not None, "whoever replays nothing makes a pass"
        at, hidden, logits = 0, None, None
        for layers in self.model_layers.stretches:
            if own and at < layers.start:
                course = LayerRange(at, hidden, keep=layers.start, until=layers.start)
                _, hidden = self.prefill(context, own, ids=ids[fresh], layer_range=course, hooks=hooks)
            entering = None
            if layers.start:
                hooks.before(layers.start)
                held = whole(*context.part(layers.start, theirs.where))
                entering = held.new_empty(1, len(slots), held.shape[-1])
                entering[:, replayed] = held
                if hidden is not None:
                    entering[:, fresh] = hidden
            course = LayerRange(layers.start, entering, keep=layers.stop, until=layers.stop)
            logits, hidden = self.prefill(context, slots, ids=ids, layer_range=course, hooks=hooks)
            at, hidden = layers.stop, hidden if hidden is None else hidden[:, fresh]
        if own and at < len(self.model_layers.shapes):
            logits, _ = self.prefill(context, own, ids=ids[fresh], layer_range=LayerRange(at, hidden), hooks=hooks)
        return logits

    def advance(
        self,
        segments: list[Segment],
        ids: Tensor,
        *,
        layer_range: LayerRange | None = None,
        hooks: LayerHooks | None = None,
    ) -> Tensor | None:
        """One pass for several contexts; logits (rows, V) of all rows, or None where the course stops before them.

        A pass of a course, as captures are, is never replayed: the same rows always get the same bits.
        """
        is_whole = layer_range is None and hooks is None
        logits = self._graphs[1].logits(segments, ids) if self._graphs and is_whole else None
        if logits is None:
            logits = self._run_all(self._cache(segments, layer_range, hooks=hooks), ids)
        return logits

    def _cache(
        self,
        segments: list[Segment],
        layer_range: LayerRange | None,
        *,
        hooks: LayerHooks | None,
        replay: LayersPass | None = None,
    ) -> RowsCache:
        table = replay.table if replay else self._row_tables and self._row_tables.rows(segments)
        layers = self.model_layers.table_layers
        rows = RowsCache(segments, layer_range=layer_range, hooks=hooks, table=table, table_layers=layers)
        rows.replay = replay
        return rows

    def _run_all(self, rows: RowsCache, ids: Tensor) -> Tensor | None:
        return run(self.model, rows, ids=ids, wanted=torch.arange(rows.rows, device=self.device))

    def record_layers(self, recorder: Callable[[], Recorder] | None) -> bool:
        """Have layers recorded as they run, from the second pass of as many rows on; whether any can be. None: no more.

        A model whose layers read the keys of others needs all of them to run; states are not in a recording's table.
        """
        is_fused = text_config(self.model)._attn_implementation == NAME  # pyright: ignore[reportPrivateUsage]
        tables, layers = self._gpu_tables(), self.model_layers
        if recorder is None or tables is None or not is_fused or layers.shared or layers.states:
            self._graphs = None
            return False
        prompts = LayerGraphs(tables, recorder(), layers=layers.table_layers, most=self.window)
        self._graphs = prompts, StepGraphs(tables, recorder(), run=self._run_all, most=self.window)
        return True

    @property
    def is_recorded(self) -> bool:
        """Whether layers are recorded, and none was met that cannot be."""
        return self._graphs is not None and self._graphs[0].recordings.can_record

    def decode(self, rows: Sequence[tuple[Context, int, int]]) -> list[Tensor]:
        """One pass for a row of each context, at this slot and of this id: the logits (V,) of each."""
        slots, ids = numbers([[slot for _, slot, _ in rows], [each for _, _, each in rows]], device=self.device)
        segments = [
            Segment(context, Slots(slots[row : row + 1], slot, slot), row)
            for row, (context, slot, _) in enumerate(rows)
        ]
        logits = self.advance(segments, ids)
        assert logits is not None
        return list(logits)

    def place(self, context: Context, layers: Sequence[int], *, stored: StoredRows, slots: Numbers) -> None:
        """Write what some layers have of stored records, each from a slot to another (M, 2), turned as the layers
        would. Their keys and values have the same heads and dims.
        """
        self.prepare(int(slots[:, 1].max()))
        out = [(context.keys(layer), context.values(layer)) for layer in layers]
        self._placement.place(LayerPlaces(out, stored, slots, [self._turns_of(self.rule(layer)) for layer in layers]))

    def _turns_of(self, rule: LayerRule) -> tuple[RowTurn, RowTurn]:
        """How rows turn at positions that are prepared, as a placement takes it; kept while the tables stay."""
        turned = self._tables[rule.table] if rule.turns else UNTURNED
        kept = self._turns.get(rule)
        if kept is None or kept[0] is not turned:
            kept = self._turns[rule] = turned, (RowTurn(rule.keys, turned), RowTurn(rule.values, turned))
        return kept[1]

    def unrotated(self, layer: int, keys: Tensor, *, values: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """The inverse of `place`: position-free keys and values of (..., T, D), which stand at the tokens of the
        `inverse_angles`. What does not turn is returned as it is.
        """
        rule = self.rule(layer)
        found = list[Tensor]()
        for x, rotation in ((keys, rule.keys), (values, rule.values)):
            if rotation is None:
                found.append(x)
                continue
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
            rotate_into(out, x, rotation=rotation, angles=angles)
            found.append(out)
        return found[0], found[1]

    def inverse_angles(self, rule: LayerRule, start: int, *, count: int) -> Angles:
        """What turns rows of a layer of this rule back that stand at so many slots from `start` on."""
        if not rule.turns:
            return UNTURNED
        return self.angles_at(rule, slice(start, start + count), stop=start + count).inverse()

    def prepare(self, count: int) -> None:
        """Have the angles of that many positions ready, before other threads or streams ask for them."""
        with self._growing:
            if self._known < count:
                self._grow(max(TABLE_ROWS, 1 << (count - 1).bit_length()))

    def angles_at(self, rule: LayerRule, where: slice | Tensor, *, stop: int) -> Angles:
        """The angles of some slots below `stop`, as a layer of this rule turns its rows by them."""
        if not rule.turns:
            return UNTURNED
        self.prepare(stop)
        return self._tables[rule.table].at(where)

    def _grow(self, count: int) -> None:
        tables = self.model_layers.tables
        found: dict[int, list[Angles]] = {table: [] for table in tables}
        for start in range(0, count if tables else 0, TABLE_ROWS):
            positions = torch.arange(start, min(start + TABLE_ROWS, count), device=self.device)
            part = angles(self.model, positions, tables=tables, last=len(self.model_layers.shapes) - 1)
            for table in tables:
                found[table].append(part[table])
        for table, parts in found.items():
            self._tables[table] = Angles(torch.cat([p.cos for p in parts]), torch.cat([p.sin for p in parts]))
        self._known = count

    def rule(self, layer: int) -> LayerRule:
        """How the rows of a layer turn, which keeps keys and values of its own."""
        rule = self.model_layers.rules[layer]
        assert rule is not None, f"layer {layer} keeps nothing of its own"
        return rule
