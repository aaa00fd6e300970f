"""Any prompt, any policy: against dense attention with an explicit mask, and against a full prefill."""

import math
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.blend import dense
from tests.blend.families import draw, native, ours
from tests.blend.fusing import Case, chosen, close, fused

FAMILIES = ("llama", "mistral-window", "gemma3", "smollm3", "llama4", "gemma4")  # windows of 24, mixed layers, sharing
LENGTHS = st.integers(1, 300)


@st.composite
def cases(draw_from: st.DrawFn) -> Case:
    pattern = draw_from(st.text("hhhmt", min_size=0, max_size=5))
    seed = draw_from(st.integers(0, 10**6))
    lengths = [draw_from(LENGTHS if kind != "t" else st.integers(1, 9)) for kind in pattern]
    sizes = [draw_from(st.integers(0, 20)), draw_from(st.integers(0, 20)), draw_from(st.integers(1, 20)), *lengths]
    prefix, behind, suffix, *parts = draw(seed, *sizes)
    if draw_from(st.booleans()):
        behind = prefix
    return Case(prefix, behind, pattern, tuple(parts), suffix)


RATIOS = st.one_of(st.sampled_from((0.0, 1.0)), st.floats(0, 1))


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from(FAMILIES), st.sampled_from(("reuse", "heads", "deviation", "hybrid", "ask")), RATIOS)
def test_a_fuse_is_dense_attention_over_what_was_cached(case: Case, name: str, policy: str, ratio: float) -> None:
    model, prompt = ours(name), case.prompt(ours(name))
    found = fused(model, prompt, policy=policy, ratio=ratio, piece_rows=97)
    report = found.report

    assert report.reused + report.recomputed + report.fresh == len(prompt.ids)
    exact = case.pattern[:1] == "h" and case.captured_behind == case.prefix
    blended = sum(len(chunk.ids) for chunk in case.cached[int(exact) :])
    budget = 0 if policy == "reuse" else math.ceil(ratio * blended)
    if policy == "ask" and budget:
        budget = min(blended, max(4, budget))
    assert report.recomputed == (budget if budget < blended else 0)
    if budget == blended:
        assert close(found.logits, dense.prefill(native(name), prompt.ids)[-1])
        return
    computed = [slot for chunk in case.cached[: int(exact)] for slot in chunk.slots]  # exact: as good as computed
    choice = chosen(model, prompt, policy=policy, ratio=ratio, found=report.stages)
    choice = replace(choice, rows=sorted({*choice.rows, *computed}))
    logits, recomputed = dense.blended(native(name), prompt.ids, case.cached[int(exact) :], choice=choice)
    assert close(found.logits, logits)
    assert list(report.stages[-1]) == recomputed


@settings(max_examples=25, deadline=None)
@given(cases(), st.sampled_from(FAMILIES), st.sampled_from(("full", "prefix", "hybrid")), st.integers(1, 400))
def test_nothing_blended_is_a_full_prefill_in_pieces_of_any_size(
    case: Case, name: str, policy: str, piece_rows: int
) -> None:
    prompt = case.prompt(ours(name))
    found = fused(ours(name), prompt, policy=policy, ratio=1.0, piece_rows=piece_rows)

    assert close(found.logits, dense.prefill(native(name), prompt.ids)[-1])
    assert found.report.recomputed == 0
    assert torch.isfinite(found.logits).all()
