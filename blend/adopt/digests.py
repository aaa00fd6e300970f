"""Digests a model's weights, as stored (remembered by file size and time) or in memory, and its configuration."""

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
from blake3 import blake3
from torch import Tensor, nn
from transformers import PreTrainedConfig

from blend.errors import UnsupportedModel
from store.fingerprint import DIGEST_BYTES, digest_of

# Parts of a configuration that have a field of their own, or do not change a number.
ELSEWHERE = {
    "_name_or_path",
    "architectures",
    "dtype",
    "quantization_config",
    "rope_parameters",
    "transformers_version",
}

Json = dict[str, object]

_DIGEST = f"[0-9a-f]{{{2 * DIGEST_BYTES}}}"
_PIECE_BYTES = 64 * 2**20
_SETTLED_NS = 2 * 10**9  # a file younger than this may still change within one tick of its clock


def weights_digest(model: nn.Module) -> str:
    """A digest of all parameters and buffers in memory. Tied ones count as equal ones, and are read once."""
    read: dict[tuple[object, ...], str] = {}
    rows: list[list[object]] = []
    state = cast(dict[str, object], model.state_dict())
    for name, tensor in (row for key in sorted(state) for row in _plain(key, state[key])):
        where = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if where not in read:
            read[where] = _tensor_digest(tensor)
        rows.append([name, str(tensor.dtype), list(tensor.shape), read[where]])
    return digest_of(rows)


def stored_digest(path: Path, *, cache: Path | None = None) -> str:
    """A digest of a checkpoint's folder: the weights as stored, and how they are quantized.

    The cache holds the digests of files by path, size and time. It may be lost or damaged at any time.
    """
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("*.bin"))
    if not files:
        raise UnsupportedModel(f"{path} holds no *.safetensors and no *.bin: name the folder of a checkpoint")
    config = path / "config.json"
    settings = cast(dict[str, object], json.loads(config.read_text("utf-8"))) if config.exists() else {}
    known = _read_cache(cache) if cache else {}
    before = dict(known)
    rows = [[file.name, _file_digest(file, known)] for file in files]
    if cache and known != before:
        _write_cache(cache, known)
    return digest_of([rows, settings.get("quantization_config")])


def rope_digest(config: PreTrainedConfig) -> str:
    """A digest of the rotary parameters: one set, or one for each type of layer."""
    text = cast(object, config.get_text_config())  # pyright: ignore[reportUnknownMemberType]
    return digest_of(getattr(text, "rope_parameters", None))


def architecture_digest(config: PreTrainedConfig) -> str:
    """A digest of all else the text model computes with: windows, norms, caps; not of where and how it was loaded."""
    differing = cast(Json, config.to_diff_dict())  # pyright: ignore[reportUnknownMemberType]
    return digest_of({name: value for name, value in differing.items() if name not in ELSEWHERE})


def _plain(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors that hold the bytes: the value itself, or the parts of a packed tensor."""
    flatten = cast(Callable[[], tuple[list[str], object]] | None, getattr(value, "__tensor_flatten__", None))
    if flatten is not None:
        for inner in flatten()[0]:
            yield from _plain(f"{name}.{inner}", getattr(value, inner))
    elif isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_quantized):
        yield name, value
    else:
        raise UnsupportedModel(
            f"the weight {name!r} has no plain bytes to identify the model by: load all of it into memory"
        )


def _tensor_digest(tensor: Tensor) -> str:
    hasher = blake3()
    for piece in _pieces(tensor.detach()):
        hasher.update(piece.cpu().contiguous().view(torch.uint8).numpy().data)
    return hasher.hexdigest(DIGEST_BYTES)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Flat pieces that are small enough to copy, in the order of the elements."""
    if tensor.numel() * tensor.element_size() <= _PIECE_BYTES or tensor.ndim == 0:
        yield tensor.reshape(-1)
    elif tensor.is_contiguous():
        yield from torch.split(tensor.view(-1), _PIECE_BYTES // tensor.element_size())
    else:
        for row in tensor.unbind(0):
            yield from _pieces(row)


def _file_digest(file: Path, known: dict[str, list[str]]) -> str:
    """The digest of a file: taken from `known` where the file has not changed since, else computed and put there."""
    place, before = str(file.resolve()), file.stat()
    seen = [str(before.st_size), str(before.st_mtime_ns)]
    remembered = known.get(place)
    if remembered is not None and remembered[:2] == seen:
        return remembered[2]
    found = blake3().update_mmap(file).hexdigest(DIGEST_BYTES)
    after = file.stat()
    unchanged = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    if unchanged and time.time_ns() - after.st_mtime_ns > _SETTLED_NS:
        known[place] = [*seen, found]
    return found


def _read_cache(cache: Path) -> dict[str, list[str]]:
    """The valid rows of the cache: size, time, digest."""
    try:
        given: object = json.loads(cache.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(given, dict):
        return {}
    return {place: cast(list[str], row) for place, row in cast(dict[str, object], given).items() if _is_row(row)}


def _is_row(row: object) -> bool:
    parts = cast(list[object], row) if isinstance(row, list) else []
    return [*map(type, parts)] == [str] * 3 and re.fullmatch(_DIGEST, str(parts[2])) is not None


def _write_cache(cache: Path, known: dict[str, list[str]]) -> None:
    """Writes the cache atomically. A folder that cannot be written only costs time at the next start."""
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        fresh = Path(folder, cache.name)
        fresh.write_text(json.dumps(known))
        fresh.replace(cache)
