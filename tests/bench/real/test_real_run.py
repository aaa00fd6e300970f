"""The benchmark on a real model, on a tiny random one with made-up articles: what it judges, and how it goes on."""

import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from blend.adopt.load import LoadedModel, load
from service.app.operating_point import LOSSLESS, OperatingPoint
from service.lab.eval.case_probe import CaseProbe
from service.lab.questions.drawn_cases import SUITES
from tests.bench.models import random_model
from tests.bench.real import __main__ as command
from tests.bench.real.articles import Prose, TokenCounts, divided, read
from tests.bench.real.material import Material, Shape, variants
from tests.bench.real.prompt_probe import PromptProbe
from tests.bench.real.results import Judged, MeasuredPrompt, Results
from tests.bench.real.rows import GRID, IN_CONTEXT, LINE, NEW_ASK, Row
from tests.bench.real.tables import mean_of, ratio_of, table

ARTICLES, WORDS = 24, 700
SHAPE = Shape(tokens=480, chunk=72)
ROWS = ("isolated:reuse:0:lossless", "context:reuse:0:lossless", "context:ask:0.15:q4")


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prose")
    random = Random(3)
    words = ["".join(random.choices("abdeginorst", k=random.randint(2, 8))) for _ in range(300)]
    for number in range(ARTICLES):
        text = ". ".join(" ".join(random.choices(words, k=14)) for _ in range(WORDS // 14))
        (folder / f"article{number}.rst.txt").write_text(f"Title\n=====\n\n.. note:: left out\n\n{text}.\n")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(random_model("2x64", tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> LoadedModel:
    return load(str(checkpoint), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def material(prose: Path, model: LoadedModel) -> Material:
    counts = TokenCounts(lambda text: len(model.tokenizer.encode_text(text)))
    return Material(divided(read(prose), seed=5), counts, 5)


def test_full_prefill_is_what_transformers_says(checkpoint: Path, model: LoadedModel, material: Material) -> None:
    probe = PromptProbe(model)
    asked = probe.asked(material.draw("continuation", SHAPE, 0))
    probe.close()
    laid, answer = asked.laid, asked.answer
    prompt = [*laid.prefix, *(token for run in laid.runs for token in run.ids), *laid.suffix]
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(checkpoint)(torch.tensor([[*prompt, *answer.tokens]])).logits[0]
    wanted = logits[len(prompt) - 1 : -1].log_softmax(-1)
    assert torch.allclose(asked.full.logprobs, wanted, atol=1e-3)
    told = wanted[answer.skip :].gather(1, torch.tensor(answer.tokens[answer.skip :])[:, None])
    assert asked.judged(asked.full).nats == pytest.approx(-float(told.mean()), abs=1e-3)


def test_all_recomputed_is_full_prefill_and_nothing_recomputed_is_not(model: LoadedModel, material: Material) -> None:
    probe = PromptProbe(model)
    asked = probe.asked(material.draw("continuation", SHAPE, 1))
    rows = [Row.parse(each) for each in ("context:ask:1:lossless", "context:reuse:0:lossless", *ROWS[:1])]
    all_, none, alone = probe.rows(asked, rows).values()
    probe.close()
    assert all_.kl == pytest.approx(0, abs=1e-5)
    assert none.kl > 1e-5 and alone.kl > 1e-5 and none.kl != alone.kl
    assert none.recomputed == 0 < none.reused


def test_rows_are_judged_as_the_product_s_own_evaluation_does(model: LoadedModel, material: Material) -> None:
    case = material.draw("continuation", SHAPE, 2)
    rows = [Row(IN_CONTEXT, "reuse", 0.0, LOSSLESS), Row(IN_CONTEXT, NEW_ASK, 0.15, "q4")]
    points = [OperatingPoint(row.policy, row.ratio, row.codec) for row in rows]
    evaluating = CaseProbe(model, answer_tokens=len(case.answers[0]))
    outcomes = evaluating.measure(case, points).outcomes
    evaluating.close()
    probe = PromptProbe(model)
    found = probe.rows(probe.asked(case), rows)
    probe.close()
    for row, point in zip(rows, points, strict=True):
        said, outcome = found[row], outcomes[point]
        assert (said.reused, said.recomputed) == (outcome.reused, outcome.recomputed)
        assert said.kl == pytest.approx(outcome.divergence.kl, rel=1e-2, abs=1e-6)
        assert said.nats == pytest.approx(outcome.nats, abs=1e-4)


def test_every_cell_draws_its_prompts_of_articles_that_no_filler_has(material: Material) -> None:
    for cell in (*LINE, *GRID):
        if cell.shape.corpus or cell.shape.passages > len(material.prose.asked):
            continue
        drawn = material.draw(cell.suite, cell.shape, 4)
        assert drawn == material.draw(cell.suite, cell.shape, 4) != material.draw(cell.suite, cell.shape, 5)
        held = {article.title for article in material.prose.held}
        assert held.isdisjoint(each.title for each in drawn.passages)
        for context in drawn.contexts:
            assert len(context.filler) >= 4 and (
                cell.suite.endswith("records") or {each.title for each in context.filler} <= held
            )


@pytest.mark.parametrize("suite", SUITES)
def test_an_answer_is_judged_behind_what_is_given(suite: str, model: LoadedModel, material: Material) -> None:
    probe = PromptProbe(model)
    case = material.draw(suite, SHAPE, 3)
    asked = probe.asked(case)
    said = probe.rows(asked, [Row.parse(ROWS[1])])
    probe.close()
    answer = asked.answer
    judged = model.tokenizer.decode(answer.tokens[answer.skip :])
    assert answer.skip > 0 and case.answers[0].removeprefix(case.skip).strip().startswith(judged.strip())
    parted = {each[answer.skip] for each in (answer.tokens, *answer.foils)} if case.foils else set[int]()
    assert len(parted) == (len(case.foils) and len(case.foils) + 1)
    assert [each.right is None for each in said.values()] == [not case.foils]


def test_the_yardsticks_prompts_hold_the_same_question_and_passages(material: Material) -> None:
    case = material.draw("continuation", SHAPE, 0)
    others = variants(case, 0, draws=3, swap=material.spare(SHAPE, 0))
    assert len(others) == 5
    foreign = {case.passages[at].text for at in case.foreign or ()}
    for name, other in others.items():
        gone = Counter(case.passages) - Counter(other.passages)
        assert len(gone) == (name in ("one replaced", "one left out")) and {each.text for each in gone} <= foreign
        assert other.passages != case.passages and other.question == case.question


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    cell = replace(LINE[0], shape=SHAPE)
    monkeypatch.setitem(command.PLANS, "real", (cell,))
    monkeypatch.setattr(sys, "argv", ["real", *map(str, arguments), "--rows", ",".join(ROWS)])
    command.main()


def test_a_run_that_was_stopped_goes_on(
    prose: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--prose", prose, "--model", checkpoint)
    run(monkeypatch, *given, "--folder", tmp_path / "whole", "--prompts", 2)
    whole = capsys.readouterr().out
    file = tmp_path / "parts" / "real-1.jsonl"
    file.parent.mkdir()
    first, second = (tmp_path / "whole" / file.name).read_bytes().splitlines()
    file.write_bytes(first + b"\n" + second[:40])
    run(monkeypatch, *given, "--folder", tmp_path / "parts", "--prompts", 2)
    said = capsys.readouterr()
    assert said.err.count("continuation: ") == 1
    assert figures(said.out) == figures(whole)
    assert [len(Results(each).of("continuation")) for each in (file, tmp_path / "whole" / file.name)] == [2, 2]


def figures(tables: str) -> list[list[str]]:
    """The rows without the times to the first token."""
    rows = [line.split(" | ") for line in tables.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3 + len(ROWS)
    return [row[:6] + row[8:] for row in rows]


def measured(number: int, *, yardstick: float, row: float, nats: float) -> MeasuredPrompt:
    def judged(kl: float, said: float) -> Judged:
        return Judged(kl, 0.9, said, None, 0.1, 0.1, 10, 2)

    return MeasuredPrompt(
        "some", number, "digest", 100, 2.0, judged(0, 3.0), judged(0.5, 4.0),
        {"foreign passages reordered 1": judged(yardstick, 3.0)}, {ROWS[1]: judged(row, nats)},
    )  # fmt: skip


def test_ratios_are_of_sums_and_marks_are_held_against_them() -> None:
    some = [measured(number, yardstick=0.02, row=0.02 * (1 + number % 2), nats=3.0 + 0.02) for number in range(10)]
    line = next(line for line in table("some", some).splitlines() if ROWS[1] in line)
    assert re.search(r"\| 0\.0300 \[0\.0\d+ 0\.0\d+\] \| 1\.50 \[", line)
    assert "kept 0.98 ≥ 0.99 not met" in line and "divergence 1.50 ≤ 1.5 met, the interval's end" in line


def test_an_interval_of_pairs_that_are_alike_is_a_point() -> None:
    values = np.random.default_rng(1).random(50)
    assert (ratio_of(2 * values, values).low, ratio_of(2 * values, values).high) == pytest.approx((2, 2))
    assert mean_of(values).mean == pytest.approx(values.mean())
    assert mean_of(values).low < values.mean() < mean_of(values).high


def test_results_of_another_model_are_not_mixed(tmp_path: Path) -> None:
    results = Results(tmp_path / "some.jsonl")
    results.add(measured(0, yardstick=1, row=1, nats=1))
    results.check_model("digest")
    with pytest.raises(ValueError, match="another model"):
        Results(tmp_path / "some.jsonl").check_model("other")


def test_held_out_articles_differ_by_seed(prose: Path) -> None:
    one, other = (divided(read(prose), seed=seed) for seed in (1, 2))
    assert isinstance(one, Prose) and len(one.asked) + len(one.held) == ARTICLES
    assert set(one.held) != set(other.held) and set(one.held).isdisjoint(one.asked)
