"""Attention by torch's FlexAttention: soft caps and sinks on an accelerator, without a matrix of scores in memory."""

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    create_block_mask,  # pyright: ignore[reportUnknownVariableType]
    flex_attention,
)

BLOCK = 128  # rows, and keys

Sight = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # whether a row sees a key: of batch, head, row and key
Rule = Callable[..., Any]  # the same of a row's slot; transformers types it by numbers, and it gets tensors
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Attention = Callable[..., tuple[Tensor, AuxOutput]]


@cache
def _compiled() -> Attention:
    """The compiled attention, made when it is first needed: the compiler takes seconds to import."""
    return torch.compile(flex_attention, dynamic=True)  # pyright: ignore[reportUnknownMemberType, reportReturnType]


def attend_with_flex(
    query: Tensor, seen: tuple[Tensor, Tensor], *, blocks: BlockMask, scaling: float | None, more: dict[str, object]
) -> Tensor:
    """Query (1, Hq, T, D) over keys and values (1, H, S, D), as the blocks let it see them, to (1, T, Hq, D)."""
    keys, values = seen
    heads, groups = query.shape[1], query.shape[1] // keys.shape[1]
    if heads & (heads - 1):  # grouped heads must be a power of two for its kernels
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    function = _compiled() if query.is_cuda else flex_attention
    out, aux = function(
        query,
        keys,
        values,
        score_mod=_capped(cast("float | None", more.get("softcap"))),
        block_mask=blocks,
        scale=scaling,
        enable_gqa=query.shape[1] != keys.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    sinks = cast("Tensor | None", more.get("s_aux"))
    if sinks is not None:  # a sink takes its share of the softmax and gives nothing
        out = out * torch.sigmoid(_logsum(aux) - sinks.float()[None, :, None])[..., None].to(out.dtype)
    return out.transpose(1, 2)


def _logsum(aux: AuxOutput) -> Tensor:
    assert aux.lse is not None
    return aux.lse


def _capped(cap: float | None) -> Score | None:
    if cap is None:
        return None

    def score(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return score


def ruled_blocks(index: Tensor, visible: int, *, rule: Rule) -> BlockMask:
    """What rows at these slots (T,) see of the first `visible`, by any rule."""
    return create_block_mask(_at_slots(index, rule), None, None, len(index), visible, device=str(index.device))


def causal_blocks(index: Tensor, visible: int, *, rule: Rule) -> BlockMask:
    """The blocks of rows that see all before them and themselves, from where blocks begin and end alone."""
    starts = torch.arange(0, len(index), BLOCK, device=index.device)
    ends = (starts + BLOCK - 1).clamp_(max=len(index) - 1)
    whole = (index[starts] + 1) // BLOCK  # blocks of keys that all rows of a block see
    some = index[ends] // BLOCK + 1 - whole
    blocks = torch.arange(-(-visible // BLOCK), device=index.device)
    behind = (whole[:, None] + blocks).clamp_(max=len(blocks) - 1)
    return BlockMask.from_kv_blocks(
        some[None, None].int(),
        behind[None, None].int(),
        whole[None, None].int(),
        blocks.expand(1, 1, len(starts), -1).int(),
        BLOCK,
        _at_slots(index, rule),
        (len(index), visible),
    )


def _at_slots(index: Tensor, rule: Rule) -> Sight:
    def sees(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return rule(batch, head, index[row], key)

    return sees
