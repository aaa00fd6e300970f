"""Attention of scattered rows over their own contexts: an exact mask for each row, no padding, no joint copy.

Registered under one name in both of transformers' registries. The model's own mask code decides what a row may see
(causal, sliding, chunked); it is asked for the positions that the rows really have.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right  # pyright: ignore[reportUnknownVariableType]
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import (
    AttentionMaskInterface,
    causal_mask_function,
    sdpa_mask,  # pyright: ignore[reportUnknownVariableType]
)

from blend.errors import UnsupportedModel
from blend.kernels.kernels import attend_rows
from blend.run.context import Segment
from blend.run.flex_attention import BlockMask, attend_with_flex, causal_blocks, ruled_blocks
from blend.run.joint_rows import JointRows, attend_jointly
from blend.run.step import ACTIVE, Step

NAME = "kvweave"
DENSE = f"{NAME}_dense"  # the same, by the model's own plain attention: it knows soft caps and sinks
FLEX = f"{NAME}_flex"  # the same, by FlexAttention

ROWS = 64  # of one block: a CPU's kernel takes 32 at a time, and more see keys for the last row alone
# What a GPU takes. cuDNN's kernels are quicker by half a millisecond a layer, but plan 40 to 1,200 ms for each shape
# that is new (H100), which nearly every prompt's is.
UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

LOOKED_AT = 64  # rows that tell a rule's window
DENSE_NUMBERS = 8 << 20  # scores of one block of plain attention
LOOKED_NUMBERS = (4 << 20, 32 << 20)  # the same of rows that ask what they look at, on a CPU and on a GPU


Rule = Callable[[int, int, int, int], bool]  # of batch, head, row and key; so transformers types it, tensors it gets


@dataclass(slots=True)
class Visibility:
    """The rule of one layer type, and the additive masks that were made from it in this pass."""

    rule: Rule
    by_vmap: bool
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    blocks: dict[tuple[int, int], BlockMask] = field(default_factory=dict[tuple[int, int], BlockMask])
    groups: dict[int, JointRows | None] = field(default_factory=dict[int, JointRows | None])
    windows: dict[int, int | None] = field(default_factory=dict[int, int | None])

    @property
    def is_causal(self) -> bool:
        """Whether a row sees all before it and itself, with nothing else to know."""
        return self.rule is causal_mask_function

    def window(self, most: int, *, device: torch.device) -> int | None:
        """How many slots up to its own a row sees, of `most`: all of them, or some; None where it sees otherwise."""
        if self.is_causal:
            return most
        if most not in self.windows:
            self.windows[most] = self._found_window(most, device=device)
        return self.windows[most]

    def _found_window(self, most: int, *, device: torch.device) -> int | None:
        rows = torch.linspace(0, most - 1, min(most, LOOKED_AT), device=device).long()
        allowed, before = self._allowed(rows, most), rows[:, None] - torch.arange(most, device=device)
        found = int(allowed.sum(1).max())
        return found if torch.equal(allowed, (before >= 0) & (before < found)) else None

    def mask(self, segment: Segment, start: int, *, stop: int, dtype: torch.dtype) -> Tensor:
        """The additive mask (T, visible) of the segment's rows `start` to `stop`."""
        key = (segment.start + start, segment.start + stop)
        if key not in self.masks:
            rows = segment.slots.part(start, stop)
            allowed = self._allowed(rows.index, rows.last + 1)
            mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
            self.masks[key] = mask.masked_fill_(~allowed, torch.finfo(dtype).min)
        return self.masks[key]

    def joint(self, group: JointRows) -> JointRows | None:
        """The rows with what they see by the rule; None where some see keys with holes between."""
        if self.is_causal:
            return group
        if group.start not in self.groups:
            allowed = self._allowed(group.seen - 1, group.most)
            self.groups[group.start] = group.seeing(allowed.int().argmax(1), allowed.sum(1))
        return self.groups[group.start]

    def _allowed(self, index: Tensor, visible: int) -> Tensor:
        """Which of the first slots (S,) rows at these slots (T,) see."""
        allowed = sdpa_mask(
            1,
            len(index),
            visible,
            q_offset=index - torch.arange(len(index), device=index.device),  # pyright: ignore[reportArgumentType]
            mask_function=self.rule,
            allow_is_causal_skip=False,
            use_vmap=self.by_vmap,
            device=index.device,
        )
        assert allowed is not None
        return allowed[0, 0]

    def block_mask(self, segment: Segment, start: int, *, stop: int) -> BlockMask:
        """The same for FlexAttention, which asks the rule as it goes: no mask is made, nor read."""
        key = (segment.start + start, segment.start + stop)
        if key not in self.blocks:
            rows = segment.slots.part(start, stop)
            make = causal_blocks if self.is_causal else ruled_blocks
            self.blocks[key] = make(rows.index, rows.last + 1, rule=self.rule)
        return self.blocks[key]


