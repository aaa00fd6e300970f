"""Each decoder of the installed transformers, made small out of its configuration class, with random weights, and what
`load` says of it: as a module it writes the table of docs/models.md, which `kvweave doctor --decoders` tells.

Sizes are set by the names that all classes share; what else a class needs stands in `OTHER_SETTINGS`.
"""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers as hf
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from blend.adopt.load import load
from blend.errors import UnsupportedModel
from tests.blend.families import words

Settings = dict[str, Any]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
TOLD = PAGE.parents[1] / "blend" / "adopt" / "decoders.md"
SERVED, FOR_TEXT, REFUSED, UNTRIED = "served", "served for text", "refused: ", "not tried: "
DRAFT = "a draft that reads another model's hidden states, no decoder of its own"
SOUND = "it writes sound"
TIMM = "its vision tower needs the package timm"
# What cannot be built small, and why.
NOT_BUILT = {
    "dots3_note": "its text is dots3_note_text",
    "evolla": "transformers' loaders know no such configuration",
    "fast_vlm": TIMM,
    "gemma3n": TIMM,
    "gemma4_assistant": DRAFT,
    "gemma4_unified_assistant": DRAFT,
    "musicgen": SOUND,
    "musicgen_melody": SOUND,
    "nemo_speechlm": "its checkpoint does not load in transformers itself",
    "perception_lm": TIMM,
}

# What a refusal says of one class or one checkpoint alone, and what the page says instead.
DETAILS = {
    r"^\w*[A-Z]\w* ": "",  # the class
    r"(own forward pass over text alone|than densely): .*": r"\1",
    r" \((?:\w*(?:Layer|Cache)(?:, )?)+\)": "",
    r"no list of \d+ ": "no list of ",
    r"^layer \d+(.*?)(?: \(off by .*\))?$": r"a layer\1",
}

WORDS, WIDTH, HEADS, LAYERS = 128, 32, 4, 4

# By the first pattern that fits. What a class leaves open (None) stays so, but for those of `OPEN`.
SIZES: dict[str, object] = {
    r"qk_head_dim": 16,
    r"(.*_)?head_dim|rotary_dim|v_head_dim": 8,
    r"(.*_)?vocab_size(_.*)?|.*_vocab": WORDS,
    r"d_model|n_embd|width|(.*_)?hidden_size|(.*_)?hidden_dim|embedding_size": WIDTH,
    r"(.*_)?(embed|emb|projection|output|codebook|ple_embed)_dim|dim|conv_dim|out_dim": WIDTH,
    r".*intermediate_size.*|(.*_)?ffn_dim|mlp_dim|d_ff|n_inner|.*ffn_hidden_size": 48,
    r"num_hidden_layers|num_layers|n_layers?|depth|encoder_layers|decoder_layers": LAYERS,
    r"(.*_)?attention_heads|n_heads?|num_heads": HEADS,
    r"(.*_)?key_value_heads|num_kv_heads|kv_n_heads": 2,
    r"[qk]v?_lora_rank": 16,
    r"n_routed_experts|num_(local_)?experts|moe_num_experts": 4,
    r"num_experts_per_tok(en)?|moe_k|moe_topk|top_k_experts": 2,
    r"n_group|topk_group|num_expert_group": 1,
    r"max_position_embeddings|n_positions|max_seq_len|n_ctx": 4096,
    r"sliding_window": 24,
    r"pad_token_id|padding_idx": 0,
    r"bos_token_id": 1,
    r"eos_token_id": 2,
    r"image_size": 32,
    r"patch_size": 8,
    r"(base|latent)_channels|upsample_groups|num_embeddings": 32,
    r"num_filters": 4,
}
OPEN = (
    "head_dim",
    "num_key_value_heads",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)

HYBRID: Settings = {"mamba_n_heads": 4, "mamba_d_state": 4, "mamba_n_groups": 1}
DELTA: Settings = {"layer_types": ["linear_attention", "full_attention"] * 2}
INDEXED: Settings = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
CONVOLVED: Settings = {"layer_types": ["conv", "full_attention"] * 2}
NOTE: Settings = {"head_dim": 16, "per_layer_config": {}, "layer_types": ["indexed_attention", "sliding_attention"] * 2}
SPARSE: Settings = {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_block_size": 8}
SHARED: Settings = {"num_kv_shared_layers": 0, "intermediate_size": 48, "activation_sparsity_pattern": None}
TURNS: Settings = {
    kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")
}
OTHER_SETTINGS: dict[str, Settings] = {
    "bailing_hybrid": DELTA,
    "bamba": {**HYBRID, "attn_layer_indices": [1, 3]},
    "chameleon": {"vocabulary_map": {"<image>": 100}},
    "cohere_compass": {"text_config": {"rope_parameters": TURNS}},
    "cohere_compass_text": {"rope_parameters": TURNS},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense"] * 4}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note_text": NOTE,
    "emu3": {"vocabulary_map": {"<image>": 100, "<|extra_200|>": 101}},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {"mrope_section": [1, 1, 2]}}},
    "florence2": {"vision_config": {"embed_dim": [32, 32, 32, 32], "num_heads": [4] * 4, "num_groups": [4] * 4}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 8}},
    "gemma3n_text": SHARED,
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0, "head_dim": 0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "downsample_rate": "1/2",
        "vision_config": {"hidden_size": 64},
    },
    "granitemoehybrid": {**HYBRID, "layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {**DELTA, "linear_num_heads": 4, "linear_head_dim": 8},
    "kyutai_speech_to_text": {"audio_pad_token_id": 3},
    "lfm2": CONVOLVED,
    "lfm2_moe": CONVOLVED,
    "lfm2_vl": {"text_config": CONVOLVED},
    "mamba2": {"num_heads": 8},
    "minimax_m3_vl": {"text_config": SPARSE},
    "minimax_m3_vl_text": SPARSE,
    "mistral4": {"head_dim": 16},
    "molmo2": {"adapter_config": {"vision_feature_layer": [3, 2]}},
    "muse_spark": {"audio_config": {"hidden_sizes": [8, 8, 8, 8]}},
    "nemo_speechlm": {"word_timestamp_config": {"blank_token_id": 3}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "qwen2_5_omni": {"enable_audio_output": False},
    "qwen3_omni_moe": {"enable_audio_output": False},
    "qwen4_exp": {"text_config": INDEXED},
    "qwen4_exp_text": INDEXED,
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 16]},
    "step3p7": {"text_config": {"sliding_window": 24}},
    "unlimited_ocr": {"text_config": {"num_key_value_heads": 4}},
    "zamba": {"num_hidden_layers": 8},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zaya": {"num_experts_per_tok": 1},
}


