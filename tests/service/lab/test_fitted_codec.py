"""`kvweave eval --fit-codec`: bits go where they save most, within the bytes of the codec that is named."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from service import cli
from service.app.operating_point import OperatingPoint
from service.lab.eval import policy_choice
from service.lab.eval.case_probe import CaseProbe
from service.lab.eval.fitted_codec import COARSE, WHOLE, CodecFitting, Stretch, dealt, joined
from service.lab.questions.suites import Draw, multihop
from store.codec.spec import BITS, KVBits, Spec
from tests.service.lab.test_evaluate import folder, tiny

__all__ = ["folder"]

EACH = st.sampled_from([float(each) for each in BITS])
COSTS = st.tuples(st.floats(1e-9, 1.0), st.floats(1e-9, 1.0))
MANY = st.tuples(st.sampled_from([32, 64]), st.sampled_from([32, 64]))


@given(st.lists(st.builds(KVBits, EACH, EACH), min_size=1, max_size=12))
def test_bits_by_layer_are_read_as_they_are_joined(bits: list[KVBits]) -> None:
    spec = Spec.parse(joined(bits))
    assert [spec.bits(layer) for layer in range(len(bits))] == bits


@given(st.lists(st.tuples(COSTS, MANY), min_size=1, max_size=8), st.floats(3.0, 8.0))
def test_bits_take_no_more_room_than_there_is(
    parts: list[tuple[tuple[float, float], tuple[int, int]]], wanted: float
) -> None:
    stretches = [Stretch(range(at, at + 1), *each) for at, each in enumerate(parts)]
    size = wanted * sum(sum(numbers) for _, numbers in parts)
    bits = dealt(stretches, size, levels=WHOLE)
    taken = sum(
        each * many
        for pair, (_, numbers) in zip(bits, parts, strict=True)
        for each, many in zip(pair, numbers, strict=True)
    )
    assert taken <= size


@given(st.lists(COSTS, min_size=1, max_size=8), st.sampled_from([3.0, 4.0, 5.0, 6.0]))
def test_they_cost_no_more_than_the_same_for_all(costs: list[tuple[float, float]], wanted: float) -> None:
    stretches = [Stretch(range(at, at + 1), each, (64, 64)) for at, each in enumerate(costs)]
    bits = dealt(stretches, wanted * 128 * len(costs), levels=WHOLE)
    lost = sum(
        cost * 4.0**-each for pair, two in zip(bits, costs, strict=True) for each, cost in zip(pair, two, strict=True)
    )
    assert lost <= sum(map(sum, costs)) * 4.0**-wanted * (1 + 1e-9)


def test_costs_are_what_the_probe_tells_of_one_part_alone() -> None:
    cases = multihop(seed=5, size=2, drawn=Draw(level=1))
    fitting, asked = CodecFitting(tiny(), cases, answer_tokens=2), list[int]()
    probe = CaseProbe(tiny(), answer_tokens=2)
    try:
        found = fitting.run(["q4", "lossless", "q6@1-q3"], asked.append)
        costs = fitting._costs(lambda _: None)
        coarse = f"k{COARSE:g}v8@1-q8"
        points = [OperatingPoint("reuse", 0.0, codec) for codec in ("lossless", coarse)]
        told = [probe.measure(case, points).outcomes[points[1]].codec for case in cases]
    finally:
        fitting.close()
        probe.close()
    assert asked == list(range(1, fitting.rounds + 1))
    assert found.keys() == {"q4"}
    assert costs[0, "k"] == pytest.approx(sum(each.kl for each in told if each) / 2, rel=1e-3)
    numbers = [each for shape in tiny().decoder.model_layers.shapes for each in (shape,) if each]
    spec = Spec.parse(found["q4"])
    given_bits = [spec.bits(layer) for layer in range(len(numbers))]
    total = sum(bits.keys + bits.values for bits in given_bits if bits)
    assert 0 < total <= 4.0 * 2 * len(numbers)


def test_the_command_fits_on_one_half_and_compares_and_keeps_the_codec(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_choice, "LEAST", 2)
    file = tmp_path / "k.toml"
    drawn = ["--n", "4", "--difficulty", "1", "--answer-tokens", "2", "--bound", "1", "--yardsticks", "1000", "--json"]
    compared = ["--model", str(folder), "--policies", "full,ask", "--ratios", "0.1", "--codecs", "lossless,q4"]
    result = CliRunner().invoke(
        cli.app, ["eval", *drawn, *compared, "--fit-codec", "--save", str(file)], catch_exceptions=False
    )

    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert {row["n"] for row in rows} == {2}
    fitted = rows[-1]["codec"]
    assert fitted != "q4" and Spec.parse(fitted).text == fitted
    kept = tomllib.loads(file.read_text())
    assert kept["policy"] == "full" or kept["codec"] in {"lossless", fitted}
