# transformers types its loaders loosely:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Vectors from an encoder that transformers loads, used as its folder says. Knows no index and no catalog, and no other
file of retriever knows tensors.

A text is never a control token: a document that spells `[SEP]` is tokenized as these five letters. A text longer than
the model's window is cut off there. Where a folder is silent, pooling is the mean, and there are no instructions.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np
import torch
from blake3 import blake3
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from retriever.embedders.embedding import EmbeddingError, Vector, Vectors, checked, unit
from retriever.embedders.encoder_layout import layout_of

_VERSION = 1  # changes when this file computes other vectors
_BATCH_TEXTS, _BATCH_TOKENS = 64, 8192  # tokens with padding: few long texts, or many short ones
_ENDLESS = 10**6  # a tokenizer without a limit states a huge number

_SMALL_FILES = ("*.json", "*.txt", "*.model")
_WEIGHTS = "*.safetensors"  # a pickle runs code as it loads
_IDENTITY = ("config.json", "*token*.json", "vocab*", "merges.txt", "*.model")

# What a forward pass that wants something else than token ids raises.
_MISFITS = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)


class Encoder:
    """An `Embedder` by hub name or folder. A vector is within 1e-5 the same whatever else is in its batch.

    Raises EmbeddingError for what it cannot compute as the model's authors meant it. No remote code.
    """

    def __init__(self, source: str | Path, *, device: str = "auto") -> None:
        place = _device(device)
        layout = layout_of(_folder(str(source)))
        self._pooling = layout.pooling
        self._instructions = layout.instructions
        self._lower = layout.settings.do_lower_case
        config = _config(layout.root)
        self._tokenizer = _tokenizer(layout.root)
        self._tokenizing = threading.Lock()  # truncation is part of a tokenizer's state
        self._model = _model(layout.root, config).to(place)  # pyright: ignore[reportArgumentType]
        self._max_tokens = _max_tokens(self._model, self._tokenizer, told=layout.settings.max_seq_length)
        self._check_instructions()
        self._dim = self._try(str(source))
        choices = [_VERSION, self._pooling, asdict(self._instructions), self._max_tokens, self._lower, "float32"]
        self._name = f"{self._model.config.model_type}-{self._dim}-{_identity(layout.root, choices)}"

    @property
    def name(self) -> str:
        """The model's type, the dimension, and a digest of weights, tokenizer and settings; not the folder's name."""
        return self._name

    @property
    def dim(self) -> int:
        return self._dim

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self._instructions.passage + text for text in checked(texts)])

    def query(self, text: str) -> Vector:
        return self._embed([self._instructions.query + checked([text])[0]])[0]

    def _embed(self, texts: list[str]) -> Vectors:
        ids = self._ids(texts, limit=self._max_tokens)
        if [] in ids:
            raise EmbeddingError(f"text {ids.index([]) + 1} of {len(texts)} has no tokens for this model: leave it out")
        rows = np.empty((len(ids), self._dim), np.float32)
        for places in _batches(ids):
            rows[places] = self._forward([ids[place] for place in places]).cpu().numpy()
        return unit(rows, self._name)

    def _ids(self, texts: list[str], *, limit: int | None) -> list[list[int]]:
        if not texts:
            return []
        texts = [text.lower() for text in texts] if self._lower else texts
        with self._tokenizing:
            answer = self._tokenizer(
                texts, truncation=limit is not None, max_length=limit, split_special_tokens=True, verbose=False
            )
        return cast(list[list[int]], answer["input_ids"])

    def _forward(self, ids: list[list[int]]) -> Tensor:
        """Computes vectors (N, dim) on the model's device, not yet of unit length."""
        lengths = torch.tensor([len(row) for row in ids])
        padding = _padding(self._model, self._tokenizer)
        width = int(lengths.max())
        tokens = torch.tensor([row + [padding] * (width - len(row)) for row in ids], device=self._model.device)
        mask = (torch.arange(width) < lengths[:, None]).to(self._model.device)  # (N, T)
        try:
            with torch.inference_mode():
                hidden = self._model(input_ids=tokens, attention_mask=mask.long()).last_hidden_state  # (N, T, D)
                return _pool(hidden.float(), mask, how=self._pooling)
        except torch.OutOfMemoryError as error:
            raise EmbeddingError(
                f"{len(ids)} texts of up to {width} tokens do not fit the device's memory: choose a smaller model",
                temporary=True,
            ) from error

    def _check_instructions(self) -> None:
        for instruction in (self._instructions.query, self._instructions.passage):
            for token in map(str, self._tokenizer.all_special_tokens):
                if token in instruction:
                    raise EmbeddingError(f"the instruction {instruction!r} spells {token!r}, a control token: drop it")
            used = len(self._ids([f"{instruction}a"], limit=None)[0])
            if used > self._max_tokens:
                raise EmbeddingError(f"{self._max_tokens} tokens are too few for the instruction {instruction!r}")

    def _try(self, source: str) -> int:
        """The dimension of a vector, by computing one."""
        try:
            vector = self._forward(self._ids(["a b c"], limit=self._max_tokens))[0]
        except _MISFITS as error:
            kind = type(self._model).__name__
            raise EmbeddingError(
                f"{source!r}, a {kind}, makes no vectors of token ids: {type(error).__name__}: {error}"
            ) from error
        unit(vector.cpu().numpy()[None], source)
        return len(vector)


