"""Refuses models by their kind: unknown caches, no window, ALiBi, adapters, sight of later tokens, RoPE by length."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionAndFullAttentionLayer

from blend.errors import UnsupportedModel
from blend.run.decoder import Decoder
from blend.run.layer_gate import text_config
from blend.run.model_layers import angles

TOKENS = 48
SEES = {torch.float32: 1e-3}  # of a row's logits: what other tokens in the same pass may change by their rounding
SEES_HALF = 0.02


def refuse_structure(model: PreTrainedModel) -> None:
    """Raises UnsupportedModel where a configuration or a class declares that it cannot be served."""
    name = type(model).__name__
    text = text_config(model)
    if model.config.is_encoder_decoder:
        raise UnsupportedModel(f"{name} is an encoder-decoder: its keys depend on more than the tokens before them")
    if not getattr(text, "num_hidden_layers", None):
        raise UnsupportedModel(f"{name} states no number of layers (num_hidden_layers): it is no one stack of them")
    if getattr(model, "_is_stateful", False) and not getattr(text, "layer_types", None):
        raise UnsupportedModel(f"{name} keeps a recurrent state, not keys and values for each token")
    layers = {type(layer) for layer in DynamicCache(config=text).layers}
    if not any(issubclass(kind, DynamicLayer) for kind in layers):
        raise UnsupportedModel(f"{name} keeps a recurrent state alone: there is nothing of a chunk to store")
    own = layers - {DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionAndFullAttentionLayer}
    if others := sorted(kind.__name__ for kind in own if issubclass(kind, DynamicLayer)):
        raise UnsupportedModel(
            f"{name} keeps more than keys and values, or by a rule of its own ({', '.join(others)}), "
            "and chooses by it what a token sees (sparse attention)"
        )
    if getattr(model, "_tp_size", None) or len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        raise UnsupportedModel(f"{name} is spread over several devices: load it on one (device='cuda:0')")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise UnsupportedModel(f"{name} carries an adapter: merge it into the weights first")
    if _adds_alibi(model):
        raise UnsupportedModel(
            f"{name} adds a slope to scores instead of turning keys (ALiBi): nothing moves such a chunk"
        )
    if not getattr(text, "max_position_embeddings", None):
        raise UnsupportedModel(f"{name} states no window (max_position_embeddings)")


def _adds_alibi(model: PreTrainedModel) -> bool:
    """Whether the configuration asks for ALiBi, or, where it says nothing, whether the model can build the slopes."""
    text = text_config(model)
    told = getattr(getattr(text, "attn_config", text), "alibi", None)
    return any("alibi" in each for each in dir(model.base_model)) if told is None else bool(told)


def refuse_other_sight(plain: Callable[[Sequence[int]], Tensor], ids: Sequence[int]) -> None:
    """Refuses a model whose logits (T, V) depend on tokens after a row. `plain` computes them."""
    first = plain(ids)
    if _differ(first, plain(ids)):
        raise UnsupportedModel("the model's logits change with every pass over the same tokens: it keeps something")
    half = TOKENS // 2
    if _differ(first[:half], plain([*ids[:half], *reversed(ids[half:])])[:half]):
        raise UnsupportedModel("a row sees tokens that come after it: a chunk's keys would depend on what follows it")


def _differ(one: Tensor, other: Tensor) -> bool:
    before, after = one.float(), other.float()
    changes, sizes = ((each * each).sum(-1) for each in (after - before, before))
    return bool((changes > SEES.get(one.dtype, SEES_HALF) ** 2 * sizes).any())


def refuse_moving_angles(model: PreTrainedModel, decoder: Decoder) -> None:
    """Refuses rotary angles that depend on the prompt's length: keys of a short one would be wrong in a long one."""
    tables = decoder.model_layers.tables
    last = len(decoder.model_layers.shapes) - 1
    near = torch.arange(8, device=decoder.device)
    beyond = torch.tensor([4 * decoder.window], device=decoder.device)
    alone = angles(model, near, tables=tables, last=last)
    longer = angles(model, torch.cat([near, beyond]), tables=tables, last=last)
    for table in tables:
        if not torch.equal(alone[table].cos, longer[table].cos[:8]):
            raise UnsupportedModel("the RoPE frequencies depend on the prompt's length (dynamic NTK, longrope)")
