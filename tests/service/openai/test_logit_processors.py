"""Penalties and biases: what they add and take away, token by token."""

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from service.errors import Invalid
from service.model.logit_processors import LogitBias, Penalties, chained

V = 11


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, V - 1), max_size=30), st.floats(-2, 2), st.floats(-2, 2))
def test_penalties_count_what_the_answer_holds(ids: list[int], frequency: float, presence: float) -> None:
    """As OpenAI writes it: mu[j] - c[j] * frequency - (c[j] > 0) * presence, at every step of the answer."""
    penalties = Penalties(frequency=frequency, presence=presence)
    for stop in range(len(ids) + 1):
        counts = Counter(ids[:stop])
        wanted = [7.0 - counts[token] * frequency - (counts[token] > 0) * presence for token in range(V)]
        assert torch.allclose(penalties(ids[:stop], torch.full((V,), 7.0)), torch.tensor(wanted), atol=1e-4)


def test_a_bias_is_added_to_its_token_alone() -> None:
    bias = LogitBias({3: 5.0, 7: -100.0})
    for _ in range(2):
        assert bias([], torch.zeros(V)).tolist() == [0, 0, 0, 5, 0, 0, 0, -100, 0, 0, 0]


def test_a_bias_on_a_token_that_is_not_there_is_refused() -> None:
    with pytest.raises(Invalid, match="no token 11, the model has 11") as refusal:
        LogitBias({V: 1.0})([], torch.zeros(V))
    assert refusal.value.field == "logit_bias"


def test_what_one_forbids_no_other_lifts() -> None:
    def only_two(ids: Sequence[int], logits: Tensor) -> Tensor:
        del ids
        return torch.where(torch.arange(V) == 2, logits, -torch.inf)

    chain = chained(LogitBias({5: 100.0}), None, Penalties(frequency=2.0, presence=2.0), only_two)
    assert chain is not None
    assert chain([2, 2], torch.zeros(V)).argmax() == 2
    assert chain([2, 2], torch.zeros(V)).isfinite().sum() == 1
    assert chained(None, None) is None
    assert chained(None, only_two) is only_two
