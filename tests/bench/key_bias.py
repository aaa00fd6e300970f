"""Measures what a codec costs where keys lie far from zero, as the biases of Qwen2's keys put them.

`python -m tests.bench.key_bias` prints one JSON object. A random Qwen2 shape gets a bias of so many spreads on one in
sixteen channels of its keys; with one on every channel attention saturates, and any error flips it. For each spec: the
mean of the KL divergence of the next token under `reuse`, packed records against plain ones of the same model, over
prompts of four chunks; the error of keys over the spread of their channel, as a root mean square; and the bits that a
value takes. Nothing but the records differs.
"""

import argparse
import json
from collections.abc import Sequence
from statistics import mean

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2Config

from blend.fuse.capture import capture
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import ChunkSegment, HeldRecord, Prompt
from blend.fuse.record_loader import Readers
from blend.load import LoadedModel
from store.blob import Terms
from store.codec.decode import decode
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import read
from store.record import Record, widen
from tests.bench.model import adopted, fused
from tests.blend.families import build, draw

SPREADS = (0, 10, 50)
SPECS = ("q8", "q4", "k4v2", "q2")
ONE_IN = 1 / 16
CHUNKS, TOKENS, PROMPTS = 4, 128, 8


def biased(spreads: float) -> PreTrainedModel:
    """A shape with attention that is not flat; its keys vary by about one without a bias."""
    model = build(
        Qwen2Config(
            vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2,
        ),
        spread=0.08,
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if name.endswith("k_proj.bias"):
            far = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1)) < ONE_IN
            parameter.data = far * float(spreads)
    return model


def packed(record: Record, spec: str) -> tuple[Record, float]:
    """The record as the codec keeps it, and the bits of a value."""
    blob = encode(record, CacheKey("bench", "chunk", "model", spec), terms=Terms(0, precomputed=True))
    values = sum(layer.keys.size + layer.values.size for layer in record.layers if layer)
    return decode(read(blob)), 8 * blob.nbytes / values


def spread_error(plain: Record, kept: Record) -> float:
    """The error of keys over the spread of their channel, as a root mean square."""
    shares: list[float] = []
    for one, other in zip(plain.layers, kept.layers, strict=True):
        assert one is not None and other is not None
        keys = widen(one.keys, plain.dtype)
        errors = np.square(keys - widen(other.keys, plain.dtype)).mean(axis=1) / keys.var(axis=1)
        shares.append(float(errors.mean()))
    return mean(shares) ** 0.5


def answers(model: LoadedModel, chunks: Sequence[ChunkSegment], *, readers: Readers) -> torch.Tensor:
    """The logits of the next token of every prompt (N, V)."""
    asked = [Prompt(draw(7, 8)[0], tuple(chunks), draw(20 + number, 12)[0]) for number in range(PROMPTS)]
    return torch.stack([fused(model, each, order=BlendOrder("reuse"), readers=readers)[0].logits for each in asked])


def rows(spreads: float) -> dict[str, dict[str, float]]:
    """What each spec costs under a bias of so many spreads."""
    model = adopted(biased(spreads))
    behind, texts = draw(3, 8)[0], draw(5, *[TOKENS] * CHUNKS)
    records = capture(model.decoder, behind, chunks=texts)
    fingerprint = model.fingerprint.behind(behind)

    def segments(kept: Sequence[Record]) -> list[ChunkSegment]:
        return [ChunkSegment(ids, HeldRecord(each, fingerprint)) for ids, each in zip(texts, kept, strict=True)]

    found: dict[str, dict[str, float]] = {}
    with Readers(2) as readers:
        exact = answers(model, segments(records), readers=readers).log_softmax(-1)
        for spec in SPECS:
            kept, bits = zip(*(packed(record, spec) for record in records), strict=True)
            coarse = answers(model, segments(kept), readers=readers).log_softmax(-1)
            errors = [spread_error(one, other) for one, other in zip(records, kept, strict=True)]
            found[spec] = {
                "kl": float((exact.exp() * (exact - coarse)).sum(-1).mean()),
                "error_over_spread": mean(errors),
                "bits": mean(bits),
            }
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(json.dumps({f"{spreads} spreads": rows(spreads) for spreads in SPREADS}, indent=1))


if __name__ == "__main__":
    main()
