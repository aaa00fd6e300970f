"""Tiny random models as local checkpoints, with whatever tokenizer and template a test needs, and models kept."""

import atexit
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import LlamaConfig

from blend.adopt.load import LoadedModel, load
from tests.blend.families import BASE, build
from tests.blend.tokenizers_made import TEMPLATE, fresh, made

_loaded: dict[tuple[str, str, str], LoadedModel] = {}

DATED = "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %B %Y') + '.<|im_end|>\n' }}" + TEMPLATE


def checkpoint(folder: Path, kind: str = "bytes", **more: object) -> str:
    """Its folder, for the setting `model`. `more`: what the tokenizer has besides, such as a `chat_template`."""
    ends = {"vocab_size": len(made(kind)), "eos_token_id": made(kind).eos_token_id}
    build(LlamaConfig(**{**BASE, **ends})).save_pretrained(folder)
    fresh(kind, **more).save_pretrained(folder)
    return str(folder)


@cache
def small() -> str:
    """One for all tests of this process that ask what is stored, and not what a model knows: a quarter of the work."""
    folder = TemporaryDirectory(prefix="checkpoint")
    atexit.register(folder.cleanup)
    return checkpoint(Path(folder.name), "unigram")


def loaded_once(name: str, *, device: str, dtype: str, digests: Path | None) -> LoadedModel:
    """In the place of `load`, where no test changes the model: who loads it again has the same one."""
    key = name, device, dtype
    if key not in _loaded:
        _loaded[key] = load(name, device=device, dtype=dtype, digests=digests)
    return _loaded[key]
