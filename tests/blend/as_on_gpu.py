"""Lets a CPU take the paths of a GPU, as a plugin: `pytest -p tests.blend.as_on_gpu tests/blend` (`make test-as-gpu`).

Records come in large units, which torch unpacks as on a card without triton (`test_span_placer.py` has the kernel),
requests decode side by side in slabs, rows that adjoin behind others are one call, and a fuse computes many rows at a
time. What only a card has is played, by its documentation.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from blend.capture import lifted
from blend.fuse import fuse, record_loader
from blend.run import attention, decoder, joint_rows

OF_A_CPU = {  # what they measure is a CPU's own way
    "test_a_cpu_attends_one_by_one",
    "test_a_fuse_takes_little_more_than_the_prompts_keys_and_values",
}

calls: list[int] = []  # how many sequences each call of `varlen` had


def varlen(query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Tensor:  # noqa: ANN401
    """What `torch.nn.attention.varlen.varlen_attn` does on a GPU, by its documentation: sequences one after another."""
    cu_seq_q, cu_seq_k, max_q, max_k = more
    seqused_k = named.pop("seqused_k")
    assert cu_seq_q.dtype == cu_seq_k.dtype == seqused_k.dtype == torch.int32
    assert len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1 and query.shape[0] == int(cu_seq_q[-1])
    assert max_q == 1 and max_k + 1 >= int(seqused_k.max()) and query.stride(2) == key.stride(2) == value.stride(2) == 1
    assert bool((seqused_k <= cu_seq_k.diff()).all())
    calls.append(len(seqused_k))
    out: list[Tensor] = []
    for row, (start, used) in enumerate(zip(cu_seq_k.tolist(), seqused_k.tolist(), strict=False)):
        seen = [each[start : start + used].transpose(0, 1) for each in (key, value)]
        rows = query[row : row + 1].transpose(0, 1)
        alone = torch.nn.functional.scaled_dot_product_attention(rows, seen[0], seen[1], **named)
        out.append(alone.transpose(0, 1))
    return torch.cat(out)


def pytest_configure() -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(record_loader, "is_apart", lambda device: True)  # pyright: ignore[reportUnknownLambdaType]
    patch.setattr(lifted, "is_apart", lambda device: True)  # pyright: ignore[reportUnknownLambdaType]
    patch.setattr(decoder, "packed_placer", lambda dtype, device: None)  # pyright: ignore[reportUnknownLambdaType]
    patch.setattr(decoder, "attends_jointly", lambda shapes, **more: True)  # pyright: ignore[reportUnknownLambdaType]
    patch.setattr(joint_rows, "varlen_attn", varlen)
    patch.setattr(attention, "_sees_behind_others", lambda query: True)  # pyright: ignore[reportUnknownLambdaType]
    patch.setitem(fuse.PIECE_ROWS, "cpu", fuse.PIECE_ROWS["cuda"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(item, "originalname", item.name) in OF_A_CPU:
            item.add_marker(pytest.mark.skip(reason="of a CPU's own way"))
