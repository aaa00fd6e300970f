"""Attention of scattered rows: which kernel (table, SDPA, the model's, FlexAttention), padded heads, probed weights.

Registered under one name in both of transformers' registries. There are four ways: rows by a table (`RowTable`),
torch's fused attention, the model's own plain one, and FlexAttention.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import (
    CausalBias,
    causal_lower_right,  # pyright: ignore[reportUnknownVariableType]
)
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from blend.errors import UnsupportedModel
from blend.run.context import Segment
from blend.run.flex_attention import BlockMask, attend_with_flex
from blend.run.rows_cache import ACTIVE
from blend.run.visibility import NAME, Visibility, see

DENSE = f"{NAME}_dense"  # the same, by the model's own plain attention: it knows soft caps and sinks
FLEX = f"{NAME}_flex"  # the same, by FlexAttention

ROWS = 64  # of one block: a CPU's kernel takes 32 at a time, and more see keys for the last row alone
# What a GPU takes. cuDNN's kernels are quicker by half a millisecond a layer, but plan 40 to 1,200 ms for each shape
# that is new (H100), which nearly every prompt's is.
UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

DENSE_NUMBERS = 8 << 20  # scores of one block of plain attention
PROBED_NUMBERS = (4 << 20, 32 << 20)  # the same of rows that are probed, on a CPU and on a GPU


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What the model's attention module handed over besides tensors."""

    module: nn.Module
    scaling: float | None
    more: dict[str, object]

    def scale(self, query: Tensor) -> float:
        """What scores of a query (1, Hq, T, D) are multiplied with."""
        return query.shape[3] ** -0.5 if self.scaling is None else self.scaling


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Query (1, Hq, T, D), keys and values (1, H, S, D), mask (T, S) or blocks; with neither each row sees all keys."""

    query: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None = None
    blocks: BlockMask | None = None


Kernel = Callable[[AttentionCall, AttentionBlock], Tensor]  # to (1, T, Hq, D)
AttentionFunction = Callable[..., tuple[Tensor, None]]


def attention_by(kernel: Kernel) -> AttentionFunction:
    """An attention function as transformers calls it: query (1, Hq, T, D) to (1, T, Hq, D)."""

    def attend(  # noqa: PLR0917  # as transformers calls it
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Visibility | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: object,
    ) -> tuple[Tensor, None]:
        call = AttentionCall(module, scaling, kwargs)
        return _attend(kernel, call, query=query, seen=(key, value), visibility=attention_mask), None

    return attend


def _attend(
    kernel: Kernel, call: AttentionCall, *, query: Tensor, seen: tuple[Tensor, Tensor], visibility: Visibility | None
) -> Tensor:
    rows_cache = ACTIVE.get()
    if rows_cache is None or not isinstance(visibility, Visibility):
        raise UnsupportedModel(f"the attention {NAME!r} runs inside a pass and with the masks that it made")
    for segment, keys, values in rows_cache.sources(*seen) if rows_cache.probed_rows else ():
        probed = AttentionBlock(query[:, :, -rows_cache.probed_rows :], keys, values)
        rows_cache.probe(_weights(kernel, call, probed=probed, segment=segment, visibility=visibility))
    if kernel is _fused:
        window = partial(visibility.window, device=query.device)
        by_table = rows_cache.attend(query, seen, scale=call.scale(query), window=window)
        if by_table is not None:
            return by_table
    parts = list[Tensor]()
    for segment, keys, values in rows_cache.sources(*seen):
        rows = AttentionBlock(query[:, :, segment.start : segment.stop], keys, values)
        parts += [kernel(call, each) for each in _blocks(kernel, rows, segment=segment, visibility=visibility)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _blocks(
    kernel: Kernel, rows: AttentionBlock, *, segment: Segment, visibility: Visibility
) -> Iterator[AttentionBlock]:
    """Yields a segment's rows in blocks, each with what it sees."""
    if kernel is _fused and visibility.is_causal and _is_one_call(segment, rows.query):
        yield replace(rows, mask=causal_lower_right(len(segment.slots), segment.visible))
        return
    size = _rows_of_a_block(kernel, rows.query, segment=segment)
    for start in range(0, len(segment.slots), size):
        stop = min(start + size, len(segment.slots))
        seen = segment.slots.part(start, stop).last + 1
        block = AttentionBlock(rows.query[:, :, start:stop], rows.keys[:, :, :seen], rows.values[:, :, :seen])
        if kernel is _flexible and stop - start > 1:
            block = replace(block, blocks=visibility.block_mask(segment, start, stop=stop))
        elif stop - start > 1 or not visibility.is_causal:
            block = replace(block, mask=visibility.mask(segment, start, stop=stop, dtype=rows.query.dtype))
        yield block


