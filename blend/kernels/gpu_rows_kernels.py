# Triton has no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false
# ruff: noqa: ANN001, ANN202, PLR0917
"""Triton kernels that write and attend rows of several contexts: tile sizes, splits of long keys, sliding windows.

Where rows stand, and whose they are, is read from the device's memory when a kernel runs: a recorded call serves any
prompt. Letters: `B` rows, `N` contexts, `H` kv heads, `Hq` query heads, `D` head dim.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

SEEN, SEEN_WIDE = 64, 32  # keys that a program reads at once, and the same number for wide heads
TILE = 64  # query rows of a program, one for each head of a group
PROGRAMS = 264  # as many programs keep a GPU busy
WIDE = 128  # head dim from which on two tiles of keys and values leave too little shared memory
MOST_SPLITS = 16  # the most parts that the keys of a row are cut into; the kernel is compiled for all of them
LARGE = 128  # rows of a tile from which on it gets more warps
_LOG2E = math.log2(math.e)

_NEVER = tl.constexpr(-1e30)  # less than any score, and finite, so that differences are finite


@triton.jit
def _write_rows(
    keys, values, slots, owners, contexts, apart,
    key_head, key_row, value_head, value_row,
    key_heads: tl.constexpr, key_dim: tl.constexpr, value_heads: tl.constexpr, value_dim: tl.constexpr,
    heads: tl.constexpr, dims: tl.constexpr,
):  # fmt: skip
    """Write the row of each program, of keys (H, B, D) and values, to its slot; padding rows have a slot below zero.

    `contexts`, with stride `apart`: for each one the addresses of keys and values, and the strides of their heads.
    """
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        at = contexts + tl.load(owners + row) * apart
        head, dim = tl.arange(0, heads)[:, None], tl.arange(0, dims)[None, :]
        there = tl.load(at).to(tl.pointer_type(keys.dtype.element_ty))
        mask = (head < key_heads) & (dim < key_dim)
        fresh = tl.load(keys + head * key_head + row * key_row + dim, mask=mask)
        tl.store(there + head * tl.load(at + 2) + slot * key_dim + dim, fresh, mask=mask)
        there = tl.load(at + 1).to(tl.pointer_type(values.dtype.element_ty))
        mask = (head < value_heads) & (dim < value_dim)
        fresh = tl.load(values + head * value_head + row * value_row + dim, mask=mask)
        tl.store(there + head * tl.load(at + 3) + slot * value_dim + dim, fresh, mask=mask)


@triton.jit
def _attended(
    query, keys, values, slot, from_tile, to_tile, scale, window,
    key_dim: tl.constexpr, value_dim: tl.constexpr, key_dims: tl.constexpr, value_dims: tl.constexpr,
    tile: tl.constexpr, seen: tl.constexpr,
):  # fmt: skip
    """Attend rows over some tiles of their head's keys: the largest score, the sum of weights, and weighted values."""
    dim, out_dim, key = tl.arange(0, key_dims), tl.arange(0, value_dims), tl.arange(0, seen)
    last = tl.max(slot, 0)
    most = tl.full((tile,), _NEVER, tl.float32)
    total = tl.zeros((tile,), tl.float32)
    found = tl.zeros((tile, value_dims), tl.float32)
    for number in range(from_tile, to_tile):
        now = number * seen + key
        mask = (now <= last)[None, :] & (dim < key_dim)[:, None]
        some = tl.load(keys + now.to(tl.int64)[None, :] * key_dim + dim[:, None], mask=mask, other=0.0)
        scores = tl.dot(query, some, input_precision="ieee") * scale
        before = slot[:, None] - now[None, :]
        scores = tl.where((before >= 0) & (before < window), scores, _NEVER)
        larger = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        shrunk = tl.exp2(most - larger)
        total = total * shrunk + tl.sum(weights, 1)
        mask = (now <= last)[:, None] & (out_dim < value_dim)[None, :]
        what = tl.load(values + now.to(tl.int64)[:, None] * value_dim + out_dim[None, :], mask=mask, other=0.0)
        found = tl.dot(weights.to(what.dtype), what, found * shrunk[:, None], input_precision="ieee")
        most = larger
    return most, total, found


