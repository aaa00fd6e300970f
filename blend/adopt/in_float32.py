"""Runs a half-precision model in float32 without memory for a second copy: each layer is widened while it runs."""

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

_HALF = (torch.float16, torch.bfloat16)


@contextmanager
def in_float32(model: PreTrainedModel, layers: nn.ModuleList) -> Generator[None]:
    """Widens all but the layers inside the block. Weights are restored afterwards; a quantizer's are never touched."""
    if getattr(model.config, "quantization_config", None) or all(
        each.dtype not in _HALF for each in model.parameters()
    ):
        yield
        return
    inside = {module for layer in layers for module in layer.modules()}
    with ExitStack() as undo:
        undo.enter_context(_wide(module for module in model.modules() if module not in inside))
        for layer in layers:
            undo.enter_context(_widening(layer))
        yield


@contextmanager
def _widening(layer: nn.Module) -> Generator[None]:
    """Widens a layer whenever it runs."""
    running = ExitStack()

    def enter(module: nn.Module, args: object) -> None:
        running.enter_context(_wide(module.modules()))

    def leave(*call: object) -> None:
        running.close()

    hooks = layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _wide(modules: Iterable[nn.Module]) -> Generator[None]:
    """Holds parameters and buffers in float32; those that several modules share are widened once."""
    wide: dict[Tensor, Tensor] = {}
    narrow: list[tuple[nn.Module, str, Tensor]] = []
    try:
        for module in modules:
            own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            for name, tensor in own:
                if tensor.dtype in _HALF:
                    if tensor not in wide:
                        wide[tensor] = _widened(tensor)
                    narrow.append((module, name, tensor))
                    setattr(module, name, wide[tensor])
        yield
    finally:
        for module, name, tensor in narrow:
            setattr(module, name, tensor)


def _widened(tensor: Tensor) -> Tensor:
    wide = tensor.detach().float()
    return nn.Parameter(wide, requires_grad=False) if isinstance(tensor, nn.Parameter) else wide
