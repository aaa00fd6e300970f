"""Finds a model's decoder layers by a probe, refuses a model without such a list, and wraps each layer's forward."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from blend.errors import UnsupportedModel
from blend.run.rows_cache import ACTIVE

PROBE_IDS = (5, 7, 11, 13)


class LayerGate:
    """Takes the place of a decoder layer's forward, and asks the active cache what shall enter."""

    def __init__(self, inner: Callable[..., object], index: int) -> None:
        self._inner = inner
        self._index = index
        self._returns = 0  # how many things, in a tuple; 0: the hidden states by themselves

    def __call__(self, *args: object, **kwargs: object) -> object:
        cache = ACTIVE.get()
        if cache is None:
            out = self._inner(*args, **kwargs)
            self._returns = _count(out)
            return out
        hidden = args[0] if args else kwargs["hidden_states"]
        assert isinstance(hidden, Tensor)
        entering = cache.enter(self._index, hidden, given=kwargs.get("position_embeddings"))
        if entering is None:
            return (hidden, *[None] * (self._returns - 1)) if self._returns else hidden
        more = args[1:], {name: each for name, each in kwargs.items() if name != "hidden_states"}
        if cache.replay is not None and cache.is_plain(self._index):
            replayed = cache.replay.layer(self._index, self._inner, hidden=entering, more=more)
            if replayed is not None:
                return replayed[0]
        return self._inner(entering, *more[0], **more[1])


def _count(out: object) -> int:
    return len(cast("tuple[object, ...]", out)) if isinstance(out, tuple) else 0


def text_config(model: PreTrainedModel) -> PreTrainedConfig:
    """The part of a configuration that describes the decoder of text."""
    return model.config.get_text_config(decoder=True)  # pyright: ignore[reportUnknownMemberType]


def find_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of modules that a pass over plain text runs through, one after the other."""
    count: int = text_config(model).num_hidden_layers
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each) >= count]
    calls: list[nn.Module] = []
    with _listening(lists, calls), torch.inference_mode():
        model(torch.tensor([PROBE_IDS], device=model.device) % text_config(model).vocab_size, use_cache=False)
    for each in lists:
        run = [module for module in calls if module in set(each)]
        if run == list(each)[:count]:
            return each
    raise UnsupportedModel(f"{type(model).__name__} has no list of {count} decoder layers that text runs through once")


@contextmanager
def _listening(lists: list[nn.ModuleList], calls: list[nn.Module]) -> Generator[None]:
    def note(module: nn.Module, args: object) -> None:
        calls.append(module)

    hooks = [module.register_forward_pre_hook(note) for module in {m for each in lists for m in each}]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def install(layers: nn.ModuleList) -> None:
    """Put a gate in front of each layer, once."""
    for index, layer in enumerate(layers):
        if not isinstance(layer.forward, LayerGate):
            layer.forward = LayerGate(layer.forward, index)
