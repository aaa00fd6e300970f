"""Half precision against the model's own half precision, and packed records against plain ones."""

import copy
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from blend.fuse.prompt import ChunkSegment, Prompt
from blend.load import LoadedModel, adopt
from blend.model.fingerprint import Fingerprint
from store.blob import Terms
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import BlobReader, read
from store.record import PackedLayer, Tail
from tests.blend.dense import prefill
from tests.blend.families import draw, native, ours, put, words
from tests.blend.fusing import Case, close, fused, source
from tests.store.samples import packed_layers

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


class Packed:
    """A record as a store delivers it."""

    def __init__(self, blob: BlobReader, fingerprint: Fingerprint) -> None:
        self._layers = packed_layers(blob)
        self.fingerprint = fingerprint
        self.tokens, self.ids_digest, self.tail = blob.head.tokens, blob.head.ids_digest, Tail()

    def layer(self, index: int) -> PackedLayer:
        layer = self._layers[index]
        assert layer is not None
        return layer


@pytest.mark.parametrize("name", ["llama", "gemma4", "deepseek-v3"])
def test_packed_records_fuse_like_plain_ones_but_for_their_steps(name: str) -> None:
    model = ours(name)
    plain = source(model, PREFIX, A)
    key = CacheKey("acme", "chunk", plain.fingerprint.digest, "q8")
    blob = read(encode(plain._record, key, terms=Terms(0, precomputed=True)))  # pyright: ignore[reportPrivateUsage]
    packed = Packed(blob, plain.fingerprint)

    coarse = fused(model, Prompt(PREFIX, (ChunkSegment(B), ChunkSegment(A, packed)), SUFFIX), policy="reuse")
    exact = fused(model, Prompt(PREFIX, (ChunkSegment(B), ChunkSegment(A, plain)), SUFFIX), policy="reuse")

    assert apart(coarse.logits, exact.logits.cpu()) < 0.1
    assert not close(coarse.logits, exact.logits.cpu())
    assert coarse.report.bytes == exact.report.bytes
