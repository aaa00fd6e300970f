"""Keys and values out of a store's record, on the device of the model. Knows tensors and records, no blob and no codec.

Packed codes become numbers as `PackedTensor` says, in float32 and rounded once: the same bits on every device.
Letters: `N` tiles, `H` kv heads, `T` tokens, `D` head dim, `P` packed bytes of a channel's `T` codes.
"""

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

import numpy as np
import torch
from torch import Tensor

from store.record import Array, Codes, Dtype, LayerKV, PackedLayer, PackedTensor, Scales, codes_per_byte, largest, reach

DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
LARGEST = {DTYPES[name]: largest(name) for name in DTYPES}
_TOGETHER = 1 << 18  # numbers at a time on a CPU: 1 MiB in float32 stays in its cache, fewer cost more calls than work
_ALONE = 1 << 15  # numbers of a tile, or of tiles of one form, that are worth calls of their own


class _Scratch(threading.local):
    """Memory of one thread for what stands between codes and numbers: the kernel's fresh pages cost more than the work.

    On other devices it is fresh each time, for there the allocator keeps it.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def room(self, name: str, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of whatever was in it, good until the thread asks for the name again."""
        numbers = math.prod(shape)
        if device.type != "cpu":
            return torch.empty(*shape, dtype=dtype, device=device)
        kept = self._kept.get((name, dtype))
        if kept is None or kept.numel() < numbers:
            kept = self._kept[name, dtype] = torch.empty(max(numbers, _TOGETHER), dtype=dtype)
        return kept[:numbers].view(*shape)


_scratch = _Scratch()


