"""`kvweave eval --fit`: what it finds, that it sees half of the questions alone, and what is kept."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from blend.errors import PromptError
from blend.fuse.fuse import BlendOrder
from blend.fuse.policy import LAST, AskRule, check_policy, policy_name
from service import cli
from service.api.questions import BlendIn
from service.app.operating_point import OperatingPoint
from service.lab.eval import policy_choice
from service.lab.eval.case_probe import CaseProbe
from service.lab.eval.fitted_rule import RATIO, Fitting, halves
from service.lab.questions.cases import Case, SuiteError
from service.lab.questions.suites import Draw, multihop
from tests.service.lab.test_evaluate import folder, tiny

__all__ = ["folder"]

LAYERS = st.lists(st.integers(0, 200), unique=True).map(lambda layers: tuple(sorted(layers)))
TIMES = st.floats(1, 1000).map(lambda times: float(f"{times:g}"))
UNCHECKED = st.builds(
    AskRule,
    st.one_of(st.sampled_from([*LAST]), LAYERS.filter(bool)),
    stretch=st.sampled_from([1, 5, 8]),
    short=st.sampled_from([0, 9, 48]),
)
OF_LAST_ROW = st.builds(replace, UNCHECKED, rows=st.just("last"), layers=st.one_of(st.just("all"), LAYERS))
RULES = st.one_of(
    UNCHECKED,
    OF_LAST_ROW,
    st.builds(replace, st.one_of(UNCHECKED, OF_LAST_ROW), check=st.integers(0, 200), times=TIMES),
)


@given(RULES)
def test_a_rule_is_read_as_it_is_written(rule: AskRule) -> None:
    assert check_policy(str(rule)) == rule
    assert policy_name(str(rule)) == "ask"


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("ask", AskRule()),
        ("ask/stretch=4", AskRule((), 2, 3, "last", 4, 0)),
        ("ask/rows=question", AskRule("third", None, 1, "question", 1, 0)),
        ("ask/rows=question/check=2", AskRule("third", 2, 3, "question", 1, 0)),
        # As earlier releases wrote rules, and this one reads them.
        ("ask/rows=question/layers=third/check=none", AskRule("third", None, 1, "question", 1, 0)),
        ("ask/layers=4+3", AskRule((3, 4), 2, 3, "last", 1, 0)),
        ("ask/times=20", AskRule((), 2, 20, "last", 1, 0)),
        ("ask/check=none", AskRule((), None, 1, "last", 1, 0)),
        ("ask/layers=all", AskRule("all", 2, 3, "last", 1, 0)),
    ],
)
def test_what_a_rule_does_not_say(written: str, rule: AskRule) -> None:
    assert check_policy(written) == rule


@pytest.mark.parametrize(
    "policy",
    [
        "ask/rows=all",
        "ask/rows=question/layers=",
        "ask/check=none/times=3",
        "ask/layers=a",
        "ask/layers=-1",
        "ask/depth=3",
        "ask/times=0.5",
        "ask/times=inf",
        "ask/stretch=0",
        "ask/stretch=half",
        "ask/short=few",
        "ask/times=nan",
        "ask/x",
    ],
)
def test_a_rule_that_is_none_is_named_with_one_that_is(policy: str) -> None:
    with pytest.raises(PromptError, match=r"write for example ask/layers="):
        check_policy(policy)
    with pytest.raises(PromptError, match="unknown policy 'reuse/layers=1'"):
        check_policy("reuse/layers=1")


@given(st.integers(3, 300))
def test_halves_share_nothing_and_leave_nothing_out(count: int) -> None:
    cases = [Case(str(number), ()) for number in range(count)]
    fitted, held_out = halves(cases)
    assert sorted((*fitted, *held_out), key=lambda case: int(case.question)) == cases
    assert abs(len(fitted) - len(held_out)) <= 2
    with pytest.raises(SuiteError, match="3 or more"):
        halves(cases[:2])


def test_the_fitted_rule_is_the_best_of_what_the_probe_itself_measures() -> None:
    cases = multihop(seed=5, size=2, drawn=Draw(level=1))
    fitting = Fitting(tiny(), cases, answer_tokens=2)
    asked: list[int] = []
    try:
        found = fitting.run(asked.append)
    finally:
        fitting.close()

    assert asked == list(range(1, fitting.rounds + 1))
    probe = CaseProbe(tiny(), answer_tokens=2)
    points = [OperatingPoint(str(rule), RATIO, "lossless") for rule in (found.rule, AskRule())]
    try:
        measured = [probe.measure(case, points) for case in cases]
    finally:
        probe.close()
    fitted, unfitted = (sum(each.outcomes[point].divergence.kl for each in measured) / len(cases) for point in points)
    assert (found.kl, found.unfitted_kl) == (pytest.approx(fitted, abs=1e-6), pytest.approx(unfitted, abs=1e-6))
    assert fitted <= unfitted


def test_the_command_fits_on_one_half_compares_on_the_other_and_keeps_the_rule(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_choice, "LEAST", 2)
    file = tmp_path / "k.toml"
    drawn = ["--n", "4", "--difficulty", "1", "--answer-tokens", "2", "--bound", "1", "--json"]
    compared = ["--model", str(folder), "--policies", "full,ask", "--ratios", "0.1", "--codecs", "q4"]
    options = [*drawn, *compared, "--fit", "--save", str(file)]
    result = CliRunner().invoke(cli.app, ["eval", *options], catch_exceptions=False)

    assert result.exit_code == 0, result.output
    full, fitted = json.loads(result.stdout)["rows"]
    assert full["n"] == fitted["n"] == 2
    assert fitted["policy"].startswith("ask/") and f"Fitted {fitted['policy']} on 2 questions" in result.stderr
    kept = tomllib.loads(file.read_text())["policy"]
    assert kept in (fitted["policy"], "full")

    rule = "ask/layers=1/check=1/times=2"
    monkeypatch.setenv("KVWEAVE_POLICY", rule)
    again = CliRunner().invoke(cli.app, ["eval", "--n", "1", *drawn[2:], *compared], catch_exceptions=False)
    assert [row["policy"] for row in json.loads(again.stdout)["rows"]] == ["full", rule]


@pytest.mark.parametrize(("named", "policy"), [("ask", "ask/layers=1/check=1/times=2"), ("hybrid", "hybrid")])
def test_a_request_that_names_the_policy_in_force_gets_its_rule(named: str, policy: str) -> None:
    default = BlendOrder("ask/layers=1/check=1/times=2", 0.05)
    wish = BlendIn.model_validate({"policy": named, "ratio": 0.2})
    assert wish.over(default) == BlendOrder(policy, 0.2)
    assert BlendIn.model_validate({}).over(default) == default
