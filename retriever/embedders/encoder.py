# transformers and sentence-transformers type what they load loosely:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Vectors from an encoder that sentence-transformers loads: device, prompts, window, batches, identity. Refuses missing
weights and prompts with control tokens. No other file of retriever knows tensors.

A text is never a control token: a document that spells `[SEP]` is tokenized as these five letters. A text longer than
the model's window is cut off there.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from blake3 import blake3
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from transformers import AutoModel

from retriever.embedders.embedding import Vector, Vectors, checked, unit
from retriever.errors import EmbeddingError

_VERSION = 1  # changes when this file computes other vectors
_BATCH = 32  # texts
_ENDLESS = 1 << 20  # tokens, where nothing says how long a text may be

_WEIGHTS = "*.safetensors"  # a pickle runs code as it loads
_SMALL_FILES = ("*.json", "*.txt", "*.model")
_IDENTITY = (_WEIGHTS, "config.json", "*token*.json", "vocab*", "merges.txt", "*.model")
_OF_PASSAGES = ("document", "passage", "corpus")  # names of their prompt
_SPELLED = {"text": {"split_special_tokens": True}}  # how the tokenizer takes names of control tokens

# What a folder raises that is no encoder, or none that is whole.
_MISFITS = (
    *(AttributeError, ImportError, IndexError, KeyError, NotImplementedError, OSError, RuntimeError),
    *(SafetensorError, TypeError, ValueError),
)


