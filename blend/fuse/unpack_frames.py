"""Layers in codes to numbers, on the device and by a few calls for all of them: there a call costs more than its work.

Their bytes go there as they lie in frames, in one copy. Tables tell where in them each token's codes and steps lie. The
numbers are those of `unpack`, bit for bit.
Letters: `H` kv heads, `T` tokens of all layers, `S` spans whose keys share steps, `D` head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.fuse.unpack import LARGEST, send_joined
from store.record import FramedPart, FrameLayout, PackedLayer, largest

_PERIOD = 3  # of what a code does to those behind it in a trellis
_MOST = largest("float32")
_SHORT, _SIGNLESS = 0xFFFF, 0x7FFFFFFF

Rows = NDArray[np.int64]
Heads = tuple[int, int]  # how many, and the dim of each


class _Codes(NamedTuple):
    """Where codes lie, for each token: the byte of the first head and channel, and how far others are from it."""

    first: Tensor  # all (T,) int32
    by_head: Tensor
    by_channel: Tensor
    shift: Tensor
    bits: int
    mask: int
    path: tuple[Tensor, Tensor] | None  # of a trellis: the token's place in its span, and the span's first token


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where everything lies in the bytes of some parts, one behind the other; each byte of steps and middles."""

    keys: _Codes
    values: _Codes
    key_steps: Tensor  # (S, H, D, 2) int32
    middles: Tensor  # (S, H, D, 4)
    value_steps: Tensor  # (T, H, 1, 2)
    span: Tensor  # (T,) each token's


