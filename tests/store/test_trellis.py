"""Codes of a trellis: against all paths there are, and against steps that cost as much."""

from itertools import product

import numpy as np
import pytest

from store.codec.trellis import FURTHEST, LEVELS, THRIFT, trellis_codes
from store.rows import trellis_levels

ONE = np.ones((1, 1, 1), np.float32)


def levels_of(x: np.ndarray, weights: np.ndarray = ONE) -> np.ndarray:
    """What is read of x (H, T, D), in the middle of each level."""
    codes = trellis_codes(x.astype(np.float32), weights.astype(np.float32))
    return trellis_levels(codes.transpose(1, 0, 2)).transpose(1, 0, 2) + 0.5


def drawn(seed: int, *, heads: int = 3, tokens: int = 70, dim: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).normal(LEVELS / 2, 2.2, (heads, tokens, dim)).clip(0, LEVELS)


def entropy(codes: np.ndarray) -> float:
    share = np.unique(codes, return_counts=True)[1] / codes.size
    return float(-(share * np.log2(share)).sum())


@pytest.mark.parametrize("seed", range(20))
def test_no_path_costs_less(seed: int) -> None:
    random = np.random.default_rng(seed)
    tokens = 4
    x = random.uniform(0, LEVELS, (1, tokens, 1))
    weights = random.uniform(0.1, 1, (1, tokens, 1))
    every = trellis_levels(np.array([*product(range(8), repeat=tokens)], np.uint8).T) + 0.5
    allowed = (np.abs(every - x[0]) <= FURTHEST).all(axis=0)

    def costs(paths: np.ndarray) -> np.ndarray:
        return (weights[0] * (paths - x[0]) ** 2 + THRIFT * (paths - LEVELS / 2) ** 2).sum(axis=0)

    assert costs(levels_of(x, weights)[0]) == pytest.approx(costs(every)[allowed].min(), rel=1e-5)


@pytest.mark.parametrize("edge", [0, LEVELS, None])
def test_no_number_is_far_from_its_level(edge: float | None) -> None:
    random = np.random.default_rng(7)
    x = random.uniform(0, LEVELS, (4, 127, 16)) if edge is None else np.full((2, 65, 3), edge)
    assert np.abs(levels_of(x) - x).max() <= FURTHEST + 1e-6


def test_channels_know_nothing_of_each_other() -> None:
    x = drawn(1)
    whole = levels_of(x)
    assert (levels_of(x[1:2, :, 3:5]) == whole[1:2, :, 3:5]).all()


def test_it_misses_by_a_fifth_less_than_plain_steps_of_its_size() -> None:
    """Squared, where a bit of entropy is worth a factor of four, as it is for normal numbers."""
    x = drawn(2, heads=16, tokens=96, dim=64)
    plain = np.floor(x / 2)
    codes = trellis_codes(x.astype(np.float32), ONE)
    error = ((levels_of(x) - x) ** 2).mean() * 4 ** entropy(codes)
    assert error < 4 / 5 * ((plain * 2 + 1 - x) ** 2).mean() * 4 ** entropy(plain)


def test_whatever_lies_in_a_byte_is_a_level() -> None:
    random = np.random.default_rng(3)
    assert trellis_levels(random.integers(0, 256, (50, 40), np.uint8)).max() < LEVELS
