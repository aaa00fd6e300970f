"""Makes keys and values of a layer that came as codes where it could: the numbers that kvweave has, to the bit.

The body, whose numbers have the lowest byte first:

length (u32) and head (JSON) | blocks | flags (T,) of the rows that are in blocks | the other rows' keys, and values

A block is N tiles of T tokens, one behind the other: codes of keys (N, H, P, D), several tokens to a byte, lowest bits
first; their steps (N, H, 1, D) in bfloat16 and middles in float32; codes and steps (N, H, T, 1) of values. Its numbers
are `(code - (2**bits - 1) / 2) * step + middle`, then rounded, then turned, each step in float32.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

VERSION = 1

Angles = Callable[[int], Tensor]  # cosines and sines (2, T, n) of the wanted tokens, by the number of their table


@dataclass(frozen=True, slots=True)
class RowsForm:
    """The tokens `start` to `stop` of a layer, and the heads of it, that a body is of."""

    start: int
    stop: int
    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class _Turn:
    """Which numbers of a head turn: `pairs` of them from `start` on, half against half or neighbours."""

    pairing: str
    start: int
    pairs: int
    sign: int


class _Reader:
    """A body, read from its front."""

    def __init__(self, body: Tensor) -> None:
        self._body = body
        self._at = 0

    def take(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """The next numbers. Raises ValueError where there are fewer."""
        count = dtype.itemsize
        for each in shape:
            count *= each
        taken = self._body[self._at : self._at + count]
        if min(shape) < 0 or len(taken) != count:
            raise ValueError("it is shorter than it says")
        self._at += count
        return taken.clone().view(dtype).view(*shape)

    @property
    def is_through(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._body)


def unpacked(body: Tensor, form: RowsForm, *, dtype: torch.dtype, angles: Angles) -> tuple[Tensor, Tensor]:
    """Keys and values (T, H, D) in `dtype`, on the device of the body.

    Raises ValueError where they are not what kvweave has.
    """
    reader = _Reader(body)
    size = int(reader.take(1, dtype=torch.int32))
    said = cast("dict[str, object]", json.loads(bytes(reader.take(size).cpu().numpy())))
    tokens, device = form.stop - form.start, body.device
    keys = torch.zeros(tokens, form.heads, form.key_dim, dtype=dtype, device=device)
    values = torch.zeros(tokens, form.heads, form.value_dim, dtype=dtype, device=device)
    for start, tiles, length, key_bits, value_bits in cast("list[list[int]]", said["blocks"]):
        wide = _codes(reader, (tiles, form.heads, length, form.key_dim), bits=key_bits)
        wide *= reader.take(tiles, form.heads, 1, form.key_dim, dtype=torch.bfloat16)
        wide += reader.take(tiles, form.heads, 1, form.key_dim, dtype=torch.float32)
        _place(keys, wide, at=start - form.start)
        wide = _codes(reader, (tiles, form.heads, length, form.value_dim), bits=value_bits)
        wide *= reader.take(tiles, form.heads, length, 1, dtype=torch.bfloat16)
        _place(values, wide, at=start - form.start)
    for rows, turn in ((keys, said["keys"]), (values, said["values"])):
        if turn is not None:
            _turn(rows, _Turn(*cast("tuple[str, int, int, int]", turn)), angles=angles(cast(int, said["table"])))
    others = ~reader.take(tokens).bool()
    count = int(others.sum())
    for rows in (keys, values):
        rows[others] = reader.take(count, *rows.shape[1:], dtype=dtype)
    total = sum(int(_words(each).sum(dtype=torch.int64)) for each in (keys, values))
    if not reader.is_through or total != said["sum"]:
        raise ValueError("it gives other numbers here than in kvweave")
    return keys, values


def _codes(reader: _Reader, shape: tuple[int, int, int, int], *, bits: int) -> Tensor:
    """The next codes (N, H, T, D) as numbers around zero."""
    tiles, heads, tokens, dim = shape
    count = 4 if bits <= 2 else 2 if bits <= 4 else 1
    width = 8 // count
    packed = reader.take(tiles, heads, -(-tokens // count), dim)
    spread = torch.stack([(packed >> (width * place)) & (2**width - 1) for place in range(count)], dim=3)
    wide = spread.flatten(2, 3)[:, :, :tokens].float()
    wide -= (2**bits - 1) / 2
    return wide


def _place(rows: Tensor, wide: Tensor, *, at: int) -> None:
    """Writes a block's numbers (N, H, T, D) at its place; what reaches beyond the rows is left out."""
    limit = torch.finfo(rows.dtype).max
    block = wide.clamp_(-limit, limit).to(rows.dtype).transpose(1, 2).flatten(0, 1)
    first, stop = max(0, at), min(len(rows), at + len(block))
    rows[first:stop] = block[first - at : stop - at]


def _turn(rows: Tensor, turn: _Turn, *, angles: Tensor) -> None:
    """Turns rows (T, H, D) in place. Each product is rounded to float32 before they are added."""
    cos, sin = angles[0][:, None], turn.sign * angles[1][:, None]
    turning = rows.narrow(-1, turn.start, 2 * turn.pairs)
    is_halves = turn.pairing == "halves"
    first = turning[..., : turn.pairs] if is_halves else turning[..., 0::2]
    second = turning[..., turn.pairs :] if is_halves else turning[..., 1::2]
    a, b = first.float(), second.float()
    turned = (a * cos).sub_(b * sin), (b * cos).add_(a * sin)
    first.copy_(turned[0])
    second.copy_(turned[1])


def _words(numbers: Tensor) -> Tensor:
    """The bits of some numbers, several together where a head's are eight bytes each time."""
    return numbers.view(torch.int64 if numbers.shape[-1] * numbers.itemsize % 8 == 0 else torch.uint8)
