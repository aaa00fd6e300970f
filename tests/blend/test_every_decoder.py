"""What `load` says of each decoder of the installed transformers, against docs/models.md; and that what it serves of
those that read more than text is exact, against the whole model of transformers.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from blend.adopt.load import LoadedModel, load
from blend.capture.capture import capture
from tests.blend import dense
from tests.blend.every_decoder import (
    FOR_TEXT,
    PAGE,
    TOLD,
    model_types,
    outcome,
    outcomes_in,
    save_checkpoint,
    whole_model,
)
from tests.blend.families import draw
from tests.blend.fusing import ASK, Case, chosen, close, fused

OUTCOMES = outcomes_in(PAGE.read_text("utf-8"))
QUICK = {"qwen2_5_vl", "qwen3_vl_moe", "mllama", "qwen3_5", "deepseek_v32", "bart", "fast_vlm", "pi0"}
OF_TEXT = [name for name, told in OUTCOMES.items() if told == FOR_TEXT and name in model_types()]
PREFIX, OTHER_PREFIX, A, B, C, GAP, SUFFIX = draw(3, 9, 14, 40, 33, 21, 5, 11)
MIXED = Case(OTHER_PREFIX, PREFIX, "hthmth", (A, GAP, B, C, GAP, C), SUFFIX)

of_the_same_transformers = pytest.mark.skipif(
    f"transformers {hf.__version__}" not in PAGE.read_text("utf-8"), reason="the page is of another transformers"
)


def quick_and_long(names: Sequence[str]) -> list[object]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in names]


@of_the_same_transformers
def test_the_page_has_each_decoder_of_transformers_once() -> None:
    assert sorted(OUTCOMES) == model_types()


def test_the_package_has_the_table_of_the_page() -> None:
    assert TOLD.read_text("utf-8") in PAGE.read_text("utf-8")


@of_the_same_transformers
@pytest.mark.parametrize("model_type", quick_and_long(model_types()))
def test_load_says_what_the_page_says(model_type: str, tmp_path: Path) -> None:
    assert outcome(model_type, tmp_path) == OUTCOMES[model_type]


@pytest.mark.parametrize("model_type", quick_and_long(OF_TEXT))
def test_text_to_a_model_of_more_senses_is_exact(model_type: str, tmp_path: Path) -> None:
    native = whole_model(model_type)
    native = getattr(native, "thinker", native)  # what reads, of a model that speaks
    native.set_attn_implementation("eager")
    model = load(str(save_checkpoint(whole_model(model_type), tmp_path)), device="cpu", dtype="float32")
    prompt = MIXED.prompt(model)
    reference = dense.prefill(native, prompt.ids)[-1]

    for policy in ("full", "heads", "deviation", "hybrid", ASK):
        assert close(fused(model, prompt, policy=policy, ratio=1.0).logits, reference), policy
    hit = Case(PREFIX, PREFIX, "h", (A,), SUFFIX).prompt(model)
    has_states = bool(model.decoder.model_layers.states)  # which no record tells
    assert close(
        fused(model, hit, policy="prefix" if has_states else "reuse").logits, dense.prefill(native, hit.ids)[-1]
    )
    for policy, ratio in (("reuse", 0.0), ("heads" if has_states else "hybrid", 0.25), (ASK, 0.1)):
        found = fused(model, prompt, policy=policy, ratio=ratio)
        choice = chosen(model, prompt, policy=policy, ratio=ratio, found=found.report.stages)
        logits, recomputed = dense.blended(native, prompt.ids, MIXED.cached, choice=choice)
        assert list(found.report.stages[-1]) == recomputed
        assert close(found.logits, logits), policy
    assert_captures_alike(model)


def test_the_axes_of_positions_do_count_in_such_a_model() -> None:
    """Else the tests above would say nothing of them."""
    native = whole_model("qwen2_5_vl")
    alike = torch.arange(len(B)).expand(3, 1, -1)
    apart = alike + torch.tensor([0, 5, 9])[:, None, None] * (alike % 2)
    with torch.inference_mode():
        plain = native(torch.tensor([B])).logits
        first, second = (native(torch.tensor([B]), position_ids=each).logits for each in (alike, apart))
    assert close(first, plain)
    assert not close(second, plain)


def assert_captures_alike(model: LoadedModel) -> None:
    """The same record, whatever is captured with it: the same bits, or nearly where experts group otherwise."""
    [alone] = capture(model.decoder, PREFIX, chunks=[B])
    beside = capture(model.decoder, PREFIX, chunks=[A, B, C])[1]
    has_experts = any("xpert" in type(each).__name__ for each in model.decoder.model.modules())
    for one, other in zip(alone.layers, beside.layers, strict=True):
        for part in ("keys", "values") if one and other else ():
            a, b = getattr(one, part), getattr(other, part)
            assert np.allclose(a, b, atol=1e-4) if has_experts else np.array_equal(a, b)
