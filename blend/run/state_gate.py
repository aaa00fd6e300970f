# transformers types its caches loosely:
# pyright: reportUnknownMemberType=false
"""Wraps the modules that keep a recurrent state (linear attention): neighbours of equally many rows run as one batch,
each behind its own state. Refuses a model whose states are not in transformers' cache.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin, LinearAttentionLayer

from blend.errors import UnsupportedModel
from blend.run.context import Segment
from blend.run.layer_gate import PROBE_IDS, text_config
from blend.run.rows_cache import ACTIVE, RowsCache
from blend.run.states import LayerState, Parts, stacked


class StateGate:
    """Takes the place of a module's forward, and runs each request's rows behind its own state of the layer."""

    def __init__(self, inner: Callable[..., object], layer: int, *, states: int) -> None:
        """`states`: how many the layer has, each a convolution's inputs and a recurrent part."""
        self.inner = inner
        self._layer = layer
        self._states = states

    def __call__(self, *args: object, **kwargs: object) -> object:
        cache = ACTIVE.get()
        if cache is None:
            return self.inner(*args, **kwargs)
        hidden = args[0] if args else kwargs.pop("hidden_states")
        assert isinstance(hidden, Tensor)
        batches = [
            self._run(cache, each, hidden=hidden, inner=lambda rows: self.inner(rows, *args[1:], **kwargs))
            for each in _batches(cache.segments)
        ]
        found = batches[0] if len(batches) == 1 else [torch.cat(parts, dim=1) for parts in zip(*batches, strict=True)]
        return found[0] if len(found) == 1 else tuple(found)

    def _run(
        self, cache: RowsCache, segments: Sequence[Segment], *, hidden: Tensor, inner: Callable[[Tensor], object]
    ) -> list[Tensor]:
        """What the module makes of segments of equally many rows, as one batch."""
        rows = hidden[:, segments[0].start : segments[-1].stop].reshape(len(segments), -1, hidden.shape[-1])
        befores = [each.context.states.before(self._layer, each.slots.first) for each in segments]
        layer = self._filled(stacked(befores))
        with _standing(cache, layer, index=self._layer):
            out = inner(rows)
        for at, (each, before) in enumerate(zip(segments, befores, strict=True)):
            first = each.slots.first if before is None else before.first
            parts = tuple(None if part is None else part[at : at + 1] for part in self._parts(layer))
            each.context.states.keep(self._layer, LayerState(first, each.slots.last + 1, parts))
        made = cast("tuple[Tensor, ...]", out if isinstance(out, tuple) else (out,))
        return [each.reshape(1, -1, *each.shape[2:]) for each in made]

    def _filled(self, parts: Parts | None) -> LinearAttentionLayer:
        layer = LinearAttentionLayer(self._states)
        pairs = zip(parts[::2], parts[1::2], strict=True) if parts else ()
        for at, (conv, recurrent) in enumerate(pairs):
            layer.has_previous_state[at] = True
            if conv is not None:
                layer.conv_states[at], layer.conv_kernel_size[at] = conv, conv.shape[-1]
                layer.is_conv_states_initialized[at] = True
            if recurrent is not None:
                layer.recurrent_states[at] = recurrent
                layer.is_recurrent_states_initialized[at] = True
        return layer

    def _parts(self, layer: LinearAttentionLayer) -> Iterator[Tensor | None]:
        for at in range(self._states):
            yield layer.conv_states[at]
            yield layer.recurrent_states[at]


def _batches(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Neighbours of equally many rows."""
    for _, some in groupby(segments, key=lambda each: len(each.slots)):
        yield [*some]


@contextmanager
def _standing(cache: RowsCache, layer: LinearAttentionLayer, *, index: int) -> Generator[None]:
    """Has the cache's layer of this index be this one inside."""
    cache.layers.extend([layer] * (index + 1))
    try:
        yield
    finally:
        cache.layers.clear()


def install_state_gates(model: PreTrainedModel, layers: nn.ModuleList) -> frozenset[int]:
    """Put a gate in front of each module that keeps a state, once; returns the layers that have one."""
    found = dict[nn.Module, int]()
    stack = list[nn.Module]()
    cache = _ListeningCache(config=text_config(model))
    keeping = {at for at, each in enumerate(cache.layers) if isinstance(each, LinearAttentionCacheLayerMixin)}
    if not keeping:
        return frozenset()
    cache.heard = lambda layer: found.setdefault(stack[-1], layer)
    with _followed(layers, stack), torch.inference_mode():
        ids = torch.tensor([PROBE_IDS], device=model.device) % text_config(model).vocab_size
        try:
            model(ids, use_cache=True, past_key_values=cache)
        except (TypeError, ValueError) as error:
            raise UnsupportedModel(
                f"{type(model).__name__} keeps its recurrent state in a cache of its own, not in transformers' own"
            ) from error
    for module, index in found.items():
        inner = module.forward.inner if isinstance(module.forward, StateGate) else module.forward
        kept = cache.layers[index]
        assert isinstance(kept, LinearAttentionCacheLayerMixin)
        module.forward = StateGate(inner, index, states=kept.number_of_states)
    if others := sorted(keeping - set(found.values())):
        raise UnsupportedModel(
            f"layers {others} keep a state by a rule of their own, not in transformers' cache (linear attention)"
        )
    return frozenset(keeping)


class _ListeningCache(DynamicCache):
    heard: Callable[[int], object]

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, *state_idx: int, **kwargs: object) -> Tensor:
        self.heard(layer_idx)
        return super().update_conv_state(conv_states, layer_idx, *state_idx, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, *state_idx: int, **kwargs: object
    ) -> Tensor:
        self.heard(layer_idx)
        return super().update_recurrent_state(recurrent_states, layer_idx, *state_idx, **kwargs)


@contextmanager
def _followed(layers: nn.ModuleList, stack: list[nn.Module]) -> Generator[None]:
    """Has the modules that run, from a layer to the innermost, on the stack."""

    def enter(module: nn.Module, args: object) -> None:
        stack.append(module)

    def leave(*call: object) -> None:
        stack.pop()

    hooks = [
        hook
        for module in layers.modules()
        for hook in (module.register_forward_pre_hook(enter), module.register_forward_hook(leave))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