class Encoder:
    """An `Embedder` by hub name or folder. A vector is within 1e-5 the same whatever else is in its batch.

    Raises EmbeddingError for what it cannot compute as the model's authors meant it. No remote code.
    """

    def __init__(self, source: str | Path, *, device: str = "auto") -> None:
        place, folder = _device(device), _folder(str(source))
        try:
            self._model = _model(folder, place)
            _check_prompts(self._model)
            self._dim = len(self.query("a b c"))
        except _MISFITS as error:
            if isinstance(error, EmbeddingError):
                raise
            raise EmbeddingError(
                f"{str(source)!r} holds no encoder that loads: {type(error).__name__}: {error}"
            ) from error
        self._name = _name(self._model, folder, dim=self._dim)

    @property
    def name(self) -> str:
        """The model's type, the dimension, and a digest of weights, tokenizer and settings; not the folder's name."""
        return self._name

    @property
    def dim(self) -> int:
        return self._dim

    def passages(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.empty((0, self._dim), np.float32)
        encode = partial(self._model.encode_document, prompt=_of_passages(self._model))
        return unit(self._encoded(encode, checked(texts)), "the encoder")

    def query(self, text: str) -> Vector:
        return unit(self._encoded(self._model.encode_query, checked([text])), "the encoder")[0]

    def tokens(self, texts: Sequence[str]) -> int:
        read = cast(Mapping[str, Tensor], self._model.preprocess(checked(texts)))
        mask = read.get("attention_mask")
        return read["input_ids"].numel() if mask is None else int(mask.sum())

    def _encoded(self, encode: Callable[..., object], texts: list[str]) -> Vectors:
        try:
            return cast(Vectors, encode(texts, batch_size=_BATCH, show_progress_bar=False))
        except torch.OutOfMemoryError as error:
            raise EmbeddingError(
                f"{len(texts)} texts do not fit the device's memory: choose a smaller model", temporary=True
            ) from error


def _folder(source: str) -> Path:
    """The folder of the model's files. Only the needed ones are fetched from the hub."""
    if Path(source).is_dir():
        return Path(source)
    try:
        return Path(snapshot_download(source, allow_patterns=[*_SMALL_FILES, _WEIGHTS], ignore_patterns=["on*/*"]))
    except (OSError, ValueError) as error:
        raise EmbeddingError(f"{source!r} is neither a folder nor a hub name that loads: {error}") from error


def _model(folder: Path, device: torch.device) -> SentenceTransformer:
    """The model, whose tokenizer works for one thread at a time, as truncation is a part of its state."""
    loading: dict[str, object] = {"dtype": torch.float32}
    _check_weights(next(iter(_parts(folder)), folder), loading)
    model = SentenceTransformer(
        str(folder), device=str(device), model_kwargs={**loading, "use_safetensors": True}, local_files_only=True
    )
    model.max_seq_length = min(model.max_seq_length or _ENDLESS, _positions(model))
    tokenizing, tokenize = threading.Lock(), model.preprocess

    def preprocess(texts: list[str], **how: object) -> dict[str, Tensor]:
        with tokenizing:
            return tokenize(texts, **how, processing_kwargs=_SPELLED)  # pyright: ignore[reportArgumentType]

    model.preprocess = preprocess  # pyright: ignore[reportAttributeAccessIssue]
    return model.eval()


def _positions(model: SentenceTransformer) -> int:
    """The number of positions of a model. RoBERTa and its relatives count from after the padding id."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    counts = (
        table.num_embeddings - (-1 if table.padding_idx is None else table.padding_idx) - 1
        for table in tables
        if isinstance(table, nn.Embedding)
    )
    return min(counts, default=_ENDLESS)


def _check_prompts(model: SentenceTransformer) -> None:
    """Raises EmbeddingError for a prompt with a control token, which would be tokenized as its letters."""
    for prompt in model.prompts.values():
        for token in map(str, model.tokenizer.all_special_tokens):
            if prompt and token in prompt:
                raise EmbeddingError(f"the instruction {prompt!r} spells {token!r}, a control token: drop it")


def _check_weights(folder: Path, loading: dict[str, object]) -> None:
    """Raises EmbeddingError where weights are missing: they would be random numbers, different at each start."""
    _, found = AutoModel.from_pretrained(
        folder, output_loading_info=True, trust_remote_code=False, use_safetensors=True, **loading
    )
    missing = sorted(name for name in cast(set[str], found["missing_keys"]) if "pooler" not in name)
    if missing:
        raise EmbeddingError(f"{folder} lacks {len(missing)} of the model's weights, {missing[0]!r} among them")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EmbeddingError(f"there is no such device as {name!r} here: {error}") from error
    return device


def _name(model: SentenceTransformer, folder: Path, *, dim: int) -> str:
    """The model's type, the dimension, and a digest of all that changes a vector.

    Files are taken as stored: another transformers names them the same. What is digested is what was digested before
    sentence-transformers loaded it, so that vectors of then still serve.
    """
    first, prompts = model[0], model.prompts
    pooling = "+".join(str(each.pooling_mode) for each in model if isinstance(each, Pooling))
    instructions = {"query": prompts.get("query") or "", "passage": _of_passages(model) or ""}
    lower = getattr(first, "do_lower_case", False)
    choices = [_VERSION, pooling.removesuffix("token"), instructions, model.max_seq_length, lower, "float32"]
    root, *others = _parts(folder) or [folder]
    files = {file for kind in _IDENTITY for file in root.glob(kind)}
    files |= {file for part in others for file in part.glob(_WEIGHTS)}
    rows = [[file.name, blake3().update_mmap(file).hexdigest()] for file in sorted(files)]
    kind = getattr(getattr(first, "config", None), "model_type", "encoder")
    return f"{kind}-{dim}-{blake3(json.dumps([choices, rows]).encode()).hexdigest(8)}"


def _of_passages(model: SentenceTransformer) -> str | None:
    """The prompt of passages, by whichever of its names the folder has it."""
    return next((text for name in _OF_PASSAGES if (text := model.prompts.get(name))), None)


def _parts(folder: Path) -> list[Path]:
    """The folders of a model's modules."""
    modules = folder / "modules.json"
    named = json.loads(modules.read_bytes()) if modules.is_file() else []
    return [folder / each["path"] for each in named]