def model_types() -> list[str]:
    """Whatever transformers may load as a decoder of text, alone or beside other senses."""
    maps = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    return sorted({name for each in maps for name in each})


def has_other_senses(model_type: str) -> bool:
    """Whether it is one that reads images, audio or video, too."""
    return model_type in modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES


def configuration(model_type: str) -> hf.PreTrainedConfig:
    """The small one of this type."""
    return _small(CONFIG_MAPPING[model_type], OTHER_SETTINGS.get(model_type, {}))


def whole_model(model_type: str) -> hf.PreTrainedModel:
    """The model as a checkpoint of this type has it, all senses included. Weights are wide: positions matter."""
    torch.manual_seed(0)
    kind = hf.AutoModelForMultimodalLM if has_other_senses(model_type) else hf.AutoModelForCausalLM
    model = kind.from_config(configuration(model_type), dtype=torch.float32)
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.normal_(1.0 if "norm" in name and each.ndim < 2 else 0.0, 0.3 if each.ndim > 1 else 0.1)
    return model.eval()


def _small(kind: type[hf.PreTrainedConfig], settings: Mapping[str, Any]) -> hf.PreTrainedConfig:
    parts, default = kind().sub_configs, cast(Settings, vars(kind()))
    found: Settings = {name: size for name, value in default.items() if (size := _sized(name, value)) is not value}
    if default.get("kv_lora_rank") is not None and "num_key_value_heads" in found:
        found["num_key_value_heads"] = HEADS
    for name in parts:
        if isinstance(default.get(name), hf.PreTrainedConfig):
            found[name] = _small(type(default[name]), settings.get(name, {}))
    found |= {name: value for name, value in settings.items() if name not in parts}
    rope = default.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_type") == "default":
        found["rope_parameters"] = {
            **rope,
            "mrope_section": _section({**default, **found}),
            **settings.get("rope_parameters", {}),
        }
    return kind(**found)


def _sized(name: str, value: object) -> object:
    for pattern, size in SIZES.items():
        if re.fullmatch(pattern, name):
            return size if type(value) is int or (value is None and name in OPEN) else value
    return value


def _section(sizes: Mapping[str, Any]) -> list[int]:
    """How the angles of a head are shared out among three axes, where a class has as many."""
    dim = sizes.get("head_dim") or WIDTH // HEADS
    angles = int(dim * sizes["rope_parameters"].get("partial_rotary_factor", 1.0)) // 2
    return [angles - 2 * (angles // 3), angles // 3, angles // 3]


def save_checkpoint(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Its checkpoint, with a tokenizer."""
    model.save_pretrained(folder)
    words().save_pretrained(folder)
    return folder


def outcome(model_type: str, folder: Path) -> str:
    """What `load` says of the small one, in the words of the page. What it says of no one class is left as it is."""
    if model_type in NOT_BUILT:
        return UNTRIED + NOT_BUILT[model_type]
    model = whole_model(model_type)
    try:
        load(str(save_checkpoint(model, folder)), device="cpu", dtype="float32")
    except UnsupportedModel as refusal:
        return REFUSED + _reason(str(refusal))
    return FOR_TEXT if has_other_senses(model_type) else SERVED


def _reason(refusal: str) -> str:
    """A refusal without what it says of one class or one checkpoint alone."""
    for pattern, instead in DETAILS.items():
        refusal = re.sub(pattern, instead, refusal)
    return refusal


def outcomes_in(page: str) -> dict[str, str]:
    """What the page says of each model type."""
    rows = re.findall(r"^\| ([^|`]+) \| (`.+`) \|$", page, re.MULTILINE)
    return {name: outcome for outcome, names in rows for name in re.findall(r"`([^`]+)`", names)}


def table(outcomes: Mapping[str, str]) -> str:
    """The page's table: served ones, then refusals, those of most classes first."""
    groups: dict[str, list[str]] = {}
    for name, said in sorted(outcomes.items()):
        groups.setdefault(said, []).append(f"`{name}`")
    order = sorted(
        groups, key=lambda said: (said not in (SERVED, FOR_TEXT), said.startswith(UNTRIED), -len(groups[said]), said)
    )
    rows = [f"| {said} | {', '.join(groups[said])} |" for said in order]
    return "\n".join(["| it is | `model_type` in config.json |", "|---|---|", *rows])


def _write() -> None:
    found: dict[str, str] = {}
    for name in model_types():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = outcome(name, Path(folder))
    page = re.sub(r"transformers \d[\w.]*", f"transformers {hf.__version__}", PAGE.read_text("utf-8"))
    rows = re.compile(r"^\| it is \|.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
    PAGE.write_text(rows.sub(lambda _: table(found), page, count=1), "utf-8")
    TOLD.write_text(table(found) + "\n", "utf-8")


if __name__ == "__main__":
    _write()
