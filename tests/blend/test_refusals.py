"""What cannot work is refused when it is loaded, by name of the reason."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf

from blend.adopt.load import adopt
from blend.errors import UnsupportedModel
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
GEMMA3N: dict[str, Any] = {
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
    "num_kv_shared_layers": 0,
    "activation_sparsity_pattern": None,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "index_n_heads": 2,
    "index_head_dim": 16,
}
STATE = "recurrent state"

REFUSED: dict[str, tuple[Callable[[], hf.PreTrainedConfig], str]] = {
    "mamba": (lambda: hf.MambaConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2, state_size=4), STATE),
    "rwkv": (
        lambda: hf.RwkvConfig(vocab_size=128, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32),
        STATE,
    ),
    "jamba": (
        lambda: hf.JambaConfig(**{**BASE, **HYBRID}, num_experts=2, mamba_d_state=4, initializer_range=0.3),
        "a prefill in two parts",
    ),
    "dynamic-ntk": (lambda: hf.LlamaConfig(**BASE, rope_parameters=DYNAMIC), "depend on the prompt's length"),
    "longrope": (lambda: hf.Phi3Config(**BASE, rope_parameters=LONG), "depend on the prompt's length"),
    "gpt2": (lambda: hf.GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4), "learned absolute positions"),
    "opt": (lambda: hf.OPTConfig(**{**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}), "learned absolute positions"),
    "bloom": (lambda: hf.BloomConfig(vocab_size=128, hidden_size=32, n_layer=2, n_head=4), "ALiBi"),
    "mpt": (lambda: hf.MptConfig(vocab_size=128, d_model=32, n_layers=2, n_heads=4), "ALiBi"),
    "falcon": (lambda: hf.FalconConfig(**SMALL, alibi=True), "ALiBi"),
    "gemma3n": (lambda: hf.Gemma3nTextConfig(**BASE, **GEMMA3N), "several hidden states for each token"),
    "deepseek-v3.2": (lambda: hf.DeepseekV32Config(**SMALL, **LATENT), r"DynamicIndexedLayer.*sparse attention"),
    "gemma3-both-ways": (lambda: hf.Gemma3TextConfig(**BASE, use_bidirectional_attention=True), "come after it"),
}


def granite(*kinds: str) -> hf.PreTrainedConfig:
    """A class that says of itself that it keeps a state, whatever its layers are."""
    return hf.GraniteMoeHybridConfig(
        **SMALL, num_key_value_heads=2, layer_types=[*kinds] * 2, num_local_experts=2, num_experts_per_tok=1,
        shared_intermediate_size=32, mamba_n_heads=4, mamba_d_state=4,
    )  # fmt: skip


def test_a_class_with_states_works_where_none_of_its_layers_has_one() -> None:
    adopt(build(granite("attention", "attention")), words())


def test_a_model_that_sees_later_tokens_is_refused_in_half_precision_too() -> None:
    config = hf.Gemma3TextConfig(**BASE, use_bidirectional_attention=True)
    with pytest.raises(UnsupportedModel, match="come after it"):
        adopt(hf.AutoModelForCausalLM.from_config(config).to(torch.bfloat16), words())


def test_a_model_whose_own_pass_fails_is_refused_with_its_error() -> None:
    config = hf.MiniMaxM2Config(**BASE, num_local_experts=2, num_experts_per_tok=4)
    with pytest.raises(UnsupportedModel, match=r"its own forward pass.*out of range"):
        adopt(hf.AutoModelForCausalLM.from_config(config), words())


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_model_that_cannot_work_is_refused_by_name_of_the_reason(name: str) -> None:
    config, reason = REFUSED[name]
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config())

    with pytest.raises(UnsupportedModel, match=reason):
        adopt(model, words())


def test_an_encoder_decoder_is_refused() -> None:
    model = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=128, d_model=32, d_ff=32, num_layers=1, num_heads=2))

    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        adopt(model, words())


def test_who_is_no_one_stack_of_layers_is_refused() -> None:
    """A model of several stacks, the later half of an encoder-decoder, and one whose layers keep states."""
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    half = {**small, "vocab_size": 260, "hidden_size_global": 32}
    blt = hf.BltConfig(
        vocab_size=260,
        patcher_config={**small, "vocab_size": 260},
        encoder_config=half,
        decoder_config=half,
        global_config=small,
        encoder_hash_byte_group_vocab=100,
    )
    bart = hf.BartConfig(vocab_size=128, d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=64)
    for model, reason in (
        (hf.BltForCausalLM(blt), "states no number of layers"),
        (hf.BartForCausalLM(bart), r"has no list of \d+ decoder layers that text runs through once"),
        (hf.AutoModelForCausalLM.from_config(hf.MiniMaxConfig(**BASE, num_local_experts=2)), STATE),
    ):
        with pytest.raises(UnsupportedModel, match=reason):
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
        (sees_the_future, "come after it"),
        (shifts_with_every_call, "change with every pass"),
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
