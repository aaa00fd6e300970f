"""A tiny random model as a local checkpoint, with whatever tokenizer and chat template a test needs."""

from pathlib import Path

from transformers import LlamaConfig

from tests.blend.families import BASE, build
from tests.blend.tokenizers_made import TEMPLATE, fresh, made

DATED = "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %B %Y') + '.<|im_end|>\n' }}" + TEMPLATE


def checkpoint(folder: Path, kind: str = "bytes", **more: object) -> str:
    """Its folder, for the setting `model`. `more`: what the tokenizer has besides, such as a `chat_template`."""
    ends = {"vocab_size": len(made(kind)), "eos_token_id": made(kind).eos_token_id}
    build(LlamaConfig(**{**BASE, **ends})).save_pretrained(folder)
    fresh(kind, **more).save_pretrained(folder)
    return str(folder)
