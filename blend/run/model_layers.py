"""Finds by running a model what layers keep: shapes, rotary rules, sharing, states, inputs; refuses keys not turned.

No table of model names decides anything. The same hidden states are sent through every layer at two positions; the
rule that makes both keys equal again is the layer's rule.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from blend.errors import UnsupportedModel
from blend.place.rotation import Angles, Rotation, candidates, read_angles, unrotate
from blend.run.context import Context, LayerShape, Segment, span
from blend.run.inputs import input_shape
from blend.run.layer_gate import text_config
from blend.run.rows_cache import PassHalted, RowsCache, active

TOKENS = 12
OFFSET = 1009
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 4e-2}


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How a layer's keys and values turn with the position, and by which table of angles (by its first layer)."""

    keys: Rotation | None
    values: Rotation | None
    table: int

    @property
    def turns(self) -> bool:
        """Whether anything of the layer depends on the position."""
        return self.keys is not None or self.values is not None


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """`shapes` and `rules` have None where a layer reads another one's keys, which then is among `shared`.

    `table_layers` are those whose attention takes the cached keys as they are, so that a table may tell where they lie.
    `states`: the layers that keep a state of all tokens, with or without keys and values. `stretches`: where such
    layers stand together, those without one among them too, up to the next layer with keys. None where a layer keeps
    both. What enters a stretch is kept for each token, but for the first, which the token itself enters.
    """

    shapes: tuple[LayerShape | None, ...]
    rules: tuple[LayerRule | None, ...]
    table_layers: frozenset[int]
    shared: frozenset[int]
    states: frozenset[int] = frozenset()
    state_bytes: int = 0  # of all of them, for one request
    stretches: tuple[range, ...] = ()

    @property
    def tables(self) -> list[int]:
        """The first layers of all tables of angles in use."""
        return sorted({rule.table for rule in self.rules if rule and rule.turns})

    @property
    def keeping(self) -> list[int]:
        """The layers with keys and values of their own."""
        return [layer for layer in self.stored if layer not in self.inputs]

    @property
    def inputs(self) -> frozenset[int]:
        """The layers of which a record has what enters them, in the place of keys and values."""
        return frozenset([each.start for each in self.stretches if each.start])

    @property
    def stored(self) -> list[int]:
        """The layers that a record has something of."""
        return [index for index, shape in enumerate(self.shapes) if shape]

    def resume(self, layer: int) -> int:
        """Where a pass must start to run `layer`: not behind a layer whose keys others read."""
        return min([layer, *self.shared])


class LayerProbeCache(RowsCache):
    """A cache that notes what goes by. Keeps no context: each row sees the rows of this pass only."""

    def __init__(self, *, first: int, device: torch.device, entered: dict[int, Tensor] | None = None) -> None:
        nothing = Context([], capacity=0, dtype=torch.float32, device=device)
        nothing.states.mark = first + TOKENS
        super().__init__([Segment(nothing, span(first, first + TOKENS, device=device), 0)])
        self._rebased = Segment(nothing, span(0, TOKENS, device=device), 0)
        self._replayed = entered
        self._layer = -1
        self.entered: dict[int, Tensor] = {}
        self.given: dict[int, object] = {}
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}
        self.table_layers: set[int] = set()
        self.shared: set[int] = set()

    def enter(self, layer: int, hidden: Tensor, *, given: object) -> Tensor | None:
        if hidden.ndim != 3:
            raise UnsupportedModel(f"layer {layer} is given several hidden states for each token, not one")
        self._layer = layer
        self.entered[layer] = hidden
        self.given[layer] = given
        return hidden if self._replayed is None else self._replayed[layer]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if layer_idx != self._layer or layer_idx in self.stored:
            raise UnsupportedModel(f"decoder layer {self._layer} stores keys as layer {layer_idx}")
        if key_states.ndim != 4 or value_states.ndim != 4 or key_states.shape[2] != TOKENS:
            raise UnsupportedModel(f"layer {layer_idx} does not store one key of (heads, dim) for each token")
        self.stored[layer_idx] = (key_states, value_states)
        self._returned[id(key_states)] = (layer_idx, key_states)
        return key_states, value_states

    def sources(self, keys: Tensor, values: Tensor) -> Iterator[tuple[Segment, Tensor, Tensor]]:
        origin = self.layer_of(keys)
        if origin is not None and origin != self._layer:
            self.shared.add(origin)
        elif origin is not None and values is self.stored[origin][1]:
            self.table_layers.add(origin)
        yield self._rebased, keys, values


class AnglesProbeCache(RowsCache):
    """A cache that runs no layer, and notes the position embeddings that each would be given."""

    def __init__(self, positions: Tensor, *, tables: list[int], last: int) -> None:
        nothing = Context([], capacity=0, dtype=torch.float32, device=positions.device)
        slots = span(0, len(positions), device=positions.device)
        super().__init__([Segment(nothing, slots, 0)])
        self._where = positions
        self._tables = tables
        self._last = last
        self.given: dict[int, object] = {}

    @property
    def positions(self) -> Tensor:
        return self._where

    def enter(self, layer: int, hidden: Tensor, *, given: object) -> Tensor | None:
        if layer in self._tables:
            self.given[layer] = given
        if layer == self._last:
            raise PassHalted
        return None


