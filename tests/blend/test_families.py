"""Every family against transformers itself: prefill, exact hits, relocation, blending with an explicit mask."""

import dataclasses

import pytest
import torch

from blend.capture import capture
from tests.blend import dense
from tests.blend.families import FAMILIES, OTHERS, WINDOW, draw, native, ours
from tests.blend.fusing import Case, chosen, close, fused, off

ALL = [*FAMILIES, *OTHERS]
PREFIX, OTHER_PREFIX, A, B, C, GAP, SUFFIX = draw(3, 9, 14, 40, 33, 21, 5, 11)
MIXED = Case(OTHER_PREFIX, PREFIX, "hthmth", (A, GAP, B, C, GAP, C), SUFFIX)


@pytest.mark.parametrize("name", ALL)
def test_ratio_one_and_full_are_a_full_prefill(name: str) -> None:
    prompt = MIXED.prompt(ours(name))
    reference = dense.prefill(native(name), prompt.ids)[-1]

    for policy in ("full", "heads", "deviation", "hybrid"):
        assert close(fused(ours(name), prompt, policy=policy, ratio=1.0).logits, reference), policy


@pytest.mark.parametrize("name", ALL)
def test_a_chunk_behind_its_capture_prefix_is_an_exact_prefix_hit(name: str) -> None:
    prompt = Case(PREFIX, PREFIX, "h", (A,), SUFFIX).prompt(ours(name))
    found = fused(ours(name), prompt, policy="reuse")

    assert close(found.logits, dense.prefill(native(name), prompt.ids)[-1])
    assert found.report.reused == len(A)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("start", [len(PREFIX), 200, 1500])
def test_relocation_is_a_native_prefill_at_that_position(name: str, start: int) -> None:
    decoder = ours(name).decoder
    [record] = capture(decoder, PREFIX, chunks=[B])
    context = decoder.context(start + len(B))
    expected = dense.chunk_kv(native(name), dense.Cached(start, PREFIX, B))

    for layer in decoder.anatomy.keeping:
        stored, right = record.layers[layer], expected[layer]
        assert stored is not None and right is not None
        keys, values = (torch.from_numpy(part).to(decoder.device) for part in (stored.keys, stored.values))
        decoder.place(context, layer, slots=slice(start, start + len(B)), keys=keys, values=values)
        assert off(context.keys(layer)[:, start:], right[0]) < 2e-4
        assert off(context.values(layer)[:, start:], right[1]) < 2e-4


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("policy", "ratio"), [("reuse", 0.0), ("heads", 0.2), ("deviation", 0.3), ("hybrid", 0.25)])
def test_hits_and_misses_equal_dense_attention_with_an_explicit_mask(name: str, policy: str, ratio: float) -> None:
    prompt = MIXED.prompt(ours(name))
    rows, filters = chosen(ours(name), prompt, policy=policy, ratio=ratio)
    logits, recomputed = dense.blended(native(name), prompt.ids, MIXED.cached, rows=rows, filters=filters)

    found = fused(ours(name), prompt, policy=policy, ratio=ratio)

    assert list(found.report.recomputed_slots) == recomputed
    assert close(found.logits, logits)


@pytest.mark.parametrize("name", ALL)
def test_row_pieces_of_any_size_equal_one_piece(name: str) -> None:
    prompt = MIXED.prompt(ours(name))
    whole = fused(ours(name), prompt, policy="hybrid", ratio=0.3)

    for size in (1, 7, 32):
        pieces = fused(ours(name), prompt, policy="hybrid", ratio=0.3, piece_rows=size)
        assert pieces.report.recomputed_slots == whole.report.recomputed_slots
        assert close(pieces.logits, whole.logits)


def test_the_tests_would_notice_blending_that_does_nothing() -> None:
    """Reuse differs from a full prefill by far more than the tolerance, and windows are shorter than chunks."""
    for name in ALL:
        prompt = MIXED.prompt(ours(name))
        reference = dense.prefill(native(name), prompt.ids)[-1]
        assert off(fused(ours(name), prompt, policy="reuse").logits, reference) > 1e-2, name
    assert len(B) > WINDOW


def test_a_record_behind_another_prefix_is_not_exact() -> None:
    case = dataclasses.replace(MIXED, pattern="h", parts=(A,))

    report = fused(ours("llama"), case.prompt(ours("llama")), policy="hybrid", ratio=0.2).report

    assert report.recomputed == 8
