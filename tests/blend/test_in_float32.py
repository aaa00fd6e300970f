"""Structure is judged in float32 whatever a model computes in, and its weights are as they were afterwards."""

import copy

import pytest
import torch
import transformers as hf
from torch import Tensor

from blend.adopt.in_float32 import in_float32
from blend.adopt.load import adopt
from blend.errors import UnsupportedModel
from blend.run.layer_gate import find_layers
from tests.blend.families import BASE, build, native, words

IDS = torch.arange(2, 50)[None]


def logits(model: hf.PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(IDS, use_cache=False).logits
    return found


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", "deepseek-v3", "cohere2", "gemma4"])
def test_the_pass_is_the_one_of_the_same_weights_in_float32(name: str) -> None:
    half = copy.deepcopy(native(name)).to(torch.bfloat16)  # pyright: ignore[reportArgumentType]
    wanted = logits(copy.deepcopy(half).float())
    before = {key: (value.data_ptr(), value.clone()) for key, value in half.state_dict().items()}

    with in_float32(half, find_layers(half)):
        found = logits(half)

    assert torch.equal(found, wanted)
    after = half.state_dict()
    assert after.keys() == before.keys()
    assert all(after[key].data_ptr() == place and torch.equal(after[key], old) for key, (place, old) in before.items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in half.modules())


def test_only_one_layer_is_wide_at_a_time() -> None:
    half = build(hf.LlamaConfig(**{**BASE, "num_hidden_layers": 6})).to(torch.bfloat16)  # pyright: ignore[reportArgumentType]
    layers = find_layers(half)
    wide: list[int] = []

    def count(module: torch.nn.Module, args: object) -> None:
        wide.append(sum(next(layer.parameters()).dtype == torch.float32 for layer in layers))

    with in_float32(half, layers):
        for layer in layers:
            layer.get_submodule("mlp").register_forward_pre_hook(count)
        logits(half)
    assert wide == [1] * 6


def leaks_a_little(model: hf.PreTrainedModel) -> None:
    """Each row gets a hundredth of the row behind it: what half precision's own rounding could be."""

    def leak(module: torch.nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + 0.01 * output.roll(-1, dims=1)

    model.get_submodule("model.layers.1.mlp").register_forward_hook(leak)


def counts_its_rows(model: hf.PreTrainedModel) -> None:
    """What it computes follows how many rows come together, by less than a bit of bfloat16 shows."""

    def count(module: torch.nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output * (1 + 0.04 * output.shape[1] / 48)

    model.get_submodule("model.layers.0.mlp").register_forward_hook(count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("spoil", "reason"), [(leaks_a_little, "come after it"), (counts_its_rows, "in scattered rows")]
)
def test_a_small_wrong_is_found_in_every_dtype(spoil: object, reason: str, dtype: torch.dtype) -> None:
    model = build(hf.LlamaConfig(**BASE)).to(dtype)  # pyright: ignore[reportArgumentType]
    assert callable(spoil)
    spoil(model)
    with pytest.raises(UnsupportedModel, match=reason):
        adopt(model, words())


def test_a_model_that_half_precision_cannot_hold_is_refused_with_the_dtype_that_can() -> None:
    model = build(hf.LlamaConfig(**BASE)).to(torch.float16)  # pyright: ignore[reportArgumentType]
    model.get_submodule("model.norm").weight.data.fill_(6e4)  # pyright: ignore[reportCallIssue]
    model.get_submodule("lm_head").weight.data.fill_(1.0)  # pyright: ignore[reportCallIssue]
    with pytest.raises(UnsupportedModel, match=r"finite logits in float32 and none in float16: .*bfloat16"):
        adopt(model, words())
