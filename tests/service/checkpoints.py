"""Tiny random models as local checkpoints, with whatever tokenizer and template a test needs, and models kept."""

import atexit
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import LlamaConfig, PreTrainedConfig, Qwen3_5TextConfig

from blend.adopt.load import LoadedModel, load
from tests.blend.families import BASE, LINEAR, build
from tests.blend.tokenizers_made import TEMPLATE, fresh, made

IS_HYBRID = os.environ.get("TEST_MODEL") == "hybrid"  # whether what is stored is asked of a hybrid

_loaded: dict[tuple[str, str, str], LoadedModel] = {}

DATED = "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %B %Y') + '.<|im_end|>\n' }}" + TEMPLATE


def checkpoint(folder: Path, kind: str = "bytes", **more: object) -> str:
    """Its folder, for the setting `model`. `more`: what the tokenizer has besides, such as a `chat_template`."""
    return _saved(folder, kind, LlamaConfig(**{**BASE, **_ends(kind)}), **more)


def hybrid(folder: Path, kind: str = "bytes") -> str:
    """The folder of a model of which each second layer keeps a state."""
    return _saved(folder, kind, Qwen3_5TextConfig(**{**BASE, **_ends(kind)}, **LINEAR))


def _ends(kind: str) -> dict[str, object]:
    return {"vocab_size": len(made(kind)), "eos_token_id": made(kind).eos_token_id}


def _saved(folder: Path, kind: str, config: PreTrainedConfig, **more: object) -> str:
    build(config).save_pretrained(folder)
    fresh(kind, **more).save_pretrained(folder)
    return str(folder)


@cache
def small() -> str:
    """One for all tests of this process that ask what is stored, and not what a model knows: a quarter of the work."""
    folder = TemporaryDirectory(prefix="checkpoint")
    atexit.register(folder.cleanup)
    return (hybrid if IS_HYBRID else checkpoint)(Path(folder.name), "unigram")


def loaded_once(name: str, *, device: str, dtype: str, digests: Path | None) -> LoadedModel:
    """In the place of `load`, where no test changes the model: who loads it again has the same one."""
    key = name, device, dtype
    if key not in _loaded:
        _loaded[key] = load(name, device=device, dtype=dtype, digests=digests)
    return _loaded[key]
