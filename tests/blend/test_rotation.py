"""Rotation against complex numbers in float64."""

import pytest
import torch
from torch import Tensor

from blend.place.rotation import Angles, Rotation, candidates, read_angles, rotate_into, unrotate

POSITIONS = torch.arange(7, 40, dtype=torch.float64)


def angles(pairs: int, scale: float) -> tuple[Angles, Tensor]:
    """As a layer gets them, and as complex numbers."""
    frequencies = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    turns = scale * torch.exp(1j * POSITIONS[:, None] * frequencies)
    return Angles(turns.real.float(), turns.imag.float()), turns


@pytest.mark.parametrize("rotation", [each for each in candidates(16, 4) if each])
@pytest.mark.parametrize("scale", [1.0, 1.35])
def test_a_pair_is_a_complex_number_that_is_multiplied(rotation: Rotation, scale: float) -> None:
    keys = torch.randn(2, len(POSITIONS), 16, generator=torch.Generator().manual_seed(3))
    given, turns = angles(4, scale)
    places = range(rotation.start, rotation.start + 8)
    pairs = [
        (places[n], places[n + 4]) if rotation.pairing == "halves" else places[2 * n : 2 * n + 2] for n in range(4)
    ]
    expected = keys.double().clone()
    for number, (first, second) in enumerate(pairs):
        turn = turns[:, number] if rotation.sign > 0 else turns[:, number].conj()
        turned = torch.complex(expected[..., first].clone(), expected[..., second].clone()) * turn
        expected[..., first], expected[..., second] = turned.real, turned.imag

    out = torch.empty_like(keys)
    rotate_into(out, keys, rotation=rotation, angles=given)

    assert torch.allclose(out.double(), expected, atol=1e-5)
    assert torch.allclose(unrotate(out, rotation, angles=given), keys, atol=1e-5)


def test_no_rotation_copies() -> None:
    keys = torch.randn(2, 5, 8)
    out = torch.empty_like(keys)
    given, _ = angles(4, 1.0)
    rotate_into(out, keys, rotation=None, angles=given)

    assert torch.equal(out, keys)


@pytest.mark.parametrize("form", ["once", "halves", "neighbours", "complex"])
def test_angles_are_read_in_every_form_that_layers_get(form: str) -> None:
    expected, turns = angles(4, 1.0)
    doubled = {
        "once": lambda x: x,
        "halves": lambda x: torch.cat([x, x], -1),
        "neighbours": lambda x: x.repeat_interleave(2, -1),
    }
    given: object = turns[None]
    if form != "complex":
        given = (doubled[form](expected.cos)[None], doubled[form](expected.sin)[None])
    found = read_angles(given)

    assert found is not None
    assert torch.allclose(found.cos, expected.cos)
    assert torch.allclose(found.sin, expected.sin)


def test_angles_of_several_axes_are_not_read() -> None:
    assert read_angles((torch.ones(3, 1, 5, 8), torch.ones(3, 1, 5, 8))) is None
    assert read_angles(None) is None
