"""Contexts side by side, against a model of what is taken, and decoding over them against decoding one by one."""

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from transformers.masking_utils import causal_mask_function

from blend.adopt.load import LoadedModel
from blend.engine.engine import EngineRequest
from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import Prompt, TextSegment
from blend.run import decoder as decoder_module
from blend.run import joint_rows as joint_module
from blend.run.attention import Visibility
from blend.run.context import Context, LayerShape, Segment, span
from blend.run.joint_rows import attends_jointly, joint_rows
from blend.run.slabs import BESIDE, LEAST, SlabContext, Slabs
from tests.blend.as_on_gpu import calls, varlen
from tests.blend.asking import Asked, engine
from tests.blend.families import draw, ours
from tests.blend.fusing import Case

CPU = torch.device("cpu")
SHAPES = (LayerShape(2, 8, 2, 8), None, LayerShape(1, 8, 1, 8))
PREFIX, SUFFIX, *CHUNKS = draw(5, 9, 11, 40, 75, 3, 120, 60, 33)


def fresh(tokens: int) -> Context:
    return Context(SHAPES, capacity=tokens, dtype=torch.float32, device=CPU)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 3000) | st.none(), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_contexts_never_overlap_and_slabs_go_with_their_last(asked: list[int | None], random: Random) -> None:
    slabs, held = Slabs(fresh, most=4 * BESIDE * LEAST), list[SlabContext]()
    for tokens in asked:
        if tokens is None and held:
            held.pop(random.randrange(len(held)))
        elif tokens is not None:
            held.append(slabs.context(tokens))
        places = sorted((*each.place, each.capacity) for each in held)
        assert all(one[0] < other[0] or one[1] + one[2] <= other[1] for one, other in pairwise(places))
        assert {each.number for each in slabs._slabs} == {slab for slab, _, _ in places}  # pyright: ignore[reportPrivateUsage]
    for each in held:
        assert each.capacity == each.keys(0).shape[1] and each.layers == [0, 2]
        each.keys(0).fill_(each.place[1])
    assert all(bool((each.keys(0) == each.place[1]).all()) for each in held)


def test_a_slab_of_which_all_was_given_back_has_room_for_its_like() -> None:
    slabs = Slabs(fresh, most=4 * BESIDE * LEAST)
    contexts = [slabs.context(LEAST) for _ in range(BESIDE)]
    assert len({each.place[0] for each in contexts}) == 1
    del contexts[2:4]
    assert slabs.context(2 * LEAST).place[0] == contexts[0].place[0] != slabs.context(2 * LEAST + 1).place[0]


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this device had the call."""
    monkeypatch.setattr(joint_module, "varlen_attn", varlen)
    monkeypatch.setattr(decoder_module, "attends_jointly", lambda shapes, **more: True)  # pyright: ignore[reportUnknownLambdaType]
    calls.clear()


def requests(model: LoadedModel) -> list[EngineRequest]:
    """Prompts of all kinds, of different lengths."""
    cases = [Case(PREFIX, PREFIX, "ht", chunks, SUFFIX) for chunks in pairwise(CHUNKS)]
    prompts = [each.prompt(model) for each in cases]
    prompts += [Prompt(PREFIX, (TextSegment(each),), SUFFIX) for each in CHUNKS[3:]]
    sampling = Sampling(max_tokens=12, ignore_eos=True)
    return [EngineRequest(each, sampling, order=BlendOrder("reuse")) for each in prompts]


def answers(model: LoadedModel) -> Sequence[Sequence[int]]:
    with engine(model) as made:
        return [each.wait().ids for each in [Asked(made, request) for request in requests(model)]]


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma4", "llama4", "mistral-window"])
def test_requests_whose_rows_are_computed_by_one_call_answer_as_each_alone(
    name: str, request: pytest.FixtureRequest
) -> None:
    model = ours(name)
    model.decoder.record_layers(None)  # which needs no such call
    alone = answers(model)
    request.getfixturevalue("joint")
    assert answers(model) == alone
    assert max(calls) > 4, "no call had several rows"


@pytest.mark.usefixtures("joint")
def test_rows_that_see_keys_with_holes_go_one_by_one() -> None:
    slabs = Slabs(fresh, most=4 * BESIDE * LEAST)
    contexts = [slabs.context(10), slabs.context(20)]
    [group] = joint_rows([Segment(each, span(7, 8, device=CPU), row) for row, each in enumerate(contexts)])

    def seen(rule: Callable[..., Any]) -> list[list[int]] | None:
        rows = Visibility(rule, by_vmap=False).joint(group)
        return rows and [rows.begins.tolist(), rows.seen.tolist()]

    assert seen(causal_mask_function) == [[0, 10, 8192], [8, 8]]
    assert seen(lambda batch, head, row, key: (key <= row) & (key > row - 3)) == [[5, 15, 8192], [3, 3]]
    assert seen(lambda batch, head, row, key: (key <= row) & (key != 4)) is None
    assert seen(lambda batch, head, row, key: key < row) is None


@pytest.mark.usefixtures("joint")
def test_rows_that_lie_elsewhere_go_one_by_one() -> None:
    slabs, own = Slabs(fresh, most=4 * BESIDE * LEAST), fresh(10)
    first, second = slabs.context(10), slabs.context(20)

    def segments(*contexts: Context, rows: int = 1) -> list[Segment]:
        slots = span(3, 3 + rows, device=CPU)
        return [Segment(each, slots, number * rows) for number, each in enumerate(contexts)]

    assert len(joint_rows(segments(first, second))) == 1
    for some in (segments(second, first), segments(first), segments(first, own), segments(first, first)):
        assert joint_rows(some) == []
    assert joint_rows(segments(first, second, rows=2)) == []


def test_a_cpu_attends_one_by_one() -> None:
    assert not attends_jointly(SHAPES, heads=4, dtype=torch.bfloat16, device=CPU)
    assert ours("llama").decoder.slabs(1 << 20) is None


@pytest.mark.usefixtures("joint")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_call_that_sees_a_key_too_many_or_too_few_is_not_taken(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agrees() -> list[bool]:
        shapes = LayerShape(2, 64, 2, 64), LayerShape(2, 128, 2, 128), LayerShape(1, 256, 1, 256)
        return [joint_module._agrees(each, heads=8, dtype=dtype, device=CPU) for each in shapes]  # pyright: ignore[reportPrivateUsage]

    assert agrees() == [True] * 3
    for off in (-1, 1):

        def wrong(*tensors: Any, seqused_k: Tensor, off: int = off, **named: Any) -> Tensor:  # noqa: ANN401
            return varlen(*tensors, seqused_k=seqused_k + off, **named)

        monkeypatch.setattr(joint_module, "varlen_attn", wrong)
        assert agrees() == [False] * 3


@pytest.mark.skipif(
    not torch.cuda.is_available() or "enable_gqa" not in inspect.signature(varlen_attn).parameters,
    reason="no CUDA device, or a torch whose call knows no groups",
)
def test_a_gpu_attends_several_contexts_by_one_call() -> None:
    shapes = [LayerShape(8, 128, 8, 128), LayerShape(2, 64, 2, 64)]
    assert attends_jointly(shapes, heads=16, dtype=torch.bfloat16, device=torch.device("cuda"))
