"""The configuration in a sentence-transformers folder: prompts, lengths, pooling. Loads no model."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from retriever.embedders.embedding import EmbeddingError, Instructions

# The module names of sentence-transformers.
_MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_POOLING = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_PASSAGE_PROMPTS = ("document", "passage", "corpus")

_Json = dict[str, object]
T = TypeVar("T")


class _Module(msgspec.Struct):
    type: str
    path: str


class EncoderSettings(msgspec.Struct):
    """Settings of the transformer. What follows the first two is refused where a folder sets it."""

    max_seq_length: int | None = None
    do_lower_case: bool = False
    query_length: int | None = None
    document_length: int | None = None
    query_expansion: _Json | None = None
    processing_kwargs: _Json | None = None


class _PoolingSettings(msgspec.Struct):
    """A folder's pooling. Older folders give it by the flags."""

    pooling_mode: str | list[str] = []
    include_prompt: bool = True
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


class _Prompts(msgspec.Struct):
    prompts: dict[str, str | None] = {}


@dataclass(frozen=True, slots=True)
class EncoderLayout:
    """A folder's configuration. `pooling`: cls, mean or last."""

    root: Path  # of the transformer
    instructions: Instructions
    settings: EncoderSettings
    pooling: str = "mean"


def layout_of(folder: Path) -> EncoderLayout:
    """The layout of a folder that sentence-transformers saved, or that holds a transformer alone."""
    prompts = _read(folder / "config_sentence_transformers.json", _Prompts()).prompts
    passage = next((text for name in _PASSAGE_PROMPTS if (text := prompts.get(name))), "")
    instructions = Instructions(prompts.get("query") or "", passage)
    modules = _read(folder / "modules.json", list[_Module]())
    if not modules:
        return EncoderLayout(folder, instructions, EncoderSettings())
    kinds = [module.type.rpartition(".")[2] for module in modules]
    if kinds not in _MODULES:
        raise EmbeddingError(
            f"{folder} is made of {', '.join(kinds)}, but only {' and '.join(_MODULES[1])} are supported: "
            "choose another model, or serve this one behind an endpoint"
        )
    paths = [folder / module.path for module in modules]
    settings = _read(paths[0] / "sentence_bert_config.json", EncoderSettings())
    for name in settings.__struct_fields__[2:]:
        if value := getattr(settings, name):
            raise EmbeddingError(f"{folder} sets {name} to {value!r}, which is not supported: choose another model")
    return EncoderLayout(paths[0], instructions, settings, _pooling(paths[1] / "config.json"))


def _read(file: Path, absent: T) -> T:
    """Reads a JSON file, as the type of `absent`, which is returned where there is no file."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=cast(type[T], _kind(absent)))
    except FileNotFoundError:
        return absent
    except (OSError, msgspec.DecodeError) as error:
        raise EmbeddingError(f"{file} says something else than sentence-transformers does: {error}") from error


def _pooling(file: Path) -> str:
    settings = _read(file, _PoolingSettings())
    if not settings.include_prompt:
        raise EmbeddingError(f"{file} keeps instructions out of the pooling, which is not supported")
    told = settings.pooling_mode
    flags = [name for name in settings.__struct_fields__[2:] if getattr(settings, name)]
    old = [re.sub("^pooling_mode_|_tokens?$", "", flag) for flag in flags] or ["mean"]
    spelled = told if isinstance(told, str) else "+".join(told or old)
    if spelled not in _POOLING:
        raise EmbeddingError(
            f"{file} pools by {spelled!r}, which is none of {', '.join(_POOLING)}: choose another model"
        )
    return _POOLING[spelled]


def _kind(value: object) -> object:
    """The type for msgspec to decode; the only lists are of modules."""
    return list[_Module] if isinstance(value, list) else type(value)
