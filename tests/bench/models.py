"""Models with random weights, of a shape that is to be measured, with the built-in model's tokenizer."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from service.builtin import CHECKPOINT

SEED = 77


def random_model(shape: str, folder: Path) -> str:
    """A checkpoint of `LAYERSxWIDTH`, or `LAYERSxWIDTHxKEYHEADS` with heads of 64; the built-in one for none.

    24x896x2 has the layers of a model of half a billion parameters, and few words.
    """
    if not shape:
        return "builtin"
    layers, width, *heads = map(int, shape.split("x"))
    dim = 64 if heads else 32
    config = AutoConfig.from_pretrained(CHECKPOINT)
    config.update({"num_hidden_layers": layers, "hidden_size": width, "layer_types": None})
    config.update({"intermediate_size": round(width * (5.43 if heads else 3)), "head_dim": dim})
    config.update({"num_attention_heads": width // dim, "num_key_value_heads": heads[0] if heads else width // dim})
    torch.manual_seed(SEED)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(CHECKPOINT).save_pretrained(folder)
    return str(folder)
