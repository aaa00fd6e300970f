"""What is recommended, by which measures, in which words, and how it is kept in a settings file."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from service.app.operating_point import FULL, OperatingPoint
from service.lab.eval.exact_match import Interval
from service.lab.eval.policy_choice import PolicyBounds, PolicyChoice, check_evidence, choose, save
from service.lab.eval.result_row import ResultRow, YardstickRow
from service.lab.questions.cases import SuiteError
from service.settings import load_settings
from tests.service.lab.test_report_page import ROW, YARDSTICK


def row(**changes: object) -> ResultRow:
    """A point that loses nothing and gains nothing, but for the changes; as sure as they are, where none are named."""
    sure = replace(ROW, codec="q4", n=100, agreement=1.0, kept=1.0, prefers=1.0, loss=0.0, ttft_speedup=2.0)
    plain = replace(sure, bytes_per_token=100.0, intervals={})
    changed = replace(plain, **changes)
    spans = {name: getattr(changed, name) for name in ("loss", "agreement", "kl", "yardsticks", "kept")}
    known = {name: Interval(value, value) for name, value in spans.items() if value is not None}
    known["prefers"] = Interval(*[(changed.prefers or 0) - 1] * 2)
    return replace(changed, intervals=known | changed.intervals)


BOUNDS = PolicyBounds()
PLAIN = replace(
    YARDSTICK,
    told=2.0,
    chance=8.0,
    right=0.9,
    prefers=1.0,
    intervals={"kl": Interval(0.01, 0.03), "told": Interval(1.5, 2.5)},
)
FULL_ROW = row(policy="full", ttft_speedup=1.0, kl=0.0, yardsticks=0.0)


def chosen(*rows: ResultRow, yardstick: YardstickRow = PLAIN, bounds: PolicyBounds = BOUNDS) -> PolicyChoice:
    return choose([*rows], yardstick, bounds=bounds)


def test_the_soonest_point_within_the_bounds_is_chosen_and_size_breaks_ties() -> None:
    slow, soon, lossy = row(ttft_speedup=1.5), row(ttft_speedup=3.0), row(ttft_speedup=9.0, loss=0.02)
    smaller = row(ttft_speedup=2.95, bytes_per_token=50.0)
    assert chosen(slow, soon, lossy).row == soon
    assert chosen(slow, soon, smaller).row == smaller
    assert chosen(slow, soon, lossy, bounds=PolicyBounds(0.05)).row == lossy


@pytest.mark.parametrize(
    ("bad", "bounds"),
    [
        ({"yardsticks": 1.2}, PolicyBounds(yardsticks=1.3)),
        ({"kept": 0.98}, PolicyBounds(loss=0.03)),
        ({"loss": 0.02}, PolicyBounds(loss=0.03)),
        ({"prefers": 0.98}, PolicyBounds(loss=0.03)),
    ],
)
def test_each_measure_alone_keeps_a_point_from_being_taken(bad: dict[str, float], bounds: PolicyBounds) -> None:
    late, soon = row(), row(ttft_speedup=9.0, **bad)
    assert chosen(FULL_ROW, late, soon).row == late
    assert chosen(FULL_ROW, soon).row == FULL_ROW
    assert chosen(FULL_ROW, late, soon, bounds=bounds).row == soon


def test_exact_match_decides_nothing_where_full_prefill_has_none_and_the_sentence_says_so() -> None:
    point = row(loss=0.5)
    assert chosen(FULL_ROW, point).row == FULL_ROW
    found = chosen(FULL_ROW, point, yardstick=replace(PLAIN, right=0.0))
    assert found.row == point
    assert "differs 0.50 times as much as full prefill" in found.sentence and "keeps 100.0%" in found.sentence
    assert "Exact match decided nothing: full prefill itself has 0.0%" in found.sentence


def test_what_passages_do_not_tell_is_not_kept_and_the_sentence_says_so() -> None:
    untold = replace(PLAIN, right=0.0, told=0.01)
    assert not untold.tells and not replace(PLAIN, intervals={"told": Interval(-0.1, 4.0)}).tells
    found = chosen(FULL_ROW, row(kept=None), yardstick=untold)
    assert found.row.policy == "hybrid"
    assert "Known answers decided nothing" in found.sentence and "keeps" not in found.sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"entropy": 7.9, "told": 0.0, "right": 0.0},
            "no surer of what comes next than a guess is (7.9 of 8.0 nats a token)",
        ),
        ({"unaided": 0.0003, "told": 0.0, "right": 0.0}, "Passages change what full prefill says by 0.0003 nats"),
    ],
)
def test_nothing_is_taken_where_full_prefill_says_nothing_that_could_be_kept(
    changes: dict[str, float], words: str
) -> None:
    found = chosen(FULL_ROW, row(kept=None), yardstick=replace(PLAIN, **changes))
    assert found.row == FULL_ROW and words in found.sentence and "reuse nothing" in found.sentence


def test_without_a_yardstick_and_known_answers_the_answers_must_be_the_same() -> None:
    nothing = replace(PLAIN, kl=None, told=None, right=None, prefers=None, nats=None, intervals={})
    same, other = (row(yardsticks=None, kept=None, agreement=share) for share in (1.0, 0.9))
    assert chosen(FULL_ROW, same, yardstick=nothing).row == same
    assert chosen(FULL_ROW, other, yardstick=nothing).row == FULL_ROW
    assert chosen(FULL_ROW, row(yardsticks=None, kept=None, agreement=None), yardstick=nothing).row == FULL_ROW


def test_nothing_within_the_bounds_is_full_prefill_and_doubt_is_said() -> None:
    assert chosen(FULL_ROW, row(loss=0.2)).row == FULL_ROW
    assert "within 1 yardsticks of full prefill and a loss of 1.0%: reuse" in chosen(FULL_ROW, row(loss=0.2)).sentence
    assert "is no sooner" in chosen(FULL_ROW, row(ttft_speedup=0.9)).sentence
    unsure = chosen(FULL_ROW, row(intervals={"yardsticks": Interval(0.4, 1.03)}))
    assert not unsure.certain and "More than 100 questions" in unsure.sentence
    assert chosen(FULL_ROW, row()).certain


def test_a_saved_point_is_a_setting_and_leaves_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kvweave.toml"
    path.write_text('# mine\nport = 9001\nratio = 0.5  # old\nstore = "mem://"')
    save(chosen(row()), path, current=FULL)
    assert path.read_text().startswith("# mine\nport = 9001\n")
    assert tomllib.loads(path.read_text()) == {
        "port": 9001,
        "store": "mem://",
        "policy": "hybrid",
        "ratio": 0.15,
        "codec": "q4",
    }
    monkeypatch.setenv("KVWEAVE_CONFIG", str(path))
    assert load_settings().policy == "hybrid"


def test_full_prefill_is_saved_with_the_ratio_and_the_codec_that_there_are(tmp_path: Path) -> None:
    path, full = tmp_path / "kvweave.toml", chosen(row(policy="full", codec="lossless"))
    current = OperatingPoint("hybrid", 0.2, "q4")
    assert save(full, path, current=current) == {"policy": "full", "ratio": 0.2, "codec": "q4"}
    path.write_text('codec = "q8"\nratio = 0.3\n')
    assert save(full, path, current=current) == {"policy": "full"}
    assert tomllib.loads(path.read_text()) == {"policy": "full", "ratio": 0.3, "codec": "q8"}


@pytest.mark.parametrize(("bound", "enough"), [(0.0, 100), (0.001, 100), (0.01, 100), (0.02, 50), (0.5, 30)])
def test_a_choice_is_kept_of_so_many_questions_that_one_does_not_decide(bound: float, enough: int) -> None:
    check_evidence(enough, bound)
    with pytest.raises(SuiteError, match=rf"{enough} questions or more .* got {enough - 1}: ask more"):
        check_evidence(enough - 1, bound)


def test_a_broken_settings_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "kvweave.toml"
    path.write_text("port = \n")
    with pytest.raises(SuiteError, match="valid TOML"):
        save(chosen(row()), path, current=FULL)
    assert path.read_text() == "port = \n"
