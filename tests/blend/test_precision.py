"""Half precision against the model's own half precision, and packed records against plain ones."""

import copy
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from blend.adopt.load import LoadedModel, adopt
from blend.fuse.policy import FIXED, SELECTIVE
from blend.fuse.prompt import ChunkSegment, Prompt
from blend.run.attention import KERNELS, NAME, AttentionBlock, AttentionCall
from store.codec.spec import BITS
from tests.blend.dense import prefill
from tests.blend.families import DEVICE, draw, native, ours, put, words
from tests.blend.fusing import Case, close, fused, packed, source

PREFIX, A, B, SUFFIX = draw(41, 9, 120, 75, 11)
NAMES = ("llama", "qwen3", "gemma3", "gpt-oss", "deepseek-v3", "cohere2")


@cache
def half(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, LoadedModel]:
    plain = copy.deepcopy(native(name)).to(dtype)  # pyright: ignore[reportArgumentType]
    return plain, adopt(put(copy.deepcopy(plain)), words())


def apart(ours: Tensor, theirs: Tensor) -> float:
    """Total variation of the two distributions of the next token."""
    first, second = (torch.softmax(each.cpu().float(), -1) for each in (ours, theirs))
    return float((first - second).abs().sum() / 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_gives_the_models_own_distribution(name: str, dtype: torch.dtype) -> None:
    plain, model = half(name, dtype)
    prompt = Case(PREFIX, PREFIX, "hm", (A, B), SUFFIX).prompt(model)
    reference = prefill(plain, prompt.ids)[-1]
    noise = apart(reference, prefill(native(name), prompt.ids)[-1])

    for policy in ("full", "prefix", "reuse"):
        found = fused(model, prompt, policy=policy, piece_rows=64).logits
        assert apart(found, reference) <= 2 * noise + 0.01, policy


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("group", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_row_sees_what_exact_arithmetic_sees(dtype: torch.dtype, group: int, *, masked: bool) -> None:
    drawn = torch.Generator().manual_seed(group)
    keys, values = torch.randn(2, 1, 2, 300, 32, generator=drawn).to(DEVICE, dtype)
    query = torch.randn(1, 2 * group, 1, 32, generator=drawn).to(DEVICE, dtype)
    hidden = torch.arange(300, device=DEVICE) < (100 if masked else 0)
    mask = torch.zeros(1, 300, dtype=dtype, device=DEVICE).masked_fill_(hidden, torch.finfo(dtype).min)
    call = AttentionCall(torch.nn.Identity(), None, {})
    block = AttentionBlock(query, keys, values, mask if masked else None)
    scores = query.double() @ keys.double().repeat_interleave(group, 1).transpose(2, 3) / 32**0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    wanted = (weights @ values.double().repeat_interleave(group, 1)).transpose(1, 2)
    found = KERNELS[NAME](call, block).view(wanted.shape)
    assert torch.allclose(found.double(), wanted, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["llama", "gemma4", "deepseek-v3"])
def test_packed_records_fuse_like_plain_ones_but_for_their_steps(name: str) -> None:
    model = ours(name)
    plain = source(model, PREFIX, A)
    coded = packed(plain, "q8")

    coarse = fused(model, Prompt(PREFIX, (ChunkSegment(B), ChunkSegment(A, coded)), SUFFIX), policy="reuse")
    exact = fused(model, Prompt(PREFIX, (ChunkSegment(B), ChunkSegment(A, plain)), SUFFIX), policy="reuse")

    assert apart(coarse.logits, exact.logits.cpu()) < 0.1
    assert not close(coarse.logits, exact.logits.cpu())
    assert coarse.report.bytes == exact.report.bytes


@pytest.mark.parametrize("codec", ["lossless", *(f"q{bits}" for bits in BITS), "k4v2.3", "q6@2-k4v2"])
@pytest.mark.parametrize("name", ["llama", "deepseek-v3"])
def test_what_is_exact_is_full_prefill_whatever_codec_the_records_are_in(name: str, codec: str) -> None:
    """The first chunk stands right behind the prefix that it was captured with; packed, it is not exact."""
    model = ours(name)
    first, second = (ChunkSegment(ids, packed(source(model, PREFIX, ids), codec)) for ids in (A, B))
    prompt = Prompt(PREFIX, (first, second), SUFFIX)
    reference = prefill(native(name), prompt.ids)[-1]

    for policy in (*FIXED, *SELECTIVE):
        if policy != "reuse":
            found = fused(model, prompt, policy=policy, ratio=1.0)
            assert close(found.logits, reference), policy
            assert found.report.reused == (len(A) if codec == "lossless" and policy != "full" else 0)
