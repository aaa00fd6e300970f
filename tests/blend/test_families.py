"""Every family against transformers itself: prefill, exact hits, relocation, blending with an explicit mask."""

import copy
import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig

from blend.adopt.load import adopt
from blend.capture.capture import capture
from blend.fuse.prompt import ChunkSegment, Prompt, TextSegment
from blend.run import attention
from blend.run.model_layers import LayerRule
from store.rows import plain_rows
from tests.blend import dense
from tests.blend.families import BASE, FAMILIES, HYBRIDS, OTHERS, WINDOW, build, draw, halved, native, ours, put, words
from tests.blend.fusing import ASK, Case, chosen, close, fused, off, source

OTHER_POLICIES = [("reuse", 0.0), ("heads", 0.2), ("deviation", 0.3), ("hybrid", 0.25)]
ASKING = [ASK, "ask/check=2/times=3", "ask/rows=question/layers=1+2/check=1/times=2"]
POINTS = [*OTHER_POLICIES, *((rule, ratio) for rule in ASKING for ratio in (0.1, 0.5))]
WITHOUT_CHECK = [point for point in POINTS if point[0] in ("reuse", "heads", ASK)]
ALL = [*FAMILIES, *OTHERS]
BY_ROWS = [*ALL, *HYBRIDS]  # what of them is the same for models that keep states
PREFIX, OTHER_PREFIX, A, B, C, GAP, SUFFIX = draw(3, 9, 14, 40, 33, 21, 5, 11)
MIXED = Case(OTHER_PREFIX, PREFIX, "hthmth", (A, GAP, B, C, GAP, C), SUFFIX)


@cache
def mixed(name: str) -> Prompt:
    """One prompt of a family for all tests, as a store has its records."""
    return MIXED.prompt(ours(name))


@pytest.mark.parametrize("name", BY_ROWS)
def test_ratio_one_and_full_are_a_full_prefill(name: str) -> None:
    prompt = mixed(name)
    reference = dense.prefill(native(name), prompt.ids)[-1]

    for policy in ("full", "heads", "deviation", "hybrid", ASK):
        assert close(fused(ours(name), prompt, policy=policy, ratio=1.0).logits, reference), policy


@pytest.mark.parametrize("name", BY_ROWS)
@pytest.mark.parametrize("start", [len(PREFIX), 200, 1500])
def test_relocation_is_a_native_prefill_at_that_position(name: str, start: int) -> None:
    decoder = ours(name).decoder
    [record] = capture(decoder, PREFIX, chunks=[B])
    context = decoder.context(start + len(B))
    expected = dense.chunk_kv(native(name), dense.Cached(start, PREFIX, B))

    for layer in decoder.model_layers.keeping:
        stored, right = record.layers[layer], expected[layer]
        assert stored is not None and right is not None
        where = np.array([(start, start + len(B))], np.int64)
        decoder.place(context, [layer], stored=plain_rows([stored]), slots=where)
        assert off(context.keys(layer)[:, start:], right[0]) < 2e-4
        assert off(context.values(layer)[:, start:], right[1]) < 2e-4


@pytest.mark.parametrize(
    ("name", "policy", "ratio"),
    [
        *((name, *point) for name in ALL for point in POINTS),
        # A check ends a stage, and layers that keep states had other rows before it: no dense pass has that.
        *((name, *point) for name in HYBRIDS for point in WITHOUT_CHECK),
    ],
)
def test_hits_and_misses_equal_dense_attention_with_an_explicit_mask(name: str, policy: str, ratio: float) -> None:
    prompt = mixed(name)
    found = fused(ours(name), prompt, policy=policy, ratio=ratio)

    choice = chosen(ours(name), prompt, policy=policy, ratio=ratio, found=found.report.stages)
    logits, recomputed = dense.blended(native(name), prompt.ids, MIXED.cached, choice=choice)

    assert list(found.report.stages[-1]) == recomputed
    assert close(found.logits, logits)


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("ratio", [0.1, 0.6])
def test_what_is_replayed_enters_layers_with_states_as_it_was_captured(name: str, ratio: float) -> None:
    model, prompt = ours(name), mixed(name)
    layers = model.decoder.model_layers
    if not layers.stretches:
        assert not layers.states.isdisjoint(layers.keeping)
        return
    choice = chosen(model, prompt, policy="replay", ratio=ratio)
    dense_logits = dense.replayed(native(name), prompt.ids, MIXED.cached, choice=choice, layers=layers.inputs)

    for size in (7, 1024):
        found = fused(model, prompt, policy="replay", ratio=ratio, piece_rows=size)
        assert found.report.recomputed == 0
        assert close(found.logits, dense_logits)
    assert not close(fused(model, prompt, policy="reuse").logits, dense_logits)


