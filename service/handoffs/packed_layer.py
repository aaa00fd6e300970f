"""A part of a layer as the codes that its rows came from, and as numbers where they are others. Knows no HTTP.

A row travels as codes if these give the very same bits: whatever was computed anew, or rounded otherwise, does not. So
nothing has to be known of the policy. The body, whose numbers have the lowest byte first:

length (u32) and head (JSON) | blocks | flags (T,) of the rows that are in blocks | the other rows' keys, and values

A block is tiles of equal length, one behind the other: codes of keys (N, H, P, D), several tokens to a byte, lowest
bits first; their steps (N, H, 1, D), in bfloat16 as all steps, and middles, in float32; codes and steps (N, H, T, 1) of
values. Its numbers are `(code - (2**bits - 1) / 2) * step + middle`, then rounded, then turned, each step in float32.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from blend.fuse.record_loader import PlacedCodes
from blend.fuse.unpack import unpack
from blend.model.decoder import Decoder
from blend.model.rotation import Rotation
from store.record import PackedLayer, PackedTensor, PackedTile, Scales

VERSION = 1
MEDIA = f"application/vnd.kvweave.packed-layer.v{VERSION}"


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Keys and values (T, h, D) of some heads as they stand in the prompt, from the token `start` on.

    `key_heads` and `value_heads` are those that they are of.
    """

    start: int
    keys: Tensor
    values: Tensor
    key_heads: slice
    value_heads: slice

    @property
    def stop(self) -> int:
        """The first token behind them."""
        return self.start + len(self.keys)

    @property
    def row_bytes(self) -> int:
        """What one token takes as numbers."""
        return sum(each[0].numel() * each.itemsize for each in (self.keys, self.values))


@dataclass(frozen=True, slots=True)
class Block:
    """Tiles of one form, the first of which begins at the token `start`, as they travel."""

    start: int
    tiles: int
    tokens: int
    key_bits: int
    value_bits: int
    body: bytes


@torch.inference_mode()
def packed_layer(placed: Sequence[PlacedCodes], decoder: Decoder, *, layer: int, rows: PlainRows) -> bytes | None:
    """The rows as they travel; None where codes would spare nothing."""
    flags = np.zeros(len(rows.keys), np.bool_)
    blocks: list[Block] = []
    for codes in placed:
        tiles = [each for each in codes.stored.tiles if _is_wanted(codes, each, rows=rows)]
        if not tiles or any(each.keys.centers is None or each.values.centers is not None for each in tiles):
            continue
        tiles = [_of_heads(each, rows) for each in tiles]
        same = _equal(codes, tiles, decoder=decoder, rows=rows)
        for block in _blocks(codes, tiles):
            stop = block.start + block.tiles * block.tokens - rows.start
            mine = slice(max(0, block.start - rows.start), max(0, stop))
            if int(same[mine].sum()) * rows.row_bytes > len(block.body):
                blocks.append(block)
                flags[mine] |= same[mine]
    return _joined(blocks, flags, rows=rows, head=_turns(decoder, layer)) if blocks else None


def angles_body(decoder: Decoder, layer: int, *, start: int, stop: int) -> bytes:
    """Cosines and sines (T, n) in float32 of the tokens `start` to `stop`, by which the rows of a layer turn."""
    turned = decoder.angles_at(decoder.rule(layer), slice(start, stop), stop=stop)
    return b"".join(each.cpu().numpy().tobytes() for each in (turned.cos, turned.sin))


def _is_wanted(codes: PlacedCodes, tile: PackedTile, *, rows: PlainRows) -> bool:
    start = codes.start + tile.start
    return start < min(codes.stop, rows.stop) and start + tile.keys.tokens > rows.start


def _of_heads(tile: PackedTile, rows: PlainRows) -> PackedTile:
    return PackedTile(tile.start, _cut(tile.keys, rows.key_heads), _cut(tile.values, rows.value_heads))


def _cut(tensor: PackedTensor, heads: slice) -> PackedTensor:
    centers = None if tensor.centers is None else tensor.centers[heads]
    return PackedTensor(tensor.codes[heads], tensor.scales[heads], tensor.bits, tensor.tokens, centers)


def _equal(
    codes: PlacedCodes, tiles: Sequence[PackedTile], *, decoder: Decoder, rows: PlainRows
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """A flag for each of the rows that the tiles give to the bit."""
    start = codes.start + tiles[0].start
    first, stop = max(start, rows.start), min(codes.stop, rows.stop)
    free = unpack(PackedLayer.of(tuple(tiles)), dtype=decoder.dtype, device=decoder.device)
    keys, values = (each[:, first - start : stop - start] for each in free)
    given = decoder.turned(codes.layer, start=first, keys=keys, values=values)
    wanted = slice(first - rows.start, stop - rows.start)
    found = np.zeros(len(rows.keys), np.bool_)
    same = [
        (_words(one.transpose(0, 1)) == _words(other[wanted].to(one.device))).flatten(1).all(1)
        for one, other in zip(given, (rows.keys, rows.values), strict=True)
    ]
    found[wanted] = (same[0] & same[1]).cpu().numpy()
    return found


def _words(numbers: Tensor) -> Tensor:
    """The bits of some numbers, several together where a head's are eight bytes each time."""
    return numbers.view(torch.int64 if numbers.shape[-1] * numbers.itemsize % 8 == 0 else torch.uint8)


def _blocks(codes: PlacedCodes, tiles: Sequence[PackedTile]) -> Iterator[Block]:
    for form, group in groupby(tiles, key=lambda each: (each.keys.tokens, each.keys.bits, each.values.bits)):
        same = list(group)
        body = b"".join((*_pieces([each.keys for each in same]), *_pieces([each.values for each in same])))
        yield Block(codes.start + same[0].start, len(same), *form, body)


def _pieces(tensors: Sequence[PackedTensor]) -> Iterator[bytes]:
    yield from (np.ascontiguousarray(each.codes.transpose(0, 2, 1)).tobytes() for each in tensors)
    yield from (_upper_halves(each.scales) for each in tensors)
    yield from (each.centers.astype("<f4").tobytes() for each in tensors if each.centers is not None)


def _upper_halves(steps: Scales) -> bytes:
    return (np.ascontiguousarray(steps).view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()


def _turns(decoder: Decoder, layer: int) -> dict[str, object]:
    rule = decoder.rule(layer)
    return {"keys": _turn(rule.keys), "values": _turn(rule.values), "table": rule.table if rule.turns else -1}


def _turn(rotation: Rotation | None) -> object:
    if rotation is None:
        return None
    return [rotation.pairing, rotation.start, rotation.pairs, rotation.sign]


def _joined(
    blocks: Sequence[Block],
    flags: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
    *,
    rows: PlainRows,
    head: dict[str, object],
) -> bytes:
    """The whole body. `sum` is of all rows' `_words`, modulo 2**64: who unpacks otherwise finds another."""
    both = (rows.keys, rows.values)
    forms = [[each.start, each.tiles, each.tokens, each.key_bits, each.value_bits] for each in blocks]
    total = sum(int(_words(each).sum(dtype=torch.int64)) for each in both)
    text = json.dumps({**head, "blocks": forms, "sum": total}).encode()
    others = torch.from_numpy(~flags)  # pyright: ignore[reportUnknownMemberType]
    plain = [each[others].view(torch.uint8).numpy().tobytes() for each in both]
    return b"".join([len(text).to_bytes(4, "little"), text, *(each.body for each in blocks), flags.tobytes(), *plain])
