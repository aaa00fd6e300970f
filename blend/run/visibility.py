"""What rows of a pass see: masks and sliding windows by the model's own rule; refuses a mask that the model makes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from transformers.masking_utils import (
    causal_mask_function,
    sdpa_mask,  # pyright: ignore[reportUnknownVariableType]
)

from blend.errors import UnsupportedModel
from blend.run.context import Segment
from blend.run.flex_attention import BlockMask, causal_blocks, ruled_blocks
from blend.run.rows_cache import ACTIVE

NAME = "kvweave"  # of the attention that takes this in place of a mask

WINDOW_ROWS = 64  # rows that tell a rule's window

Rule = Callable[[int, int, int, int], bool]  # of batch, head, row and key; so transformers types it, tensors it gets


@dataclass(slots=True)
class Visibility:
    """The rule of one layer type, and the additive masks that were made from it in this pass.

    To transformers it is a mask that is made already: a model around another may hand it on.
    """

    ndim: ClassVar = 4
    rule: Rule
    by_vmap: bool
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict[tuple[int, int], Tensor])
    blocks: dict[tuple[int, int], BlockMask] = field(default_factory=dict[tuple[int, int], BlockMask])
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
        rows = torch.linspace(0, most - 1, min(most, WINDOW_ROWS), device=device).long()
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
        """What rows see, for FlexAttention, which asks the rule as it goes: no mask is made, nor read."""
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
    attention_mask: Tensor | Visibility | None = None,
    use_vmap: bool = False,  # noqa: FBT001, FBT002
    **kwargs: object,
) -> Visibility:
    """The mask function that transformers calls: returns the rule itself, to be asked block by block."""
    if ACTIVE.get() is None:
        raise UnsupportedModel(f"the attention {NAME!r} runs inside a step, with the masks that it made")
    if isinstance(attention_mask, Visibility):
        return attention_mask
    if attention_mask is not None:
        raise UnsupportedModel("the model makes a mask of its own of what a row sees, which knows no rows out of order")
    return Visibility(mask_function, use_vmap)