def see(  # noqa: PLR0917  # as transformers calls it
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Rule = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,  # noqa: FBT001, FBT002
    **kwargs: object,
) -> Visibility:
    """The mask function that transformers calls: returns the rule itself, to be asked block by block."""
    if ACTIVE.get() is None or attention_mask is not None:
        raise UnsupportedModel(f"the attention {NAME!r} runs inside a step and takes no attention mask of its own")
    return Visibility(mask_function, use_vmap)


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
    step = ACTIVE.get()
    if step is None or not isinstance(visibility, Visibility):
        raise UnsupportedModel(f"the attention {NAME!r} runs inside a step and with the masks that it made")
    if kernel is _fused:
        known = step.attend(
            query, seen, scale=call.scale(query), window=partial(visibility.window, device=query.device)
        )
        if known is not None:
            return known
    parts = _jointly(step, query, keys=seen[0], call=call, visibility=visibility) if kernel is _fused else []
    for segment, keys, values in () if parts else step.sources(*seen):
        if step.asking:
            asking = AttentionBlock(query[:, :, -step.asking :], keys, values)
            step.look(_looked_at(kernel, call, asking=asking, segment=segment, visibility=visibility))
        rows = query[:, :, segment.start : segment.stop]
        if kernel is _fused and visibility.is_causal and _is_one_call(segment, query):
            parts.append(_fused_causal(call, AttentionBlock(rows, keys, values)))
            continue
        if kernel is _fused and visibility.is_causal and _knows_slots(segment, query):
            found = _by_slots(call, AttentionBlock(rows, keys, values), segment=segment)
            if found is not None:
                parts.append(found)
                continue
        size = _rows_of_a_block(kernel, query, segment=segment)
        for start in range(0, len(segment.slots), size):
            stop = min(start + size, len(segment.slots))
            seen_by_last = segment.slots.part(start, stop).last + 1
            block = AttentionBlock(rows[:, :, start:stop], keys[:, :, :seen_by_last], values[:, :, :seen_by_last])
            if kernel is _flexible and stop - start > 1:
                block = replace(block, blocks=visibility.block_mask(segment, start, stop=stop))
            elif stop - start > 1 or not visibility.is_causal:
                block = replace(block, mask=visibility.mask(segment, start, stop=stop, dtype=query.dtype))
            parts.append(kernel(call, block))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _jointly(step: Step, query: Tensor, *, keys: Tensor, call: AttentionCall, visibility: Visibility) -> list[Tensor]:
    """The parts of a decoding step whose requests share buffers; none where some do not, or see keys with holes."""
    groups = [(visibility.joint(group), seen) for group, seen in step.joint(keys)]
    told = [(group, seen) for group, seen in groups if group is not None]
    if len(told) < len(groups):
        return []
    return [attend_jointly(group, query, seen=seen, scaling=call.scaling) for group, seen in told]


