"""What `eval` recommends on models of several kinds. Times are left out: here every point is as soon as any other."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blend.adopt.load import LoadedModel, load
from service.app.composition import compose_model
from service.app.operating_point import operating_point
from service.lab.eval.grid import GridResult, grid, run
from service.lab.eval.policy_choice import PolicyBounds, PolicyChoice, choose
from service.lab.questions.cases import Case
from service.lab.questions.contexts import in_contexts
from service.lab.questions.drawn_cases import CutDocument, DrawnCases
from service.lab.questions.suites import multihop
from service.settings import load_settings
from tests.bench.models import random_model

SERVED = operating_point(load_settings(), "of any weights")
QUESTIONS = in_contexts(multihop(seed=4711, size=20))


@pytest.fixture(scope="module")
def measured() -> GridResult:
    builtin = compose_model(load_settings().model_copy(update={"model": "builtin"}))
    return asked(builtin, QUESTIONS, policies=["full", "reuse", SERVED.policy], codecs=["q4", "q2"])


def asked(model: LoadedModel, cases: Sequence[Case], *, policies: Sequence[str], codecs: Sequence[str]) -> GridResult:
    points = grid(policies, [SERVED.ratio], codecs=codecs)
    return run(model, cases, points=points, answer_tokens=8, progress=lambda done: None)


def recommended(found: GridResult, *, policies: str, codec: str = "q4") -> PolicyChoice:
    """Of these points alone."""
    rows = [row for row in found.rows if row.policy in policies.split(",") and row.codec == codec]
    soon = [replace(row, ttft_speedup=1.0 if row.policy == "full" else 2.0) for row in rows]
    return choose(soon, found.yardsticks[0], bounds=PolicyBounds())


def test_on_the_built_in_model_what_is_served_is_recommended_and_plain_reuse_is_not(measured: GridResult) -> None:
    assert recommended(measured, policies=f"full,reuse,{SERVED.policy}").row.policy == SERVED.policy
    assert recommended(measured, policies="full,reuse").row.policy == "full"


def test_a_codec_that_breaks_the_model_is_not_recommended(measured: GridResult) -> None:
    found = recommended(measured, policies=f"full,reuse,{SERVED.policy}", codec="q2")
    assert found.row.policy == "full" and "reuse nothing" in found.sentence


def test_of_random_weights_nothing_is_recommended_and_the_sentence_says_why(tmp_path: Path) -> None:
    model = load(random_model("2x64", tmp_path), device="cpu", dtype="float32")
    pages = [tuple(f"Book {n} page {p} " + "tells of wells. " * 12 for p in range(5)) for n in range(9)]
    drawing = DrawnCases([CutDocument(f"Book {n}", parts) for n, parts in enumerate(pages)], seed=3)
    cases = in_contexts([drawing.draw(suite, number) for suite in ("continuation", "needles") for number in range(3)])
    found = recommended(asked(model, cases, policies=["full", "reuse"], codecs=["q4"]), policies="full,reuse")
    assert found.row.policy == "full" and "no surer of what comes next than a guess" in found.sentence
