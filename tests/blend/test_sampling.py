"""Sampling against transformers' own processors and against the probabilities that it claims."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blend.engine.engine import EngineRequest
from blend.engine.sampling import Sampler, Sampling
from blend.errors import NotFinite, SamplingError
from blend.fuse.prompt import Prompt
from tests.blend.asking import Asked, engine
from tests.blend.dense import prefill
from tests.blend.families import draw, native, ours

CPU = torch.device("cpu")
PROMPT = (3, 1, 4, 1, 5, 900)  # 900 can be read but not predicted


def random_logits(seed: int, size: int = 24) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


def sampler(sampling: Sampling, prompt: Sequence[int] = ()) -> Sampler:
    return Sampler(sampling, prompt, device=CPU)


def run(sampling: Sampling, steps: int = 40) -> list[int]:
    chooser = sampler(sampling)
    return [chooser.pick(random_logits(step)).token for step in range(steps)]


def call(make: Callable[..., Sampling], field: str, *, value: object) -> Sampling:
    return make(**{field: value})


def processors(sampling: Sampling) -> hf.LogitsProcessorList:
    """Those of transformers, in its order."""
    theirs = hf.LogitsProcessorList([hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    theirs.append(hf.TemperatureLogitsWarper(sampling.temperature or 1.0))
    theirs.append(hf.TopKLogitsWarper(sampling.top_k or 1 << 20))
    theirs.append(hf.TopPLogitsWarper(sampling.top_p))
    theirs.append(hf.MinPLogitsWarper(sampling.min_p))
    return theirs


class Allow:
    """A processor that allows only some tokens, in place, and keeps what it was asked."""

    def __init__(self, allowed: Sequence[int]) -> None:
        self._allowed = list(allowed)
        self.asked: list[tuple[list[int], torch.dtype]] = []

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        self.asked.append((list(ids), logits.dtype))
        mask = torch.ones_like(logits, dtype=torch.bool)
        mask[self._allowed] = False
        return logits.masked_fill_(mask, -math.inf)


@pytest.mark.parametrize("size", [5, 1000, 150_000])
def test_greedy_takes_the_lowest_of_the_likeliest_ids(size: int) -> None:
    logits = torch.zeros(size)
    logits[[size - 1, size // 2, size - 2]] = 1
    assert sampler(Sampling()).pick(logits).token == size // 2


@pytest.mark.parametrize("penalty", [0.5, 1.3])
def test_the_repetition_penalty_is_that_of_transformers_over_prompt_and_answer(penalty: float) -> None:
    chooser, theirs = (
        sampler(Sampling(repetition_penalty=penalty), PROMPT),
        hf.RepetitionPenaltyLogitsProcessor(penalty),
    )
    for step in range(40):
        logits = random_logits(step)
        so_far = torch.LongTensor([[*PROMPT, *chooser.ids]])
        assert chooser.pick(logits).token == int(theirs(so_far, logits[None].clone()).argmax())
    assert len(set(chooser.ids)) < 40


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.6),
        Sampling(temperature=1.7, top_k=5),
        Sampling(temperature=0.9, top_p=0.7),
        Sampling(temperature=1.5, top_p=0.97),
        Sampling(temperature=1.0, top_p=0.01),
        Sampling(temperature=1.2, top_k=8, top_p=0.8),
        Sampling(temperature=1.1, top_k=100, top_p=0.9, repetition_penalty=1.8),
        Sampling(temperature=1.3, min_p=0.2),
        Sampling(temperature=0.8, min_p=1.0),
        Sampling(temperature=1.6, top_p=0.9, min_p=0.1),
        Sampling(temperature=1.5, top_k=9, top_p=0.95, min_p=0.15, repetition_penalty=1.4),
    ],
    ids=str,
)
def test_tokens_come_as_often_as_behind_the_processors_of_transformers(sampling: Sampling) -> None:
    draws, logits, theirs = 3000, random_logits(7), processors(sampling)
    wanted = theirs(torch.LongTensor([PROMPT]), logits[None].clone())[0].softmax(0)

    counts = torch.zeros(len(logits))
    for seed in range(draws):
        counts[sampler(replace(sampling, seed=seed), PROMPT).pick(logits).token] += 1
    assert int(counts[wanted == 0].sum()) == 0
    assert bool(((counts / draws - wanted).abs() <= 5 * (wanted * (1 - wanted) / draws).sqrt() + 1e-9).all())


def test_each_of_a_batch_is_drawn_as_transformers_processors_leave_it() -> None:
    base, [ids] = Sampling(max_tokens=12, ignore_eos=True), draw(5, 40)
    samplings = [
        replace(base, repetition_penalty=1.7),
        replace(base, temperature=1.0, top_k=3, seed=1),
        replace(base, temperature=1.2, min_p=0.6, seed=2),
        replace(base, temperature=1.5, top_k=8, min_p=0.3, repetition_penalty=1.3, seed=3),
    ]
    with engine(ours("llama")) as to:
        together = [Asked(to, EngineRequest(Prompt(ids, (), ids[:3]), each)) for each in samplings]
        answers = [asked.wait().ids for asked in together]

    for sampling, answer in zip(samplings, answers, strict=True):
        for at, token in enumerate(answer):
            before = [*ids, *ids[:3], *answer[:at]]
            left = processors(sampling)(torch.LongTensor([before]), prefill(native("llama"), before)[-1:])[0]
            allowed = left.isfinite().nonzero()[:, 0].tolist() if sampling.temperature else [int(left.argmax())]
            assert token in allowed
            assert len(allowed) <= 8


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 400),
    top_p=st.floats(0, 1, exclude_min=True),
    spread=st.sampled_from([0.01, 1.0, 10.0]),
    seed=st.integers(0, 99),
)
def test_no_token_comes_that_top_p_leaves_out(size: int, top_p: float, spread: float, seed: int) -> None:
    logits = random_logits(seed, size) * spread
    probabilities, order = logits.double().softmax(0).sort(descending=True)
    before = dict(zip(order.tolist(), (probabilities.cumsum(0) - probabilities).tolist(), strict=True))
    chooser = sampler(Sampling(temperature=1.0, top_p=top_p, seed=seed))
    for _ in range(20):
        assert before[chooser.pick(logits).token] < top_p + 1e-6


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**64 - 1])
def test_a_seed_gives_the_same_tokens_whatever_runs_beside_it(seed: int) -> None:
    sampling = Sampling(temperature=1.0, seed=seed)
    one, beside, other = sampler(sampling), sampler(Sampling(temperature=1.0)), sampler(sampling)
    for step in range(40):
        one.pick(random_logits(step))
        torch.rand(step)
        beside.pick(random_logits(step))
    for step in range(40):
        other.pick(random_logits(step))
    assert list(one.ids) == list(other.ids)


def test_other_seeds_and_no_seed_give_other_tokens() -> None:
    runs = [run(Sampling(temperature=1.5, seed=seed)) for seed in (1, 2, None, None)]
    assert all(one != other for index, one in enumerate(runs) for other in runs[:index])


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-3])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert run(Sampling(temperature=temperature)) == run(Sampling())


def test_log_probabilities_are_the_models_own() -> None:
    sampling = Sampling(logprobs=5, temperature=1.9, top_k=9, repetition_penalty=2.0, processor=Allow(range(20)))
    chooser = sampler(sampling, PROMPT)
    for step in range(10):
        logits = random_logits(step).bfloat16()
        wanted = logits.float().log_softmax(0)
        picked = chooser.pick(logits)
        best = wanted.topk(5)
        assert picked.logprob == float(wanted[picked.token])
        assert picked.top == tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def test_log_probabilities_come_only_where_asked_for_and_only_of_possible_tokens() -> None:
    logits = torch.tensor([0.0, -math.inf, 0.0])
    assert sampler(Sampling()).pick(logits).logprob is None
    alone, more = (sampler(Sampling(logprobs=count)).pick(logits) for count in (0, 20))
    assert alone.top == () and alone.logprob == pytest.approx(math.log(0.5))
    assert {token for token, _ in more.top} == {0, 2}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=2.0), Sampling(temperature=2.0, top_p=0.999)])
def test_a_processor_decides_what_may_come(sampling: Sampling) -> None:
    grammar = Allow([5, 17])
    chooser, logits = sampler(replace(sampling, processor=grammar)), random_logits(3).bfloat16()
    before = logits.clone()
    picked = [chooser.pick(logits).token for _ in range(50)]
    assert set(picked) <= {5, 17}
    assert grammar.asked == [(picked[:step], torch.float32) for step in range(50)]
    assert torch.equal(logits, before)


def test_the_logits_given_stay_as_they_are() -> None:
    logits = random_logits(0)
    chooser = sampler(Sampling(temperature=1.0, repetition_penalty=2.0, processor=Allow([1])), PROMPT)
    chooser.pick(logits)
    assert torch.equal(logits, random_logits(0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_end_the_request_and_name_the_token(bad: float, temperature: float) -> None:
    chooser = sampler(Sampling(temperature=temperature))
    chooser.pick(random_logits(0))
    logits = random_logits(1)
    logits[9] = bad
    with pytest.raises(NotFinite, match=rf"model gave a logit of {bad}, at generated token 2"):
        chooser.pick(logits)


def test_logits_that_allow_nothing_end_the_request() -> None:
    with pytest.raises(NotFinite, match="model allows no token"):
        sampler(Sampling()).pick(torch.full((8,), -math.inf))


def test_a_processor_that_allows_nothing_is_named() -> None:
    with pytest.raises(NotFinite, match=r"processor Allow allows no token.* generated token 1"):
        sampler(Sampling(processor=Allow([]))).pick(random_logits(0))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [0, -1, math.inf, math.nan]),
        ("temperature", [-0.1, 2.1, math.inf, math.nan]),
        ("top_p", [0.0, 1.1, -1.0, math.nan]),
        ("top_k", [-1, math.nan]),
        ("min_p", [-0.1, 1.1, math.nan]),
        ("seed", [2**64, -(2**63) - 1]),
        ("stop", [("",), ("a", ""), ("a",) * 17]),
        ("repetition_penalty", [0.0, -1.0, 11.0, math.inf, math.nan]),
        ("logprobs", [-1, 21]),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_name_and_value(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(SamplingError) as refused:
            call(Sampling, field, value=value)
        assert str(refused.value).startswith(f"{field} must be ") and repr(value) in str(refused.value)
