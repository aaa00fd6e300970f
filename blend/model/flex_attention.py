"""Attention by torch's FlexAttention: soft caps and sinks on an accelerator, without a matrix of scores in memory."""

from collections.abc import Callable
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    create_block_mask,  # pyright: ignore[reportUnknownVariableType]
    flex_attention,
)

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Attention = Callable[..., tuple[Tensor, AuxOutput]]


@cache
def _compiled() -> Attention:
    """The compiled attention, made when it is first needed: the compiler takes seconds to import."""
    return torch.compile(flex_attention, dynamic=True)  # pyright: ignore[reportUnknownMemberType, reportReturnType]


def attend_with_flex(
    query: Tensor, seen: tuple[Tensor, Tensor], *, mask: Tensor | None, scaling: float | None, more: dict[str, object]
) -> Tensor:
    """Query (1, Hq, T, D) over keys and values (1, H, S, D) with an additive mask (T, S), to (1, T, Hq, D)."""
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
        block_mask=None if mask is None else _blocks(mask),
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


def _blocks(mask: Tensor) -> BlockMask:
    allowed = mask == 0

    def sees(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return allowed[row, key]

    return create_block_mask(sees, None, None, *mask.shape, device=str(mask.device))