def run(model: PreTrainedModel, cache: RowsCache, *, ids: Tensor, wanted: Tensor | None = None) -> Tensor | None:
    """Runs one pass; the logits (W, V) of the wanted rows, or None where it halted."""
    rows = torch.arange(cache.rows - 1, cache.rows, device=ids.device) if wanted is None else wanted
    with active(cache), torch.inference_mode():
        try:
            out = model(
                input_ids=ids[None],
                position_ids=cache.positions[None],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=rows,
            )
        except PassHalted:
            return None
    logits: Tensor = out.logits[0]
    return logits if len(logits) == len(rows) else logits[rows]  # some models make those of all rows, whoever asks


def angles(model: PreTrainedModel, positions: Tensor, *, tables: list[int], last: int) -> dict[int, Angles]:
    """The angles of some positions as each table's first layer is given them."""
    probe = AnglesProbeCache(positions, tables=tables, last=last)
    run(model, probe, ids=torch.zeros_like(positions))
    found: dict[int, Angles] = {}
    for table, given in probe.given.items():
        read = read_angles(given)
        if read is None:
            raise UnsupportedModel(f"layer {table} turns its keys by an unknown rule")
        found[table] = read
    return found


def examine(model: PreTrainedModel, *, window: int, states: frozenset[int]) -> ModelLayers:
    """Run the model twice over the same tokens and compare. `states`: the layers whose modules have a `StateGate`."""
    device = model.device
    ids = torch.arange(3, 3 + TOKENS, device=device) % text_config(model).vocab_size
    offset = min(OFFSET, max(TOKENS, window // 2))
    near = LayerProbeCache(first=0, device=device)
    run(model, near, ids=ids)
    far = LayerProbeCache(first=offset, device=device, entered=near.entered)
    run(model, far, ids=ids)
    if not torch.equal(near.entered[0], far.entered[0]):
        raise UnsupportedModel(
            "the embeddings depend on the position (learned absolute positions): nothing undoes that"
        )
    layers = sorted(near.entered)
    silent = [layer for layer in layers if layer not in near.stored]
    if not near.stored:
        raise UnsupportedModel("no layer keeps keys and values for each token: there is nothing of a chunk to store")
    if silent and not near.shared and not states:
        raise UnsupportedModel(f"layers {silent} keep a state of their own instead of keys and values for each token")
    rules = {layer: _rule(near, far, layer=layer) for layer in near.stored}
    shapes = {layer: _shape(near.stored[layer]) for layer in near.stored}
    entering = input_shape(near.entered[0].shape[-1])
    stretches = _stretches(states, keeping=near.stored.keys(), layers=len(layers)) if entering else ()
    for each in stretches:
        if each.start and entering:
            shapes[each.start], rules[each.start] = entering, LayerRule(None, None, each.start)
    return ModelLayers(
        shapes=tuple(shapes.get(layer) for layer in layers),
        rules=tuple(rules.get(layer) for layer in layers),
        table_layers=frozenset(near.table_layers),
        shared=frozenset(near.shared),
        states=states,
        state_bytes=near.segments[0].context.states.nbytes,
        stretches=stretches,
    )


def _stretches(states: frozenset[int], *, keeping: Set[int], layers: int) -> tuple[range, ...]:
    """See `ModelLayers`."""
    if not states.isdisjoint(keeping):
        return ()
    found = list[range]()
    for begin, end in pairwise([-1, *sorted(keeping), layers]):
        if own := [layer for layer in states if begin < layer < end]:
            found.append(range(min(own) if begin >= 0 else 0, end))
    return tuple(found)


def _shape(stored: tuple[Tensor, Tensor]) -> LayerShape:
    keys, values = stored
    return LayerShape(keys.shape[1], keys.shape[3], values.shape[1], values.shape[3])


def _rule(near: LayerProbeCache, far: LayerProbeCache, *, layer: int) -> LayerRule:
    given = near.given[layer]
    table = next(first for first in sorted(near.given) if near.given[first] is given)
    if given is None:
        pair = None
    else:
        here, there = read_angles(given), read_angles(far.given[layer])
        if here is None or there is None:
            raise UnsupportedModel(f"layer {layer} turns its keys by an unknown rule")
        pair = (here, there)
    found = [
        _rotation(near.stored[layer][part][0], far.stored[layer][part][0], pair=pair, name=f"layer {layer}: {name}")
        for part, name in enumerate(("keys", "values"))
    ]
    return LayerRule(found[0], found[1], table)


def _rotation(near: Tensor, far: Tensor, *, pair: tuple[Angles, Angles] | None, name: str) -> Rotation | None:
    """The candidate that makes (H, T, D) of both positions equal. Raises UnsupportedModel where none does."""
    pairs = 0 if pair is None else pair[0].cos.shape[-1]
    errors: dict[Rotation | None, float] = {}
    for rotation in candidates(near.shape[-1], pairs):
        a, b = near.float(), far.float()
        if pair is not None:
            a, b = unrotate(a, rotation, angles=pair[0]), unrotate(b, rotation, angles=pair[1])
        scale = a.square().mean().sqrt()
        errors[rotation] = float((a - b).square().mean().sqrt() / scale) if scale > 0 else float((a - b).abs().max())
    best = min(errors, key=lambda each: errors[each])
    if not errors[best] <= TOLERANCE.get(near.dtype, TOLERANCE[torch.bfloat16]):
        raise UnsupportedModel(
            f"{name} change with the position in a way that no known rotation undoes (off by {errors[best]:.2g})"
        )
    return best
