"""Blocks that rows may see, against the rule asked number by number, and attention by them against a dense one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from blend.run.flex_attention import BLOCK, attend_with_flex, causal_blocks, ruled_blocks

SLOTS = st.lists(st.integers(0, 700), min_size=2, max_size=300, unique=True)


def seen_densely(index: Tensor, visible: int, *, window: int | None = None) -> Tensor:
    """Which keys (T, S) rows at these slots see."""
    keys = torch.arange(visible)
    allowed = keys <= index[:, None]
    return allowed if window is None else allowed & (keys > index[:, None] - window)


def by_blocks(seen: Tensor, *, whole: bool) -> Tensor:
    """Of each block whether any number is seen, or all."""
    rows, keys = (-(-length // BLOCK) for length in seen.shape)
    padded = torch.full((rows * BLOCK, keys * BLOCK), whole)
    padded[: len(seen), : seen.shape[1]] = seen
    blocks = padded.view(rows, BLOCK, keys, BLOCK).transpose(1, 2).flatten(2)
    return blocks.all(2) if whole else blocks.any(2)


def listed(counts: Tensor, indices: Tensor) -> list[set[int]]:
    """The blocks of keys that each block of rows names."""
    return [set(each[:count].tolist()) for count, each in zip(counts[0, 0].tolist(), indices[0, 0], strict=True)]


@settings(max_examples=100, deadline=None)
@given(places=SLOTS)
def test_causal_blocks_are_those_that_rows_see_in_part_or_whole(places: list[int]) -> None:
    index = torch.tensor(sorted(places))
    blocks = causal_blocks(index, int(index[-1]) + 1, rule=causal_mask_function)
    assert (
        isinstance(blocks, BlockMask) and blocks.full_kv_num_blocks is not None and blocks.full_kv_indices is not None
    )
    some = listed(blocks.kv_num_blocks, blocks.kv_indices)
    whole = listed(blocks.full_kv_num_blocks, blocks.full_kv_indices)
    seen = seen_densely(index, int(index[-1]) + 1)
    any_seen, all_seen = by_blocks(seen, whole=False), by_blocks(seen, whole=True)
    for row, (parts, wholes) in enumerate(zip(some, whole, strict=True)):
        assert not parts & wholes and parts | wholes == set(any_seen[row].nonzero()[:, 0].tolist())
        assert all(bool(all_seen[row, key]) for key in wholes)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@settings(max_examples=30, deadline=None)
@given(
    places=SLOTS,
    window=st.none() | st.integers(1, 300),
    more=st.sampled_from([(None, False), (5.0, False), (None, True)]),
)
def test_scattered_rows_see_what_the_rule_says(
    places: list[int], window: int | None, more: tuple[float | None, bool]
) -> None:
    cap, sinks = more
    index = torch.tensor(sorted(places))
    visible, draw = int(index[-1]) + 1, torch.Generator().manual_seed(len(places))
    query, keys, values = (
        torch.randn(1, heads, rows, 8, generator=draw) for heads, rows in ((6, len(index)), (2, visible), (2, visible))
    )
    sink = torch.randn(6, generator=draw) if sinks else None
    if window is None:
        blocks = causal_blocks(index, visible, rule=causal_mask_function)
    else:
        blocks = ruled_blocks(index, visible, rule=sliding_window_causal_mask_function(window))
    out = attend_with_flex(query, (keys, values), blocks=blocks, scaling=None, more={"softcap": cap, "s_aux": sink})

    keys, values = keys.repeat_interleave(3, 1), values.repeat_interleave(3, 1)
    scores = query @ keys.transpose(2, 3) * 8**-0.5
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~seen_densely(index, visible, window=window), -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink.expand(len(index), -1).T[None, :, :, None]], dim=3)
    wanted = (scores.softmax(3)[..., :visible] @ values).transpose(1, 2)
    assert torch.allclose(out, wanted, atol=1e-5)
