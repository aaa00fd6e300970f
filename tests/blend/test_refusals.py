"""What cannot work is refused when it is loaded, by name of the reason."""

import copy
from collections.abc import Callable

import pytest
import torch
import transformers as hf

from blend.errors import UnsupportedModel
from blend.load import adopt
from tests.blend.families import BASE, build, native, words

SMALL = {key: value for key, value in BASE.items() if key not in ("head_dim", "num_key_value_heads")}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
}
HYBRID = {"attn_layer_period": 2, "attn_layer_offset": 1}
STATE = "recurrent state|linear-attention, convolution or state layers"

REFUSED: dict[str, tuple[Callable[[], hf.PreTrainedConfig], str]] = {
    "mamba": (lambda: hf.MambaConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2, state_size=4), STATE),
    "rwkv": (
        lambda: hf.RwkvConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32),
        STATE,
    ),
    "jamba": (lambda: hf.JambaConfig(**{**BASE, **HYBRID}, num_experts=2, mamba_d_state=4), STATE),
    "bamba": (lambda: hf.BambaConfig(**SMALL, mamba_n_heads=4, mamba_d_state=4, attn_layer_indices=[1]), STATE),
    "falcon-h1": (lambda: hf.FalconH1Config(**BASE, mamba_n_heads=4, mamba_d_state=4, mamba_d_ssm=32), STATE),
    "qwen3-next": (lambda: hf.Qwen3NextConfig(**BASE, num_experts=2), STATE),
    "lfm2": (lambda: hf.Lfm2Config(**BASE, layer_types=["conv", "full_attention"] * 2), STATE),
    "dynamic-ntk": (lambda: hf.LlamaConfig(**BASE, rope_parameters=DYNAMIC), "depend on the prompt's length"),
    "longrope": (lambda: hf.Phi3Config(**BASE, rope_parameters=LONG), "depend on the prompt's length"),
    "gpt2": (lambda: hf.GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4), "learned absolute positions"),
    "opt": (lambda: hf.OPTConfig(**{**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}), "learned absolute positions"),
    "bloom": (lambda: hf.BloomConfig(vocab_size=128, hidden_size=32, n_layer=2, n_head=4), "no window|registry"),
    "mpt": (lambda: hf.MptConfig(vocab_size=128, d_model=32, n_layers=2, n_heads=4), "no window|registry"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_model_that_cannot_work_is_refused_by_name_of_the_reason(name: str) -> None:
    config, reason = REFUSED[name]
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config())

    with pytest.raises(UnsupportedModel, match=reason):
        adopt(model, words())


def test_positions_of_several_axes_are_refused() -> None:
    text = {**SMALL, "num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}
    model = hf.Qwen2VLForConditionalGeneration(hf.Qwen2VLConfig(text_config=text, vision_config=vision))

    with pytest.raises(UnsupportedModel, match="multi-axis"):
        adopt(model, words())


def test_an_encoder_decoder_is_refused() -> None:
    model = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=128, d_model=32, d_ff=32, num_layers=1, num_heads=2))

    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        adopt(model, words())


def test_weights_that_are_not_finite_are_refused() -> None:
    model = copy.deepcopy(native("llama"))
    with torch.no_grad():
        next(model.parameters())[7] = float("nan")

    with pytest.raises(UnsupportedModel, match="not finite"):
        adopt(model, words())


def sees_the_future(model: hf.PreTrainedModel) -> None:
    model.config.is_causal = False


def shifts_with_every_call(model: hf.PreTrainedModel) -> None:
    """A model whose hidden states carry something over from pass to pass."""
    state = torch.zeros(())

    def drift(module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        state.add_(0.5)
        return output * (1 + state)

    model.get_submodule("model.layers.1.mlp").register_forward_hook(drift)


def spread_over_devices(model: hf.PreTrainedModel) -> None:
    vars(model)["hf_device_map"] = {"model": 0, "lm_head": 1}


def adapted(model: hf.PreTrainedModel) -> None:
    model._hf_peft_config_loaded = True  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (sees_the_future, "densely|mask"),
        (shifts_with_every_call, "densely|change with the position"),
        (spread_over_devices, "several devices"),
        (adapted, "merge it into the weights"),
    ],
)
def test_the_checks_find_what_a_configuration_does_not_say(
    spoil: Callable[[hf.PreTrainedModel], None], reason: str
) -> None:
    model = build(hf.LlamaConfig(**BASE))
    spoil(model)

    with pytest.raises(UnsupportedModel, match=reason):
        adopt(model, words())