@triton.jit(do_not_specialize=["rows", "splits", "window"])
def _attend_rows(
    query, out, parts, sums, slots, owners, blocks, contexts, apart,
    scale, query_head, query_row, rows, splits, window,
    group: tl.constexpr, group_room: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr,
    key_dims: tl.constexpr, value_dims: tl.constexpr, tile: tl.constexpr, seen: tl.constexpr,
):  # fmt: skip
    """Attend the rows of one block, the heads of one group together, over one of the `splits` of their keys: those
    within a `window` up to their own.

    `blocks` (_, 2): the first row of each, and how many, all of one context. `scale` is the scores' and log2(e).
    `out` (B, Hq, D); with several splits they go to `parts` (splits, B, Hq, D) and `sums` (splits, B, Hq, 2).
    """
    block, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, count = tl.load(blocks + block * 2), tl.load(blocks + block * 2 + 1)
    if count > 0:
        place = tl.arange(0, tile)
        row, member = place // group_room, place % group_room
        is_real = (row < count) & (member < group)
        slot = tl.load(slots + first + row, mask=row < count, other=-1).to(tl.int32)
        dim, out_dim = tl.arange(0, key_dims), tl.arange(0, value_dims)
        rows_at = query + (head * group + member)[:, None] * query_head + (first + row)[:, None] * query_row
        queries = tl.load(rows_at + dim[None, :], mask=is_real[:, None] & (dim < key_dim)[None, :], other=0.0)
        at = contexts + tl.load(owners + first) * apart
        keys = tl.load(at).to(tl.pointer_type(query.dtype.element_ty)) + head * tl.load(at + 2)
        values = tl.load(at + 1).to(tl.pointer_type(query.dtype.element_ty)) + head * tl.load(at + 3)
        if key_dim % 16 == 0:  # allocations are aligned: keys can be loaded 16 bytes at once, and prefetched
            keys = tl.multiple_of(keys, 16)  # the compiler takes this hint only here, where they are made
        if value_dim % 16 == 0:
            values = tl.multiple_of(values, 16)
        tiles = tl.max(slot, 0) // seen + 1
        nearest = tl.min(tl.where(row < count, slot, tl.max(slot, 0)), 0) - window + 1
        begin = tl.maximum(nearest, 0) // seen
        share = tl.cdiv(tiles - begin, splits)
        from_tile = begin + split * share
        to_tile = tl.minimum(from_tile + share, tiles)
        most, total, found = _attended(
            queries, keys, values, slot, from_tile, to_tile, scale, window,
            key_dim, value_dim, key_dims, value_dims, tile, seen,
        )  # fmt: skip
        heads = tl.num_programs(1) * group
        at = (first + row) * heads + head * group + member
        mask = is_real[:, None] & (out_dim < value_dim)[None, :]
        if splits == 1:
            result = (found / total[:, None]).to(out.dtype.element_ty)
            tl.store(out + at[:, None] * value_dim + out_dim[None, :], result, mask=mask)
        else:
            at += split * rows * heads
            tl.store(parts + at[:, None] * value_dim + out_dim[None, :], found, mask=mask)
            tl.store(sums + at * 2, most, mask=is_real)
            tl.store(sums + at * 2 + 1, total, mask=is_real)


@triton.jit(do_not_specialize=["rows", "splits"])
def _join_splits(
    out, parts, sums, slots, rows, splits,
    value_dim: tl.constexpr, value_dims: tl.constexpr, most_splits: tl.constexpr,
):  # fmt: skip
    """Combine the splits' results into one row of one head, (B, Hq, D)."""
    row, head = tl.program_id(0), tl.program_id(1)
    if tl.load(slots + row) >= 0:
        heads = tl.num_programs(1)
        split, dim = tl.arange(0, most_splits), tl.arange(0, value_dims)
        place = split * rows * heads + row * heads + head
        there, mask = split < splits, dim < value_dim
        most = tl.load(sums + place * 2, mask=there, other=_NEVER)
        total = tl.load(sums + place * 2 + 1, mask=there, other=0.0)
        weight = tl.exp2(most - tl.max(most, 0))
        shape = there[:, None] & mask[None, :]
        found = tl.load(parts + place[:, None] * value_dim + dim[None, :], mask=shape, other=0.0)
        result = tl.sum(found * weight[:, None], 0) / tl.sum(total * weight, 0)
        tl.store(out + (row * heads + head) * value_dim + dim, result.to(out.dtype.element_ty), mask=mask)


