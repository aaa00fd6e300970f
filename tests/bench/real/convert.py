"""Makes a transformers folder in float32 of a GGUF file: `python -m tests.bench.real.convert FILE FOLDER`.

Runs in a process of its own, with the packages in its path that read such files.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

OF_FILE = ("quantization_config", "_model_name_or_path")  # what the loaded model's configuration says of its file
END = 2  # the token that ends a turn; the file names another


def convert(file: Path, folder: Path) -> None:
    """Write weights and tokenizer. The loaded model takes itself for a quantized one, so its weights go to another."""
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = {name: value for name, value in loaded.config.to_dict().items() if name not in OF_FILE}
    model = LlamaForCausalLM(LlamaConfig(**config)).float()
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    assert model.generation_config is not None
    model.generation_config.eos_token_id = END
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