def unpack(layer: LayerKV | PackedLayer, *, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Keys (H, T, D) and values (H, T, D) in `dtype`, which must be the record's.

    On a CPU the tensors of a plain layer are its arrays, not copies: they are for reading.
    """
    if isinstance(layer, LayerKV):
        keys, values = _plain(layer.keys, dtype), _plain(layer.values, dtype)
        return _sent(keys, device), _sent(values, device)
    keys, values = (torch.empty(shape, dtype=dtype, device=device) for shape in layer.shapes)
    unpack_into(layer, keys=keys, values=values)
    return keys, values


def unpack_joined(
    layers: Sequence[LayerKV | PackedLayer], *, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The same as `unpack` of each, one behind the other along T. The layers have the same heads and dims.

    On a CPU the tensors are memory of the thread, good until it unpacks again.
    """
    packed = [layer for layer in layers if isinstance(layer, PackedLayer)]
    if len(packed) == len(layers):
        tiles = [tile for layer in packed for tile in layer.tiles]
        keys = _decoded("keys", [tile.keys for tile in tiles], dtype=dtype, device=device)
        return keys, _decoded("values", [tile.values for tile in tiles], dtype=dtype, device=device)
    parts = [unpack(layer, dtype=dtype, device=device) for layer in layers]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([keys for keys, _ in parts], dim=1), torch.cat([values for _, values in parts], dim=1)


def unpack_into(layer: LayerKV | PackedLayer, *, keys: Tensor, values: Tensor) -> None:
    """The same as `unpack`, written to tensors (H, T, D) of the caller: any strides, any device, the record's dtype."""
    if isinstance(layer, LayerKV):
        _fill(keys, _plain(layer.keys, keys.dtype))
        _fill(values, _plain(layer.values, values.dtype))
    else:
        tiles = layer.tiles
        _decode(keys, [tile.keys for tile in tiles])
        _decode(values, [tile.values for tile in tiles])


def _plain(array: Array, dtype: torch.dtype) -> Tensor:
    tensor = torch.from_dlpack(array)
    plain = tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
    assert plain.dtype == dtype, f"a record of {plain.dtype} for a model of {dtype}"
    return plain


def _fill(out: Tensor, plain: Tensor) -> None:
    assert out.shape == plain.shape, f"{tuple(plain.shape)} for {tuple(out.shape)}"
    out.copy_(_sent(plain, out.device), non_blocking=True)


def _decoded(name: str, tensors: Sequence[PackedTensor], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    heads, dim, _ = tensors[0].codes.shape
    tokens = sum(each.tokens for each in tensors)
    out = _scratch.room(name, (heads, tokens, dim), dtype=dtype, device=device)
    _decode(out, tensors)
    return out


def _decode(out: Tensor, tensors: Sequence[PackedTensor]) -> None:
    start = 0
    for tiles in _runs(tensors, device=out.device):
        stop = start + sum(tile.tokens for tile in tiles)
        rows = out[:, start:stop]
        if len({tile.tokens for tile in tiles}) == 1:
            _decode_tiles(rows.view(out.shape[0], len(tiles), -1, out.shape[2]).transpose(0, 1), tiles)
        else:
            _decode_joined(rows, tiles)
        start = stop
    assert start == out.shape[1], f"{start} tokens for {out.shape[1]}"


def _runs(tensors: Sequence[PackedTensor], *, device: torch.device) -> Iterator[list[PackedTensor]]:
    """Neighbours that are decoded together: of one length, or, where these are few numbers, of any."""
    limit = _TOGETHER if device.type == "cpu" else sys.maxsize
    for _, group in groupby(tensors, key=lambda each: (each.bits, each.centers is None)):
        short = list[PackedTensor]()
        for _, same in groupby(group, key=lambda each: each.tokens):
            tiles = list(same)
            if _numbers(tiles) < _ALONE and _numbers(short) + _numbers(tiles) <= limit:
                short += tiles
                continue
            if short:
                yield short
            short = []
            step = max(1, limit // _numbers(tiles[:1]))
            for first in range(0, len(tiles), step):
                yield tiles[first : first + step]
        if short:
            yield short


def _numbers(tiles: Sequence[PackedTensor]) -> int:
    return sum(tile.codes.size * codes_per_byte(tile.bits) for tile in tiles)


def _decode_tiles(out: Tensor, tiles: list[PackedTensor]) -> None:
    """Write tiles of one form to (N, H, T, D)."""
    scales = np.stack([tile.scales for tile in tiles])
    middles = [tile.centers for tile in tiles if tile.centers is not None]
    wide = _spread([tile.codes for tile in tiles], bits=tiles[0].bits, device=out.device)[:, :, : tiles[0].tokens]
    _scale(wide, scales, centers=np.stack(middles) if middles else None, bits=tiles[0].bits, dtype=out.dtype)
    assert out.shape == wide.shape, f"{tuple(wide.shape)} for {tuple(out.shape)}"
    out.copy_(wide)


def _decode_joined(out: Tensor, tiles: list[PackedTensor]) -> None:
    """Write tiles of any lengths, of the same bits, to (H, T, D). What pads their last bytes is left out at the end."""
    bits = tiles[0].bits
    lengths = [tile.codes.shape[2] * codes_per_byte(bits) for tile in tiles]
    starts = [0, *accumulate(lengths)]
    wide = _spread([tile.codes for tile in tiles], bits=bits, device=out.device)
    wide = wide.transpose(0, 1).flatten(1, 2)
    middles = [tile.centers for tile in tiles if tile.centers is not None]
    scales = _along([tile.scales for tile in tiles], starts)
    _scale(wide, scales, centers=_along(middles, starts) if middles else None, bits=bits, dtype=out.dtype)
    told = first_rows(lengths, [tile.tokens for tile in tiles])
    out.copy_(wide if told is None else wide.index_select(1, torch.tensor(told, device=out.device)))


def first_rows(lengths: Sequence[int], kept: Sequence[int]) -> list[int] | None:
    """Where in runs of these lengths, one behind the other, the first so many rows of each stand; None for all rows."""
    if list(lengths) == list(kept):
        return None
    starts = accumulate(lengths, initial=0)
    return [start + row for start, count in zip(starts, kept, strict=False) for row in range(count)]


def _along(scales: list[Scales], starts: Sequence[int]) -> Scales:
    """The scales of tiles one behind the other (H, T, D or 1), each for all tokens of its tile that it is meant for."""
    heads, _, dim = scales[0].shape
    joined = np.zeros((heads, starts[-1], dim), scales[0].dtype)
    for start, stop, each in zip(starts, starts[1:], scales, strict=False):
        joined[:, start : stop if each.shape[1] == 1 else start + each.shape[1]] = each
    return joined


def _scale(wide: Tensor, scales: Scales, *, centers: Scales | None, bits: int, dtype: torch.dtype) -> None:
    """Make numbers of codes, in place."""
    wide -= (2**bits - 1) / 2
    wide *= _send(scales, wide.device)
    if centers is not None:
        wide += _send(centers, wide.device)
    limit = LARGEST[dtype]
    if reach(scales, centers, bits=bits) > limit:
        wide.clamp_(-limit, limit)


def _spread(codes: Sequence[Codes], *, bits: int, device: torch.device) -> Tensor:
    """The codes in float32 and those that pad: (N, H, T, D), or (1, H, T, D) in a row where lengths differ.

    Bytes are turned while packed: later there is more.
    """
    heads, dim, packed = codes[0].shape
    lengths = [each.shape[2] for each in codes]
    is_even = len({*lengths}) == 1
    shape = (len(codes), heads, packed, dim) if is_even else (1, heads, sum(lengths), dim)
    numbers = math.prod(shape)
    eighths = (-(-numbers // 8),)  # to shift and mask eight bytes at once
    words = _scratch.room("words", eighths, dtype=torch.int64, device=device)
    turned = words.view(torch.uint8)[:numbers].view(shape)
    starts = accumulate(lengths, initial=0)
    for number, (start, each) in enumerate(zip(starts, codes, strict=False)):
        room = turned[number] if is_even else turned[0, :, start : start + each.shape[2]]
        if device.type == "cpu":
            room.numpy()[...] = each.transpose(0, 2, 1)  # numpy turns bytes twice as fast as torch
        else:
            room.copy_(_send(each, device).transpose(1, 2))
    count = codes_per_byte(bits)
    wide = _scratch.room("wide", (*shape[:3], count, dim), dtype=torch.float32, device=device)
    if count == 1:
        wide[:, :, :, 0] = turned
    else:
        shifted = _scratch.room("shifted", eighths, dtype=torch.int64, device=device)
        every = shifted.view(torch.uint8)[:numbers].view(shape)
        width = 8 // count
        for place in range(count):
            torch.bitwise_right_shift(words, place * width, out=shifted)
            shifted &= (2**width - 1) * 0x0101010101010101
            wide[:, :, :, place] = every
    return wide.view(shape[0], heads, -1, dim)


def _send(array: Array | Codes, device: torch.device) -> Tensor:
    """An array's memory as a tensor. By DLPack, for most arrays are views of bytes that `from_numpy` warns of."""
    return _sent(torch.from_dlpack(array), device)


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device. A GPU gets it out of pinned memory, whose copies nobody waits for: torch's own memory,
    which it takes back when they are done.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