def _rows_of_a_block(kernel: Kernel, query: Tensor, *, segment: Segment) -> int:
    if kernel is _plain:
        return max(1, DENSE_NUMBERS // (query.shape[1] * segment.visible))
    return len(segment.slots) if query.is_cuda else ROWS


def _without_plans(query: Tensor) -> AbstractContextManager[object]:
    return sdpa_kernel(UNPLANNED) if query.is_cuda else nullcontext()  # pyright: ignore[reportUnknownVariableType]


def _fused(call: AttentionCall, block: AttentionBlock) -> Tensor:
    _, heads, rows, dim = block.query.shape
    if rows > 1:
        return _grouped(call, block, is_causal=False)
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


def _knows_slots(segment: Segment, query: Tensor) -> bool:
    """Whether a kernel is told where rows stand: no mask is made then, nor a plan for as many rows and keys."""
    return attend_rows is not None and query.is_cuda and len(segment.slots) > 1


def _by_slots(call: AttentionCall, block: AttentionBlock, *, segment: Segment) -> Tensor | None:
    """Rows of a segment, each of which sees all before it and itself; None where keys lie otherwise."""
    assert attend_rows is not None
    seen = block.keys[0], block.values[0]
    found = attend_rows.attend_scattered(block.query[0], seen, slots=segment.slots.index, scale=call.scale(block.query))
    return None if found is None else found[None]


def _is_one_call(segment: Segment, query: Tensor) -> bool:
    """Whether its rows adjoin so that a kernel knows what they see: from the first slot on, or anywhere on a GPU."""
    slots = segment.slots
    return slots.adjoining and (slots.first == 0 or (len(slots) > 1 and _sees_behind_others(query)))


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
        ours = _fused_causal(call, AttentionBlock(query, keys, values))
    except RuntimeError:
        return False
    return torch.allclose(ours, _grouped(call, AttentionBlock(query, keys, values, mask), is_causal=False), atol=0.05)


def _fused_causal(call: AttentionCall, block: AttentionBlock) -> Tensor:
    """Rows that adjoin, the last of which sees all keys."""
    rows, keys = block.query.shape[2], block.keys.shape[2]
    if rows == keys:
        return _grouped(call, block, is_causal=True)
    out = nn.functional.scaled_dot_product_attention(
        block.query,
        block.keys,
        block.values,
        attn_mask=causal_lower_right(rows, keys),
        scale=call.scaling,
        enable_gqa=block.query.shape[1] != block.keys.shape[1],
    )
    return out.transpose(1, 2)


def _grouped(call: AttentionCall, block: AttentionBlock, *, is_causal: bool) -> Tensor:
    query, keys, values, mask = block.query, block.keys, block.values, block.mask
    _, heads, rows, _ = query.shape
    if query.is_cuda and mask is not None and heads != keys.shape[1]:
        # Its kernel that takes a mask knows no groups: groups become heads of a batch, their keys one view.
        query = query.view(keys.shape[1], -1, rows, query.shape[3])
        keys, values = (each[0][:, None].expand(-1, query.shape[1], -1, -1) for each in (keys, values))
    with _without_plans(query):
        out = nn.functional.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            is_causal=is_causal,
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


def _looked_at(
    kernel: Kernel, call: AttentionCall, *, asking: AttentionBlock, segment: Segment, visibility: Visibility
) -> Tensor:
    """What the segment's last rows look at, (S,) in float32: the mean over heads, summed over rows, block by block."""
    _, heads, rows, dim = asking.query.shape
    before, looked = len(segment.slots) - rows, torch.zeros(segment.visible, device=asking.query.device)
    size = max(1, LOOKED_NUMBERS[asking.query.is_cuda] // (heads * segment.visible))
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        query, seen = asking.query[:, :, start:stop], segment.slots.part(before + start, before + stop).last + 1
        masked = stop - start > 1 or not visibility.is_causal
        mask = visibility.mask(segment, before + start, stop=before + stop, dtype=query.dtype) if masked else None
        block = AttentionBlock(query, asking.keys[:, :, :seen], asking.values[:, :, :seen], mask)
        weights = None if kernel is _fused else _plainly(call, block)[1]
        if weights is None:
            scores = query.reshape(block.keys.shape[1], -1, dim) @ block.keys[0].transpose(1, 2)
            scores = scores.float().reshape(heads, stop - start, seen) * call.scale(query)
            weights = (scores if mask is None else scores + mask).softmax(-1)[None]
        looked[:seen] += weights[0].float().mean(0).sum(0)
    return looked


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