class FrameUnpacker:
    """Serves one device and dtype, and one prompt, whose layers lie alike. Threads share it, on one stream."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._plans: dict[object, _Plan] = {}
        self._sizes: Tensor | None = None

    def unpack(self, layers: Sequence[PackedLayer]) -> tuple[Tensor, Tensor]:
        """Keys and values (H, T, D) of layers that lie in frames, one behind the other, of the same heads and dims."""
        (heads, _, dim), (value_heads, _, value_dim) = layers[0].shapes
        shapes = (heads, dim), (value_heads, value_dim)
        parts = [part for layer in layers for part in layer.framed]
        found = [self._parts([*run], shapes) for _, run in groupby(parts, key=lambda part: _coding(part.layout))]
        if len(found) == 1:
            return found[0]
        return torch.cat([keys for keys, _ in found], dim=1), torch.cat([values for _, values in found], dim=1)

    def _parts(self, parts: Sequence[FramedPart], shapes: tuple[Heads, Heads]) -> tuple[Tensor, Tensor]:
        """The same of parts of one coding."""
        form = shapes, tuple(part.layout for part in parts)
        plan = self._plans.get(form)
        if plan is None:
            plan = self._plans[form] = _plan(parts, shapes, device=self._device)
        if self._sizes is None:
            self._sizes = send_joined([parts[0].sizes], self._device).view(torch.float32)
        data = send_joined([part.data for part in parts], self._device)
        keys = _keys(data, plan, sizes=self._sizes, shape=shapes[0])
        values = _levels(data, plan.values, shape=shapes[1])
        values *= _steps(data, plan.value_steps, sizes=self._sizes).permute(1, 0, 2)
        return self._narrow(keys), self._narrow(values)

    def _narrow(self, wide: Tensor) -> Tensor:
        limit = LARGEST[self._dtype]
        return wide.clamp_(-limit, limit).to(self._dtype)


def _coding(layout: FrameLayout) -> tuple[int, ...]:
    """What codes mean."""
    return (
        layout.key_bits, layout.key_width, layout.key_trellis,
        layout.value_bits, layout.value_width, layout.value_trellis,
    )  # fmt: skip


def _keys(data: Tensor, plan: _Plan, *, sizes: Tensor, shape: Heads) -> Tensor:
    steps = _steps(data, plan.key_steps, sizes=sizes)
    told = _bytes(data, plan.middles).view(torch.int32)[..., 0]
    signed = (told >> 1 & _SIGNLESS) ^ -(told & 1)
    middles = (signed * steps.double() * 2.0 ** (plan.keys.bits - 4)).clamp_(-_MOST, _MOST).float()
    keys = _levels(data, plan.keys, shape=shape)
    keys *= steps.index_select(0, plan.span).permute(1, 0, 2)
    keys += middles.index_select(0, plan.span).permute(1, 0, 2)
    return keys


def _steps(data: Tensor, places: Tensor, *, sizes: Tensor) -> Tensor:
    """Steps (S, H, D)."""
    found = _bytes(data, places).view(torch.int16)[..., 0].int() & _SHORT
    return sizes.index_select(0, found.clamp_(max=len(sizes) - 1).flatten()).view(found.shape)


def _bytes(data: Tensor, places: Tensor) -> Tensor:
    """The bytes at these places."""
    return data.index_select(0, places.flatten()).view(places.shape)


def _levels(data: Tensor, codes: _Codes, *, shape: Heads) -> Tensor:
    """What is multiplied with steps, (H, T, D) in float32."""
    heads, dim = (torch.arange(each, device=data.device, dtype=torch.int32) for each in shape)
    at = heads[:, None] * codes.by_head + codes.first
    at = at[:, :, None] + codes.by_channel[:, None] * dim
    found = _bytes(data, at)
    del at  # the largest of all tensors here
    found >>= codes.shift[:, None]
    found &= codes.mask
    if codes.path is not None:
        found = _followed(found, place=codes.path[0], first=codes.path[1])
    return found.float().sub_((2**codes.bits - 1) / 2)


def _followed(codes: Tensor, *, place: Tensor, first: Tensor) -> Tensor:
    """Levels of a trellis' codes (H, T, D), as `trellis_levels` has them, but without a walk.

    The last bit of a state is that of the one before, plus that of the one before this, plus the code's own. So a code
    turns the bits behind it in a period of three: the next two, and not the third.
    """
    low, residue = (codes & 1).int(), place % _PERIOD
    last = torch.zeros_like(codes)
    for number in range(_PERIOD):
        counted = low * (residue != number).int()[:, None]
        before = counted.cumsum(1, dtype=torch.int32) - counted
        turned = before - before.index_select(1, first)
        last |= ((turned & 1) * (residue == number).int()[:, None]).to(torch.uint8)
    return ((codes ^ last * 7) & 7) * 2 + last


def _plan(parts: Sequence[FramedPart], shapes: tuple[Heads, Heads], *, device: torch.device) -> _Plan:
    """Tables for parts that lie one behind the other; they go to the device in one copy."""
    found = list[dict[str, tuple[Rows, ...]]]()
    base = first = span = 0
    for part in parts:
        found.append(_rows(part.layout, shapes, base=base, first=first, span=span))
        base, first, span = base + part.data.nbytes, first + part.layout.tokens, span + len(found[-1]["middles"][0])
    columns = {
        name: [np.concatenate(column).astype(np.int32) for column in zip(*(rows[name] for rows in found), strict=True)]
        for name in found[0]
    }
    flat = [column for some in columns.values() for column in some]
    sent = iter(send_joined(flat, device).view(torch.int32).split_with_sizes([len(column) for column in flat]))
    tables = {name: [next(sent) for _ in some] for name, some in columns.items()}
    layout, (place, start, spans) = parts[0].layout, tables["tokens"]

    def codes(name: str, *, bits: int, width: int, trellis: int) -> _Codes:
        first, by_head, by_channel, shift = tables[name]
        path = (place, start) if trellis else None
        return _Codes(first, by_head, by_channel, shift.to(torch.uint8), bits, 2**width - 1, path)

    return _Plan(
        keys=codes("keys", bits=layout.key_bits, width=layout.key_width, trellis=layout.key_trellis),
        values=codes("values", bits=layout.value_bits, width=layout.value_width, trellis=layout.value_trellis),
        key_steps=_places(tables["key steps"], shape=shapes[0], count=2),
        middles=_places(tables["middles"], shape=shapes[0], count=4),
        value_steps=_places(tables["value steps"], shape=(shapes[1][0], 1), count=2),
        span=spans,
    )


def _places(table: Sequence[Tensor], *, shape: Heads, count: int) -> Tensor:
    """The places of so many bytes of each number, the lowest first: (S, H, D, count).

    The table has those of the first number's first one, and how far the next head's and the next byte are.
    """
    first, by_head, by_byte = (column[:, None, None, None] for column in table)
    heads, dim, byte = (torch.arange(each, device=first.device, dtype=torch.int32) for each in (*shape, count))
    return first + heads[:, None, None] * by_head + dim[:, None] + byte * by_byte


def _rows(
    layout: FrameLayout, shapes: tuple[Heads, Heads], *, base: int, first: int, span: int
) -> dict[str, tuple[Rows, ...]]:
    """What the tables have of a part whose bytes, tokens and spans begin there among all, column by column."""
    (heads, dim), (value_heads, _) = shapes
    token = np.arange(layout.tokens)
    number, place = token // layout.step, token % layout.step
    spans = np.arange(-(-layout.tokens // layout.step))
    apart = np.full_like(spans, dim), np.full_like(spans, layout.middles // 2)
    return {
        "tokens": (place, first + token - place, span + number),
        "keys": _code_rows(layout, layout.key_width, at=base + layout.key_codes, shape=shapes[0]),
        "values": _code_rows(layout, layout.value_width, at=base + layout.value_codes, shape=shapes[1]),
        "key steps": (base + spans * heads * dim, *apart),
        "middles": (base + layout.middles + spans * heads * dim, *apart),
        "value steps": (
            base + layout.value_steps + token,
            np.full_like(token, layout.tokens),
            np.full_like(token, layout.tokens * value_heads),
        ),
    }


def _code_rows(layout: FrameLayout, width: int, *, at: int, shape: Heads) -> tuple[Rows, ...]:
    token, (heads, dim) = np.arange(layout.tokens), shape
    number, place = token // layout.step, token % layout.step
    packed = -(-np.minimum(layout.step, layout.tokens - number * layout.step) * width // 8)  # bytes of a channel
    before = number * heads * dim * -(-layout.step * width // 8)
    first = at + before + place * width // 8 * (dim if layout.is_turned else 1)
    return first, dim * packed, np.ones_like(packed) if layout.is_turned else packed, place * width % 8
