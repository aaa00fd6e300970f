"""Tiny random models of many families, each built from its config class. Weights are a function of the seed."""

import copy
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from blend.adopt.load import LoadedModel, adopt

Settings = dict[str, Any]

VOCABULARY = 128
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WINDOW = 24  # shorter than most chunks of the tests
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 64.0, "original_max_position_embeddings": 64}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


FAMILIES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "llama": lambda: hf.LlamaConfig(**BASE),
    "llama3-rope": lambda: hf.LlamaConfig(
        **BASE, rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3}
    ),
    "llama-yarn": lambda: hf.LlamaConfig(**BASE, rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, **YARN}),
    "mistral-window": lambda: hf.MistralConfig(**BASE, sliding_window=WINDOW),
    "qwen2": lambda: hf.Qwen2Config(**BASE),
    "qwen3": lambda: hf.Qwen3Config(**BASE),
    "gemma2": lambda: hf.Gemma2Config(**BASE, sliding_window=WINDOW, layer_types=ALTERNATING, query_pre_attn_scalar=8),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **BASE, sliding_window=WINDOW, layer_types=ALTERNATING, query_pre_attn_scalar=8
    ),
    "gemma4": lambda: hf.Gemma4TextConfig(
        **{**BASE, "num_hidden_layers": 6, "global_head_dim": 16},
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY,
    ),
    "phi3-partial": lambda: hf.Phi3Config(**BASE, rope_parameters=PARTIAL),
    "olmo2": lambda: hf.Olmo2Config(**BASE),
    "gpt-oss": lambda: hf.GptOssConfig(
        **BASE, sliding_window=WINDOW, layer_types=ALTERNATING, num_local_experts=4, num_experts_per_tok=2
    ),
    "granite": lambda: hf.GraniteConfig(
        **BASE, attention_multiplier=0.4, residual_multiplier=0.3, embedding_multiplier=3
    ),
    "mixtral": lambda: hf.MixtralConfig(**BASE, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": lambda: hf.Qwen3MoeConfig(
        **BASE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, decoder_sparse_step=1
    ),
    "cohere2": lambda: hf.Cohere2Config(**BASE, sliding_window=WINDOW, layer_types=ALTERNATING),
    "smollm3": lambda: hf.SmolLM3Config(**BASE, no_rope_layers=[1, 1, 0, 1]),
    "glm4": lambda: hf.Glm4Config(**BASE, rope_parameters=PARTIAL),
    "deepseek-v3": lambda: hf.DeepseekV3Config(
        **{**BASE, "num_key_value_heads": 4},
        moe_intermediate_size=24,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        n_shared_experts=1,
        q_lora_rank=12,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    "llama4": lambda: hf.Llama4TextConfig(
        **BASE,
        intermediate_size_mlp=48,
        num_local_experts=4,
        num_experts_per_tok=1,
        attention_chunk_size=WINDOW,
        no_rope_layers=[1, 1, 1, 0],
        floor_scale=16,
        attn_scale=0.5,
    ),
}

# Families that nobody named, of the same kind.
OTHERS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "arcee": lambda: hf.ArceeConfig(**BASE),
    "ernie4.5": lambda: hf.Ernie4_5Config(**BASE),
    "exaone4": lambda: hf.Exaone4Config(**BASE, sliding_window=WINDOW, layer_types=ALTERNATING),
    "gpt-neox": lambda: hf.GPTNeoXConfig(**BASE),
    "nanochat": lambda: hf.NanoChatConfig(**BASE),
    "nemotron": lambda: hf.NemotronConfig(**BASE),
    "olmo3": lambda: hf.Olmo3Config(**BASE, sliding_window=WINDOW, layer_types=ALTERNATING),
    "stablelm": lambda: hf.StableLmConfig(**BASE),
}

LINEAR: Settings = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
MAMBA: Settings = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
MIXTURE: Settings = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}

# Families some of whose layers keep a state: by delta rules, convolutions, Mamba-2; beside attention, or in one layer.
HYBRIDS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "qwen3-next": lambda: hf.Qwen3NextConfig(
        **BASE, **LINEAR, **MIXTURE, num_experts=4, shared_expert_intermediate_size=16
    ),
    "qwen3.5": lambda: hf.Qwen3_5TextConfig(**BASE, **LINEAR),
    "olmo-hybrid": lambda: hf.OlmoHybridConfig(**BASE, **{**LINEAR, "linear_num_value_heads": 2}),
    "kimi-linear": lambda: hf.KimiLinearConfig(
        **{**BASE, "num_key_value_heads": 4, "linear_num_heads": 4, "linear_head_dim": 8},
        **{**MIXTURE, "num_experts": 4},
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
    "lfm2": lambda: hf.Lfm2Config(**BASE, layer_types=["conv", "full_attention", "full_attention", "conv"]),
    "bamba": lambda: hf.BambaConfig(**BASE, **MAMBA, attn_layer_indices=[1, 3], mamba_expand=2),
    "granite-4-h": lambda: hf.GraniteMoeHybridConfig(
        **BASE,
        **MAMBA,
        mamba_expand=2,
        layer_types=["mamba", "attention"] * 2,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=48,
    ),
    "falcon-h1": lambda: hf.FalconH1Config(**BASE, **MAMBA, mamba_d_ssm=64),
    "nemotron-h": lambda: hf.NemotronHConfig(
        **BASE,
        **MIXTURE,
        layers_block_type=["mamba", "attention", "moe", "attention"],
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=16,
        n_routed_experts=4,
        moe_shared_expert_intermediate_size=16,
    ),
}


def build(config: hf.PreTrainedConfig, *, seed: int = 0, spread: float = 0.3) -> hf.PreTrainedModel:
    """A float32 model whose attention is not flat: weights are wide enough that positions and chunks matter."""
    torch.manual_seed(seed)
    config.initializer_range = spread
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.1)
    return model.eval()


@cache
def native(name: str) -> hf.PreTrainedModel:
    """The model as transformers made it: the reference."""
    model = build({**FAMILIES, **OTHERS, **HYBRIDS}[name]())
    model.set_attn_implementation("eager")
    return model


@cache
def ours(name: str) -> LoadedModel:
    """The same weights, made ours; on an accelerator where there is one."""
    return adopt(put(copy.deepcopy(native(name))), words())


def halved(names: Iterable[str], others: Iterable[str]) -> list[object]:
    """Each name with half of the others, and each of these with half of the names; all of them in the long tests."""
    return [
        pytest.param(name, other, marks=() if (row + column) % 2 else pytest.mark.long)
        for (row, name), (column, other) in product(enumerate(names), enumerate(others))
    ]


def put(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """On the device that the tests compute on."""
    torch.nn.Module.to(model, DEVICE)
    return model


def words() -> hf.PreTrainedTokenizerFast:
    """A tokenizer in which token i is the word `wi`."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, VOCABULARY)}
    backend = Backend(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", pad_token="<pad>", bos_token="<s>", unk_token="<pad>"
    )


def draw(seed: int, *counts: int) -> list[tuple[int, ...]]:
    """Runs of random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()) for count in counts]