def _folder(source: str) -> Path:
    """The folder of the model's files. Only the needed ones are fetched from the hub."""
    if Path(source).is_dir():
        return Path(source)
    try:
        return Path(snapshot_download(source, allow_patterns=[*_SMALL_FILES, _WEIGHTS]))
    except (OSError, ValueError) as error:
        raise EmbeddingError(f"{source!r} is neither a folder nor a hub name that loads: {error}") from error


def _tokenizer(root: Path) -> Tokenizer:
    try:
        tokenizer = cast(Tokenizer, AutoTokenizer.from_pretrained(root, trust_remote_code=False))
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
        raise EmbeddingError(f"the tokenizer of {root} does not load: {error}") from error
    if tokenizer.vocab_size <= len(tokenizer.added_tokens_decoder):
        raise EmbeddingError(f"{root} holds no tokenizer: save the model's tokenizer.json beside its weights")
    return tokenizer


def _config(root: Path) -> PreTrainedConfig:
    if (root / "adapter_config.json").exists():
        raise EmbeddingError(f"{root} holds an adapter: merge it into its model's weights and save that")
    try:  # without the switch, it would ask at the terminal whether to run the code that a folder brings along
        config = cast(PreTrainedConfig, AutoConfig.from_pretrained(root, trust_remote_code=False))
    except (OSError, ValueError) as error:
        raise EmbeddingError(f"{root} holds no model that loads: {error}") from error
    if config.is_encoder_decoder:
        raise EmbeddingError(f"{root} is a {config.model_type}, an encoder with a decoder: name an encoder alone")
    config.use_cache = False
    return config


def _model(root: Path, config: PreTrainedConfig) -> PreTrainedModel:
    try:
        model, loading = AutoModel.from_pretrained(
            root,
            config=config,
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise EmbeddingError(f"{root} holds no weights that load: {error}") from error
    missing = sorted(name for name in cast(set[str], loading["missing_keys"]) if "pooler" not in name)
    if missing:  # transformers fills them with random numbers, different at each start
        raise EmbeddingError(f"{root} lacks {len(missing)} of the model's weights, {missing[0]!r} among them")
    return cast(PreTrainedModel, model).eval()


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EmbeddingError(f"there is no such device as {name!r} here: {error}") from error
    return device


def _max_tokens(model: PreTrainedModel, tokenizer: Tokenizer, *, told: int | None) -> int:
    """The limit that the folder states, else the tokenizer's; never more than the positions."""
    positions = _positions(model)
    limit = positions if positions is not None else _ENDLESS
    own = told or tokenizer.model_max_length
    if min(own, limit) >= _ENDLESS:
        raise EmbeddingError("neither the model nor its tokenizer says how long a text may be: choose another model")
    return min(own, limit)


def _positions(model: PreTrainedModel) -> int | None:
    """The number of positions of the model. RoBERTa and its relatives count from after the padding id."""
    count = cast(int | None, getattr(model.config.get_text_config(), "max_position_embeddings", None))
    if count is None or count < 1:
        return None
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    taken = [
        table.padding_idx + 1 for table in tables if isinstance(table, nn.Embedding) and table.padding_idx is not None
    ]
    return count - max(taken, default=0)


def _padding(model: PreTrainedModel, tokenizer: Tokenizer) -> int:
    """The id to pad with. RoBERTa and its relatives find positions by it; without one, the mask alone counts."""
    known = (getattr(model.config.get_text_config(), "pad_token_id", None), tokenizer.pad_token_id)
    return next((one for one in known if isinstance(one, int) and one >= 0), 0)


def _batches(ids: list[list[int]]) -> Iterator[list[int]]:
    """Yields places of texts of like length, the longest first: what does not fit in memory shows at once."""
    batch: list[int] = []
    for place in sorted(range(len(ids)), key=lambda place: -len(ids[place])):
        if batch and (len(batch) == _BATCH_TEXTS or (len(batch) + 1) * len(ids[batch[0]]) > _BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _pool(hidden: Tensor, mask: Tensor, *, how: str) -> Tensor:
    """Pools (N, T, D) to (N, D). Padding stands on the right."""
    if how == "cls":
        return hidden[:, 0]
    if how == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(1) - 1]
    return hidden.where(mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True)


def _identity(root: Path, choices: Sequence[object]) -> str:
    """A digest of all that changes a vector. Files are taken as stored: another transformers names them the same."""
    files = {file for kind in (_WEIGHTS, *_IDENTITY) for file in root.glob(kind)}
    rows = [[file.name, blake3().update_mmap(file).hexdigest()] for file in sorted(files)]
    return blake3(json.dumps([choices, rows]).encode()).hexdigest(8)