class DeviceRefuses(RuntimeError):
    """A kernel does not run on this device, such as one with little shared memory."""


class GpuTables(NamedTuple):
    """Where rows stand and whose they are, in a device's memory; all int64."""

    slots: Tensor  # (B,), below zero for padding rows
    owners: Tensor  # (B,) the context of each row
    blocks: Tensor  # (_, 2): the first row of each block, and how many, all of one context; none for the rest
    contexts: Tensor  # addresses of each one's keys and values, and the strides of their heads
    apart: int  # the stride from one context to the next


def write_rows(keys: Tensor, values: Tensor, *, tables: GpuTables) -> None:
    """Put fresh keys (H, B, D) and values at their slots. Raises DeviceRefuses."""
    heads, dims = (max(one, other) for one, other in zip(keys.shape[::2], values.shape[::2], strict=True))
    try:
        _write_rows[(keys.shape[1],)](
            keys, values, tables.slots, tables.owners, tables.contexts, tables.apart,
            keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
            keys.shape[0], keys.shape[2], values.shape[0], values.shape[2], power(heads), power(dims),
        )  # fmt: skip
    except TritonError as error:
        raise DeviceRefuses(str(error)) from error


class Attention(NamedTuple):
    """How rows are attended: the most rows of a `block`, and how many `splits` their keys are cut into.

    `window`: how many slots they see, up to their own.
    """

    kv_heads: int
    value_dim: int
    scale: float
    block: int
    splits: int
    window: int


def attend_rows(query: Tensor, form: Attention, *, tables: GpuTables) -> Tensor:
    """Query (Hq, B, D) to (B, Hq, D): each row sees its context up to its own slot. Raises DeviceRefuses."""
    (heads, rows, dim), (kv_heads, value_dim, scale, block, splits, window) = query.shape, form
    room = power(heads // kv_heads)
    tile = max(16, block * room)
    out = query.new_zeros((rows, heads, value_dim))
    split = (splits, rows, heads) if splits > 1 else (0, 0, 0)
    parts = torch.empty((*split, value_dim), dtype=torch.float32, device=query.device)
    sums = torch.empty((*split, 2), dtype=torch.float32, device=query.device)
    dims, value_dims = power(dim, 16), power(value_dim, 16)
    try:
        _attend_rows[(len(tables.blocks), kv_heads, splits)](
            query, out, parts, sums, tables.slots, tables.owners, tables.blocks, tables.contexts, tables.apart,
            scale * _LOG2E, query.stride(0), query.stride(1), rows, splits, window,
            heads // kv_heads, room, dim, value_dim, dims, value_dims,
            tile, SEEN if max(dims, value_dims) <= WIDE else SEEN_WIDE,
            num_warps=8 if tile >= LARGE else 4, num_stages=2,
        )  # fmt: skip
        if splits > 1:
            _join_splits[(rows, heads)](
                out, parts, sums, tables.slots, rows, splits, value_dim, value_dims, MOST_SPLITS
            )
    except TritonError as error:
        raise DeviceRefuses(str(error)) from error
    return out


def block_for(rows: int, group: int) -> int:
    """The most rows of a block, with `group` query heads to each key head."""
    return max(1, (TILE if rows < 8 * TILE else LARGE) // power(group))


def splits_for(programs: int) -> int:
    """How many parts the keys are cut into, so that a GPU has enough programs to run."""
    return min(MOST_SPLITS, 1 << max(0, (PROGRAMS // programs).bit_length() - 1))


def power(number: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (number - 1).bit_length())