def _rows_of_a_block(kernel: Kernel, query: Tensor, *, segment: Segment) -> int:
    if kernel is _plain:
        return max(1, DENSE_NUMBERS // (query.shape[1] * segment.visible))
    return len(segment.slots) if query.is_cuda else ROWS


def _without_plans(query: Tensor) -> AbstractContextManager[object]:
    return sdpa_kernel(UNPLANNED) if query.is_cuda else nullcontext()  # pyright: ignore[reportUnknownVariableType]


def _fused(call: AttentionCall, block: AttentionBlock) -> Tensor:
    _, heads, rows, dim = block.query.shape
    if rows > 1:
        return _grouped(call, block)
    # A group's heads become rows, so that each key is read once.
    packed = block.query.reshape(1, block.keys.shape[1], -1, dim)
    group = packed.shape[2]
    if group % 2 and packed.dtype == torch.bfloat16 and not packed.is_cuda:  # a row too many costs less than an odd one
        packed = torch.cat((packed, packed[:, :, :1]), dim=2)
    with _without_plans(packed):
        out = nn.functional.scaled_dot_product_attention(
            packed, block.keys, block.values, attn_mask=block.mask, scale=call.scaling
        )
    return out[:, :, :group].reshape(1, 1, heads, -1)


def _is_one_call(segment: Segment, query: Tensor) -> bool:
    """Whether its rows adjoin so that a kernel knows what they see: from the first slot on, or anywhere on a GPU."""
    slots = segment.slots
    return len(slots) > 1 and slots.adjoining and (slots.first == 0 or _sees_behind_others(query))


def _sees_behind_others(query: Tensor) -> bool:
    """Whether a kernel of the device knows what rows see that end with the last key, not begin with the first."""
    return query.is_cuda and _knows_lower_right(query.shape[3], query.dtype, device=query.device)


@cache
def _knows_lower_right(dim: int, dtype: torch.dtype, *, device: torch.device) -> bool:
    """Whether rows behind others come out as they do by a mask: tried once for each form."""
    rows, seen = 3, 40
    keys, values = torch.randn(2, 1, 2, seen, dim, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    wanted = keys + 2 * keys.roll(-1, 2)  # a row looks at its own key, and even more at the next, which it must not see
    query = wanted[:, :, -rows:].repeat_interleave(2, 1)
    hidden = torch.arange(seen, device=device) > torch.arange(seen - rows, seen, device=device)[:, None]
    mask = torch.zeros(rows, seen, dtype=dtype, device=device).masked_fill_(hidden, torch.finfo(dtype).min)
    call = AttentionCall(nn.Identity(), None, {})
    try:
        ours = _grouped(call, AttentionBlock(query, keys, values, causal_lower_right(rows, seen)))
    except RuntimeError:
        return False
    return torch.allclose(ours, _grouped(call, AttentionBlock(query, keys, values, mask)), atol=0.05)


def _grouped(call: AttentionCall, block: AttentionBlock) -> Tensor:
    query, keys, values, mask = block.query, block.keys, block.values, block.mask
    _, heads, rows, _ = query.shape
    if query.is_cuda and mask is not None and not isinstance(mask, CausalBias) and heads != keys.shape[1]:
        # Its kernel that takes a mask knows no groups: groups become heads of a batch, their keys one view.
        query = query.view(keys.shape[1], -1, rows, query.shape[3])
        keys, values = (each[0][:, None].expand(-1, query.shape[1], -1, -1) for each in (keys, values))
    with _without_plans(query):
        out = nn.functional.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            scale=call.scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
    return out.reshape(1, heads, rows, -1).transpose(1, 2)


def _plain(call: AttentionCall, block: AttentionBlock) -> Tensor:
    return _plainly(call, block)[0]


def _plainly(call: AttentionCall, block: AttentionBlock) -> tuple[Tensor, Tensor | None]:
    """What the model's own plain attention returns: (1, T, Hq, D), and weights (1, Hq, T, S) if it shows them."""
    function = getattr(sys.modules[type(call.module).__module__], "eager_attention_forward", None)
    if function is None:
        raise UnsupportedModel(f"{type(call.module).__name__} has no plain attention to fall back on")
    mask = None if block.mask is None else block.mask[None, None]
    found: tuple[Tensor, Tensor | None] = function(
        call.module, block.query, block.keys, block.values, mask, scaling=call.scaling, dropout=0.0, **call.more
    )
    return found


def _weights(
    kernel: Kernel, call: AttentionCall, *, probed: AttentionBlock, segment: Segment, visibility: Visibility
) -> Tensor:
    """The weights (S,) of a segment's last rows in float32: the mean over heads, summed over rows, block by block."""
    _, heads, rows, dim = probed.query.shape
    before, found = len(segment.slots) - rows, torch.zeros(segment.visible, device=probed.query.device)
    size = max(1, PROBED_NUMBERS[probed.query.is_cuda] // (heads * segment.visible))
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        query, seen = probed.query[:, :, start:stop], segment.slots.part(before + start, before + stop).last + 1
        masked = stop - start > 1 or not visibility.is_causal
        mask = visibility.mask(segment, before + start, stop=before + stop, dtype=query.dtype) if masked else None
        block = AttentionBlock(query, probed.keys[:, :, :seen], probed.values[:, :, :seen], mask)
        weights = None if kernel is _fused else _plainly(call, block)[1]
        if weights is None:
            scores = query.reshape(block.keys.shape[1], -1, dim) @ block.keys[0].transpose(1, 2)
            scores = scores.float().reshape(heads, stop - start, seen) * call.scale(query)
            weights = (scores if mask is None else scores + mask).softmax(-1)[None]
        found[:seen] += weights[0].float().mean(0).sum(0)
    return found


def _flexible(call: AttentionCall, block: AttentionBlock) -> Tensor:
    if block.blocks is None:  # a single row, for which its kernels would be compiled once more
        return _plain(call, block)
    seen = (block.keys, block.values)
    return attend_with_flex(block.query, seen, blocks=block.blocks, scaling=call.scaling, more=call.more)


KERNELS: dict[str, Kernel] = {NAME: _fused, DENSE: _plain, FLEX: _flexible}


def kernels(model: PreTrainedModel) -> list[str]:
    """The kernels to try, best first; which one computes what the model computes is checked when it is loaded."""
    if getattr(model, "_supports_sdpa", False):
        return [NAME, DENSE]
    if model.device.type == "cuda" and getattr(model, "_supports_flex_attn", False):
        return [FLEX, DENSE]
    return [DENSE]


for _name, _kernel in KERNELS.items():
    AttentionInterface.register(_name, attention_by(_kernel))  # pyright: ignore[reportUnknownMemberType]
    AttentionMaskInterface.register(_name, see)  # pyright: ignore[reportUnknownMemberType]
