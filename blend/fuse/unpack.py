"""Keys and values out of a store's record, on the device of the model. Knows tensors and records, no blob and no codec.

Packed codes become numbers as `PackedTensor` says, in float32 and rounded once: the same bits on every device.
Letters: `N` tiles, `H` kv heads, `T` tokens, `D` head dim, `P` packed bytes of a channel's `T` codes.
"""

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
_LARGEST = {DTYPES[name]: largest(name) for name in DTYPES}
_TOGETHER = 1 << 20  # numbers at a time on a CPU: 4 MiB in float32 stay in its cache, fewer cost more calls than work


def unpack(layer: LayerKV | PackedLayer, *, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Keys (H, T, D) and values (H, T, D) in `dtype`, which must be the record's.

    On a CPU the tensors of a plain layer are its arrays, not copies: they are for reading. Copies to another device
    are not waited for where the layer lies in pinned memory: leave it as it is until the device is done.
    """
    if isinstance(layer, LayerKV):
        keys, values = _plain(layer.keys, dtype), _plain(layer.values, dtype)
        return keys.to(device, non_blocking=True), values.to(device, non_blocking=True)
    first, tokens = layer.tiles[0], sum(tile.keys.tokens for tile in layer.tiles)
    keys, values = (
        torch.empty(each.codes.shape[0], tokens, each.codes.shape[1], dtype=dtype, device=device)
        for each in (first.keys, first.values)
    )
    unpack_into(layer, keys=keys, values=values)
    return keys, values


def unpack_joined(
    layers: Sequence[LayerKV | PackedLayer], *, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The same as `unpack` of each, one behind the other along T. The layers have the same heads and dims.

    Short ones are decoded as one: each would take as many calls as all together.
    """
    if len(layers) == 1:
        return unpack(layers[0], dtype=dtype, device=device)
    packed = [layer for layer in layers if isinstance(layer, PackedLayer)]
    tiles = [tile for layer in packed for tile in layer.tiles]
    sides = [tile.keys for tile in tiles], [tile.values for tile in tiles]
    is_alike = all(len({(each.bits, each.centers is None) for each in side}) == 1 for side in sides)
    if is_alike and len(packed) == len(layers):
        keys, values = (_decode_joined(side, dtype=dtype, device=device) for side in sides)
        return keys, values
    parts = [unpack(layer, dtype=dtype, device=device) for layer in layers]
    return torch.cat([keys for keys, _ in parts], dim=1), torch.cat([values for _, values in parts], dim=1)


def unpack_into(layer: LayerKV | PackedLayer, *, keys: Tensor, values: Tensor) -> None:
    """The same as `unpack`, written to tensors (H, T, D) of the caller: any strides, any device, the record's dtype."""
    if isinstance(layer, LayerKV):
        _fill(keys, _plain(layer.keys, keys.dtype))
        _fill(values, _plain(layer.values, values.dtype))
    else:
        _decode(keys, [tile.keys for tile in layer.tiles])
        _decode(values, [tile.values for tile in layer.tiles])


def _plain(array: Array, dtype: torch.dtype) -> Tensor:
    tensor = torch.from_dlpack(array)
    plain = tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
    assert plain.dtype == dtype, f"a record of {plain.dtype} for a model of {dtype}"
    return plain


def _fill(out: Tensor, plain: Tensor) -> None:
    assert out.shape == plain.shape, f"{tuple(plain.shape)} for {tuple(out.shape)}"
    out.copy_(plain, non_blocking=True)


def _decode(out: Tensor, tensors: Sequence[PackedTensor]) -> None:
    start = 0
    for tiles in _alike(tensors, device=out.device):
        stop = start + len(tiles) * tiles[0].tokens
        rows = out[:, start:stop].view(out.shape[0], len(tiles), -1, out.shape[2])
        _decode_tiles(rows.transpose(0, 1), tiles)
        start = stop
    assert start == out.shape[1], f"{start} tokens for {out.shape[1]}"


def _alike(tensors: Sequence[PackedTensor], *, device: torch.device) -> Iterator[list[PackedTensor]]:
    """Groups neighbours of one form, to be decoded together: a call costs as much as some ten thousand numbers."""
    for _, group in groupby(tensors, key=lambda each: (each.codes.shape, each.tokens, each.bits, each.centers is None)):
        tiles = list(group)
        numbers = tiles[0].codes.size * codes_per_byte(tiles[0].bits)
        step = max(1, _TOGETHER // numbers) if device.type == "cpu" else len(tiles)
        for first in range(0, len(tiles), step):
            yield tiles[first : first + step]


def _decode_tiles(out: Tensor, tiles: list[PackedTensor]) -> None:
    """Write tiles of one form to (N, H, T, D)."""
    scales = np.stack([tile.scales for tile in tiles])
    middles = [tile.centers for tile in tiles if tile.centers is not None]
    wide = _spread([tile.codes for tile in tiles], bits=tiles[0].bits, device=out.device)[:, :, : tiles[0].tokens]
    _scale(wide, scales, centers=np.stack(middles) if middles else None, bits=tiles[0].bits, dtype=out.dtype)
    assert out.shape == wide.shape, f"{tuple(wide.shape)} for {tuple(out.shape)}"
    out.copy_(wide)


def _decode_joined(tiles: list[PackedTensor], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Tiles of any lengths, of the same bits, as (H, T, D). What pads their last bytes is left out at the end."""
    bits = tiles[0].bits
    lengths = [tile.codes.shape[2] * codes_per_byte(bits) for tile in tiles]
    starts = [0, *accumulate(lengths)]
    wide = _spread([np.concatenate([tile.codes for tile in tiles], axis=2)], bits=bits, device=device)[0]
    middles = [tile.centers for tile in tiles if tile.centers is not None]
    scales = _along([tile.scales for tile in tiles], starts)
    _scale(wide, scales, centers=_along(middles, starts) if middles else None, bits=bits, dtype=dtype)
    told = first_rows(lengths, [tile.tokens for tile in tiles])
    if told is not None:
        wide = wide.index_select(1, torch.tensor(told, device=device))
    return wide.to(dtype)


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
    limit = _LARGEST[dtype]
    if reach(scales, centers, bits=bits) > limit:
        wide.clamp_(-limit, limit)


def _spread(codes: Sequence[Codes], *, bits: int, device: torch.device) -> Tensor:
    """The codes (N, H, T, D) in float32, with those that pad. Bytes are turned while packed: later there is more."""
    heads, dim, packed = codes[0].shape
    shape, numbers = (len(codes), heads, packed, dim), len(codes) * codes[0].size
    words = torch.empty(-(-numbers // 8), dtype=torch.int64, device=device)  # to shift and mask eight bytes at once
    turned = words.view(torch.uint8)[:numbers].view(shape)
    for index, each in enumerate(codes):
        turned[index] = _send(each, device).transpose(1, 2)
    count = codes_per_byte(bits)
    wide = torch.empty(len(codes), heads, packed, count, dim, device=device)
    if count == 1:
        wide[:, :, :, 0] = turned
    else:
        shifted = torch.empty_like(words)
        every = shifted.view(torch.uint8)[:numbers].view(shape)
        width = 8 // count
        for place in range(count):
            torch.bitwise_right_shift(words, place * width, out=shifted)
            shifted &= (2**width - 1) * 0x0101010101010101
            wide[:, :, :, place] = every
    return wide.view(len(codes), heads, packed * count, dim)


def _send(array: Array | Codes, device: torch.device) -> Tensor:
    """An array's memory as a tensor. By DLPack, for most arrays are views of bytes that `from_numpy` warns of."""
    return torch.from_dlpack(array).to(device, non_blocking=True)
