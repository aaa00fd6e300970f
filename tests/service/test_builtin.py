"""The model that comes with kvweave: what it knows, what it reads, and what blending may cost it at most.

The figures it must reach are those of its card, less what chance allows for so many questions.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from statistics import fmean

import pytest

from blend.adopt.load import LoadedModel
from blend.text.tokenizer import Tokenizer
from service.app.composition import compose_model
from service.app.operating_point import FULL, LOSSLESS, OperatingPoint, operating_point
from service.builtin import CHECKPOINT
from service.lab.eval.case_probe import CaseMeasurement, CaseProbe
from service.lab.eval.exact_match import exact_match
from service.lab.eval.result_row import ResultRow, SuiteFindings
from service.lab.questions.cases import Case
from service.lab.questions.forms import FORMS
from service.lab.questions.suites import KINDS, UNANSWERED, Draw, multihop
from service.lab.questions.suites import passages as shown
from service.lab.world.scene import UNKNOWN, SceneShape, draw
from service.settings import load_settings
from tests.training.tokenizer import make_tokenizer
from tests.training.train import SEED

MOST_BYTES = 16_000_000
QUESTIONS = pytest.mark.parametrize("questions", [24, pytest.param(64, marks=pytest.mark.long)])
SERVED = operating_point(load_settings(), "of any weights")


@cache
def builtin() -> LoadedModel:
    return compose_model(load_settings().model_copy(update={"model": "builtin"}))


@cache
def suite(questions: int) -> list[ResultRow]:
    """On questions that no figure was taken from, without the yardstick."""
    served = [replace(SERVED, codec=codec) for codec in (LOSSLESS, SERVED.codec)]
    points = [FULL, *served, *(OperatingPoint("reuse", 0.0, codec) for codec in (LOSSLESS, SERVED.codec, "q2"))]
    cases = multihop(seed=977, size=questions)
    findings = SuiteFindings("", cases, measured(cases, points))
    return [findings.row(point, work=point, yardstick=findings.yardstick()) for point in points]


def row(questions: int, policy: str, codec: str) -> ResultRow:
    return next(each for each in suite(questions) if (each.policy, each.codec) == (policy, codec))


def answered(cases: Sequence[Case], *points: OperatingPoint) -> dict[OperatingPoint, list[str | None]]:
    """The model's own answers, without all else that `run` measures."""
    found = [each.outcomes for each in measured(cases, points)]
    return {point: [each[point].answer for each in found] for point in points}


def measured(cases: Sequence[Case], points: Sequence[OperatingPoint]) -> list[CaseMeasurement]:
    probe = CaseProbe(builtin(), answer_tokens=8)
    try:
        return [probe.measure(case, points) for case in cases]
    finally:
        probe.close()


def right(cases: Sequence[Case], answers: Sequence[str | None]) -> float:
    return fmean(exact_match(answer or "", case.answers) for case, answer in zip(cases, answers, strict=True))


def known(value: float | None) -> float:
    assert value is not None
    return value


def reaches(share: float | None, figure: float, questions: int) -> bool:
    """Is this share not less than the figure by more than three standard errors?"""
    return known(share) >= figure - 3 * (max(figure * (1 - figure), 0.01) / questions) ** 0.5


@QUESTIONS
def test_it_answers_the_suite(questions: int) -> None:
    assert reaches(row(questions, "full", "lossless").exact_match, 0.95, questions)


@QUESTIONS
def test_plain_reuse_loses_what_needs_two_chunks_and_nothing_else(questions: int) -> None:
    full, reuse = row(questions, "full", "lossless"), row(questions, "reuse", "lossless")
    assert known(full.exact_match_two_chunk) - known(reuse.exact_match_two_chunk) > 0.15
    assert known(full.exact_match_one_chunk) - known(reuse.exact_match_one_chunk) < 0.03


@QUESTIONS
def test_what_is_served_keeps_what_full_prefill_knows(questions: int) -> None:
    full, served = row(questions, "full", "lossless"), row(questions, SERVED.policy, SERVED.codec)
    assert reaches(served.exact_match_two_chunk, 0.98 * known(full.exact_match_two_chunk), questions // 2)


@QUESTIONS
@pytest.mark.parametrize("form", UNANSWERED)
def test_it_says_unknown_where_no_passage_tells(form: str, questions: int) -> None:
    asked = multihop(seed=978, size=questions // 2, drawn=Draw(form=form))
    for answers in answered(asked, FULL, SERVED).values():
        assert reaches(right(asked, answers), 0.95, len(asked))


@QUESTIONS
def test_it_hardly_says_unknown_where_a_passage_tells(questions: int) -> None:
    told = multihop(seed=978, size=questions // 2)
    answers = answered(told, FULL)[FULL]
    assert answers.count(UNKNOWN) <= 0.01 * len(told) + 3


@pytest.mark.parametrize("form", [*FORMS, "history", "reversed", "fillers"])
def test_every_form_is_read(form: str) -> None:
    cases = multihop(seed=979, size=16, drawn=Draw(form=form))
    assert reaches(right(cases, answered(cases, FULL)[FULL]), 0.95, len(cases))


@QUESTIONS
def test_four_bits_cost_next_to_nothing_and_two_bits_do(questions: int) -> None:
    """As it is served; under `reuse`, where nothing is computed again, the coarse codec shows best."""
    served = row(questions, SERVED.policy, SERVED.codec)
    assert known(served.kl_codec) < 0.01 and known(served.top1_codec) > 0.97
    assert known(row(questions, "reuse", "q2").kl_codec) > 3 * known(row(questions, "reuse", "q4").kl_codec)


def test_the_checkpoint_is_small_and_a_plain_one() -> None:
    files = [path for path in CHECKPOINT.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in files}


def test_its_tokenizer_writes_any_text() -> None:
    tokenizer = builtin().tokenizer
    for text in ("Mira lives in 東京.", "naïve\tcafé\n\n", "\u2028 \x00 🙂", "<|end|> is text"):
        assert tokenizer.round_trips(text, tokenizer.encode_text(text))
        assert tokenizer.control.isdisjoint(tokenizer.encode_text(text))


@pytest.mark.long
def test_its_tokenizer_is_the_one_that_training_makes() -> None:
    assert Tokenizer(make_tokenizer(seed=SEED)).digest == builtin().tokenizer.digest


@pytest.mark.parametrize("passages", [2, 8])
def test_it_reads_few_and_many_passages_short_and_long(passages: int) -> None:
    """About 32 and about 110 tokens in each; the longest prompts are four times as long as the suite's."""
    for facts, asides in ((3, 1), (8, 4)):
        shape = SceneShape((passages, passages), (facts, facts), (1, 1), KINDS, asides=(asides, asides))
        scenes = [draw(Random(f"{passages}/{facts}/{number}"), shape) for number in range(8)]
        cases = [
            Case(question.text, shown(scene), (question.answer,), len(question.needs))
            for number, scene in enumerate(scenes)
            for question in Random(number).sample(scene.questions, 2)
        ]
        assert reaches(right(cases, answered(cases, FULL)[FULL]), 0.9, len(cases))
