"""Any prompt, any policy: against dense attention with an explicit mask, and against a full prefill."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3_5TextConfig

from blend.adopt.load import adopt
from blend.fuse.fuse import BlendOrder, fuse
from blend.fuse.prompt import ChunkSegment
from blend.run.context import Context
from store.record_source import HeldRecord
from store.rows import StoredRows, joined, plain_rows
from tests.blend import dense
from tests.blend.families import BASE, LINEAR, build, draw, native, ours, put, words
from tests.blend.fusing import READERS, Case, chosen, close, fused, layout

FAMILIES = ("llama", "mistral-window", "gemma3", "smollm3", "llama4", "gemma4")  # windows of 24, mixed layers, sharing
LENGTHS = st.integers(1, 300)


@st.composite
def cases(draw_from: st.DrawFn) -> Case:
    pattern = draw_from(st.text("hhhmt", min_size=0, max_size=5))
    seed = draw_from(st.integers(0, 10**6))
    lengths = [draw_from(LENGTHS if kind != "t" else st.integers(1, 9)) for kind in pattern]
    suffixes = st.one_of(st.integers(1, 20), st.integers(100, 200))  # a question has 128 rows that ask, at most
    sizes = [draw_from(st.integers(0, 20)), draw_from(st.integers(0, 20)), draw_from(suffixes), *lengths]
    prefix, behind, suffix, *parts = draw(seed, *sizes)
    if draw_from(st.booleans()):
        behind = prefix
    return Case(prefix, behind, pattern, tuple(parts), suffix, draw_from(st.sampled_from((0, 7, 150, 1000))))


LAST_ROW = "ask/layers=1+2/check=2/times=3"
CHECKED = "ask/rows=question/layers=0+3/check=1/times=2"
POLICIES = ("reuse", "heads", "deviation", "hybrid", "ask", LAST_ROW, CHECKED)
RATIOS = st.one_of(st.sampled_from((0.0, 1.0)), st.floats(0, 1))


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from(FAMILIES), st.sampled_from(POLICIES), RATIOS)
def test_a_fuse_is_dense_attention_over_what_was_cached(case: Case, name: str, policy: str, ratio: float) -> None:
    model, prompt = ours(name), case.prompt(ours(name))
    found = fused(model, prompt, policy=policy, ratio=ratio, piece_rows=97)
    report = found.report

    assert report.reused + report.recomputed + report.fresh == len(prompt.ids)
    exact = case.pattern[:1] == "h" and case.captured_behind == case.prefix
    lengths = [len(chunk.ids) for chunk in case.cached[int(exact) :]]
    blended = sum(lengths)
    budget = 0 if policy == "reuse" else math.ceil(ratio * blended)
    if policy.startswith("ask") and budget:
        budget = min(blended, max(4, budget))
    short = sum(each for each in lengths if each <= 48)
    if policy == "ask" and 0 < budget < blended and short <= max(budget, 256):  # all of the short ones, or none
        budget = min(blended, max(budget, short + 4))
        budget = blended if short and 2 * budget >= blended else budget
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


class Torn(HeldRecord):
    """A record whose layers cannot be read from one on, or say nothing that is a number."""

    def __init__(self, held: HeldRecord, first: int, fault: str) -> None:
        super().__init__(held._record, held.fingerprint)  # pyright: ignore[reportPrivateUsage]
        self._first = first
        self._fault = fault

    def rows(self, layers: range, of: Sequence[Self], *, threads: int = 1) -> StoredRows:
        found, begin = list[StoredRows](), layers.start
        for each in of:
            kept = [*each._record.layers[begin : layers.stop]]
            for layer in range(max(begin, each._first), layers.stop):
                if each._fault == "torn":
                    raise OSError("torn")
                one = kept[layer - begin]
                kept[layer - begin] = one and replace(one, values=np.full_like(one.values, np.nan))
            found.append(plain_rows(kept))
        return joined(found)


@pytest.mark.parametrize("fault", ["torn", "not finite"])
def test_what_enters_a_layer_and_cannot_be_read_is_computed_from_its_text(fault: str) -> None:
    kinds = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
    model = adopt(put(build(Qwen3_5TextConfig(**BASE, **{**LINEAR, "layer_types": kinds}))), words())
    prefix, a, b, suffix = draw(5, 9, 40, 33, 11)
    [layer] = model.decoder.model_layers.inputs
    assert layer > model.decoder.model_layers.keeping[-1], "keys and values are read before"
    prompt = Case(prefix, (), "hh", (a, b), suffix).prompt(model)
    last = prompt.segments[-1]
    assert isinstance(last, ChunkSegment) and isinstance(last.source, HeldRecord)
    torn = replace(prompt, segments=(prompt.segments[0], ChunkSegment(b, Torn(last.source, layer, fault))))
    found = fused(model, torn, policy="replay", ratio=0.3)

    kept = () if fault == "not finite" else prompt.segments[:1]  # nobody knows which of them it was
    text = replace(prompt, segments=(*(kept or [ChunkSegment(a)]), ChunkSegment(b)))
    assert close(found.logits, fused(model, text, policy="replay", ratio=0.3).logits)
    assert {number for number, _ in found.report.misses} == ({1} if kept else {0, 1})
    assert fused(model, torn, policy="reuse").report.misses == (), "who replays nothing reads nothing of it"


@dataclass
class Watched:
    """The first keys and values of each layer when it was said to be final; `again`: how often that was taken back."""

    context: Context
    tokens: int
    again: int = 0
    seen: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, tuple[Tensor, Tensor]])

    def final(self, layer: int) -> None:
        keys, values = self.context.seen(layer, self.tokens)
        assert layer not in self.seen
        self.seen[layer] = (keys.clone(), values.clone())

    def start_again(self) -> None:
        self.again += 1
        assert len(self.seen) < len(self.context.layers), "whoever has all goes on with them"
        self.seen.clear()


@settings(max_examples=24, deadline=None)
@given(
    cases(),
    st.sampled_from(FAMILIES),
    st.sampled_from(("full", "prefix", *POLICIES)),
    st.sampled_from((7, 97, 1024)),
    st.one_of(st.none(), st.tuples(st.integers(0, 5), st.sampled_from(("torn", "not finite")))),
)
def test_a_layer_that_is_final_changes_no_more_but_for_the_last_token(
    case: Case, name: str, policy: str, piece_rows: int, torn: tuple[int, str] | None
) -> None:
    model, prompt = ours(name), case.prompt(ours(name))
    held = [each for each in prompt.segments if isinstance(each, ChunkSegment) and isinstance(each.source, HeldRecord)]
    if torn is not None and held:
        assert isinstance(held[-1].source, HeldRecord)
        broken = replace(held[-1], source=Torn(held[-1].source, *torn))
        prompt = replace(prompt, segments=tuple(broken if each is held[-1] else each for each in prompt.segments))
    placed = layout(model, prompt)
    watched = Watched(model.decoder.context(len(placed.ids)), len(placed.ids) - 1)
    order = BlendOrder(policy, 0.3, piece_rows=piece_rows, final=watched.final, again=watched.start_again)
    found = fuse(model.decoder, placed, context=watched.context, order=order, readers=READERS)

    assert [*watched.seen] == model.decoder.model_layers.keeping
    for layer, (keys, values) in watched.seen.items():
        now = watched.context.seen(layer, watched.tokens)
        for one, other in zip((keys, values), now, strict=True):  # bit by bit: what no window shows may be no number
            assert torch.equal(one.view(torch.int32), other.view(torch.int32))
    assert watched.again == len(
        {miss.reason for _, miss in found.report.misses if miss.detail in ("torn", "not finite")}
    )
