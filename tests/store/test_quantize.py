"""Steps, and what they are shared by; `test_codec.py` holds the errors of whole records to their bounds."""

import numpy as np
import pytest

from store.codec.quantize import KEYS, VALUES, quantize, step_sizes

LOUD = np.exp2(np.array([-12, -4, -2, 0, 2, 4, 12], np.float32))  # the fourth is the median


def steps(bits: float, *, axis: int) -> np.ndarray:
    """The steps of seven channels of keys, or tokens of values, that are alike but for their loudness."""
    one = np.random.default_rng(0).standard_normal((2, 64 if axis == KEYS else 1, 1 if axis == KEYS else 64))
    loud = LOUD[None, None, :] if axis == KEYS else LOUD[None, :, None]
    return step_sizes(quantize((one * loud).astype(np.float32), bits, axis=axis).places).reshape(2, -1)


@pytest.mark.parametrize("axis", [KEYS, VALUES])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_whole_bits_make_steps_that_are_as_far_apart_as_what_they_reach_over(bits: int, axis: int) -> None:
    octaves = np.log2(steps(bits, axis=axis))
    assert octaves - octaves[:, 3:4] == pytest.approx(np.broadcast_to(np.log2(LOUD), (2, 7)), abs=1 / 8)


@pytest.mark.parametrize("axis", [KEYS, VALUES])
@pytest.mark.parametrize("bits", [1.5, 2.3, 2.9])
def test_bits_between_bring_steps_half_as_near_to_each_other_within_16_levels(bits: float, axis: int) -> None:
    octaves = np.log2(steps(bits, axis=axis))
    loud = np.log2(LOUD)
    wanted = np.clip(loud / 2, loud - min(1, 3 - bits), loud + 1)
    assert octaves - octaves[:, 3:4] == pytest.approx(np.broadcast_to(wanted, (2, 7)), abs=1 / 8)
