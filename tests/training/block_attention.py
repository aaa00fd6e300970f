"""Attention of training on a CPU: plain matrix products over blocks of rows, which is quicker there than torch's own.

At 1,000 tokens its backward pass is. Knows causal masks alone: a row sees nothing behind itself.
"""

# transformers is not typed to the end
# pyright: reportUnknownMemberType=false, reportArgumentType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

BLOCKS = "blocks"
ROWS = 256


def block_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: object
) -> tuple[Tensor, None]:
    """See transformers' `AttentionInterface`: (B, H, T, D) in, (B, T, H, D) out."""
    rows = query.shape[2]
    query = query * (query.shape[-1] ** -0.5)
    found: list[Tensor] = []
    for first in range(0, rows, ROWS):
        last = min(rows, first + ROWS)
        scores = query[:, :, first:last] @ key[:, :, :last].transpose(-1, -2)
        found.append((scores + attention_mask[:, :, first:last, :last]).softmax(-1) @ value[:, :, :last])
    return torch.cat(found, 2).transpose(1, 2), None


def added(mask: Tensor) -> Tensor:
    """What is added to scores, for a mask that is true where a token sees another."""
    return torch.zeros(mask.shape, dtype=torch.bfloat16).masked_fill(~mask, -30000.0)


AttentionInterface.register(BLOCKS, block_attention)
AttentionMaskInterface.register(BLOCKS, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