@pytest.mark.parametrize("sizes", [(7,), pytest.param((1, 32), marks=pytest.mark.long)])
@pytest.mark.parametrize(("name", "policy"), halved(BY_ROWS, ["hybrid", *ASKING]))
def test_row_pieces_of_any_size_equal_one_piece(name: str, policy: str, sizes: tuple[int, ...]) -> None:
    prompt = mixed(name)
    whole = fused(ours(name), prompt, policy=policy, ratio=0.3)

    for size in sizes:
        pieces = fused(ours(name), prompt, policy=policy, ratio=0.3, piece_rows=size)
        assert pieces.report.stages[-1] == whole.report.stages[-1]
        assert close(pieces.logits, whole.logits)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_rows_that_ask_do_so_in_blocks_of_any_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = mixed(name)
    whole = fused(ours(name), prompt, policy=ASK, ratio=0.3)
    for scores in (1, 3 * 8 * len(prompt.ids)):  # of one row, and of a few
        monkeypatch.setattr(attention, "PROBED_NUMBERS", (scores, scores))
        assert fused(ours(name), prompt, policy=ASK, ratio=0.3).report.stages == whole.report.stages


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("policy", ["reuse", ASK])
def test_what_followed_a_chunk_is_reused_where_it_follows_again(name: str, policy: str) -> None:
    model, head = ours(name), SUFFIX[:3]
    chunks = [
        ChunkSegment(ids, source(model, PREFIX, ids, tail=tail))
        for ids, tail in ((A, GAP), (B, GAP), (A, GAP), (C, head))
    ]
    between = (TextSegment(GAP), TextSegment(GAP[:-1]))  # another end: not what was captured
    prompt = Prompt(OTHER_PREFIX, (chunks[0], between[0], chunks[1], between[1], *chunks[2:]), SUFFIX)
    cached, place = list[dense.Cached](), len(OTHER_PREFIX)
    covered = {0: (*A, *GAP), 2: B, 4: A, 5: (*C, *head)}
    for number, segment in enumerate(prompt.segments):
        if number in covered:
            cached.append(dense.Cached(place, PREFIX, covered[number]))
        place += len(segment.ids)
    found = fused(model, prompt, policy=policy, ratio=0.2)

    choice = chosen(model, prompt, policy=policy, ratio=0.2, found=found.report.stages)
    logits, recomputed = dense.blended(native(name), prompt.ids, cached, choice=choice)
    assert close(found.logits, logits)
    assert list(found.report.stages[-1]) == recomputed
    report = found.report
    assert report.reused + report.recomputed == sum(map(len, covered.values()))


def test_the_tests_would_notice_blending_that_does_nothing() -> None:
    """Reuse differs from a full prefill by far more than the tolerance, and windows are shorter than chunks."""
    for name in ALL:
        prompt = mixed(name)
        reference = dense.prefill(native(name), prompt.ids)[-1]
        assert off(fused(ours(name), prompt, policy="reuse").logits, reference) > 1e-2, name
    assert len(B) > WINDOW


def test_a_record_behind_another_prefix_is_not_exact() -> None:
    case = dataclasses.replace(MIXED, pattern="h", parts=(A,))

    report = fused(ours("llama"), case.prompt(ours("llama")), policy="hybrid", ratio=0.2).report

    assert report.recomputed == 8


@pytest.mark.parametrize(("ratio", "rows"), [(0.1, 33), (0.4, 1024)])
def test_a_deep_model_narrows_its_rows_in_steps(ratio: float, rows: int) -> None:
    deep = build(Gemma3TextConfig(**{**BASE, "num_hidden_layers": 14}, query_pre_attn_scalar=8, sliding_window=WINDOW))
    deep.set_attn_implementation("eager")
    model = adopt(put(copy.deepcopy(deep)), words())
    prompt = MIXED.prompt(model)
    found = fused(model, prompt, policy="hybrid", ratio=ratio, piece_rows=rows)

    choice = chosen(model, prompt, policy="hybrid", ratio=ratio, found=found.report.stages)
    logits, recomputed = dense.blended(deep, prompt.ids, MIXED.cached, choice=choice)
    assert len(choice.filters) == 3
    assert list(found.report.stages[-1]) == recomputed
    assert close(found.logits, logits)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_shallow_model_with_few_words_and_a_small_window_works(layers: int) -> None:
    small = {"num_hidden_layers": layers, "vocab_size": 40, "max_position_embeddings": 200}
    shallow = build(LlamaConfig(**{**BASE, **small}))
    shallow.set_attn_implementation("eager")
    model = adopt(put(copy.deepcopy(shallow)), words())
    parts = tuple(tuple(each % 40 for each in part) for part in (A, B, C))
    case = Case(tuple(each % 40 for each in OTHER_PREFIX), (), "hhh", parts, (9, 8, 7))
    prompt = case.prompt(model)

    for policy in ("reuse", "deviation", "hybrid", ASK):
        found = fused(model, prompt, policy=policy, ratio=0.3)
        choice = chosen(model, prompt, policy=policy, ratio=0.3, found=found.report.stages)
        logits, _ = dense.blended(shallow, prompt.ids, case.cached, choice=choice)
        assert close(found.logits, logits)
    if layers == 1:  # its keys know no context: a cache is exact
        assert close(fused(model, prompt, policy="reuse").logits, dense.prefill(shallow, prompt.ids)[-1])


def test_layers_without_positions_need_no_angles() -> None:
    """Some models hand such layers none."""
    plain = native("smollm3")
    module = put(copy.deepcopy(plain))

    def hand_nothing(
        layer: torch.nn.Module, args: tuple[object, ...], given: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        return args, {**given, "position_embeddings": None}

    module.get_submodule("model.layers.2").register_forward_pre_hook(hand_nothing, with_kwargs=True)
    attention = module.get_submodule("model.layers.2.self_attn")
    inner = attention.forward
    ones = (torch.ones(1, 1, 8), torch.zeros(1, 1, 8))
    attention.forward = lambda *args, **given: inner(*args, **{**given, "position_embeddings": ones})
    model = adopt(module, words())
    prompt = MIXED.prompt(model)

    assert model.decoder.model_layers.rules[2] == LayerRule(None, None, 2)
    logits, _ = dense.blended(plain, prompt.ids, MIXED.cached, choice=chosen(model, prompt, policy="reuse", ratio=0.0))
    assert close(fused(model, prompt, policy="reuse").logits, logits)
