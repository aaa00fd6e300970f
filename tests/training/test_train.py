"""How the built-in model is trained: what its examples are, how it grows, and that it goes on where it stopped."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from blend.text.tokenizer import Tokenizer
from service.lab.questions.forms import FORMS
from service.lab.world.scene import UNKNOWN, Scene, draw
from service.model.prompt_builder import PromptBuilder, PromptPassage, TurnParts
from tests.training.examples import IGNORED, PLAIN, Batch, ExampleRow, Examples, Mixture, drawn_form
from tests.training.tokenizer import make_tokenizer
from tests.training.train import PLAINLY, SEED, STAGES, Training

FEW = replace(STAGES[0], tokens=1)  # a row in each step
EVERYTHING = Mixture(forms=1.0, reversed=0.5, history=0.5, babble=0.5, unknown=0.5)


@cache
def source() -> PreTrainedTokenizerFast:
    return make_tokenizer(seed=SEED, scenes=500)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(source())


def begun(folder: Path) -> Training:
    """A training that has its tokenizer already."""
    source().save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]
    return Training(folder, "cpu")


def drawn(seed: int, stage: int = -1) -> Scene:
    return draw(Random(seed), STAGES[stage].shapes[0])


def row(scene: Scene, *, mixture: Mixture = PLAINLY, seed: int = 2, questions: int = 3) -> ExampleRow:
    return Examples(tokenizer()).row(Random(seed), scene, questions=questions, mixture=mixture)


def batch(scene: Scene, *, questions: int) -> Batch:
    return Examples(tokenizer()).batch([row(scene, questions=questions)])


def prompts(row: ExampleRow) -> list[list[int]]:
    """Of each question: the context, the question and its answer."""
    context = [token for token, owner in zip(row.ids, row.owners, strict=True) if owner == 0]
    return [
        context + [token for token, owner in zip(row.ids, row.owners, strict=True) if owner == asked]
        for asked in range(1, 1 + max(row.owners))
    ]


def test_training_writes_prompts_as_the_service_does() -> None:
    for seed in range(5):
        scene = drawn(seed)
        shown = [PromptPassage(passage.text, passage.title) for passage in scene.passages]
        found = prompts(row(scene, seed=seed))
        asked = {question.text: question.answer for question in scene.questions}
        written = [
            [*_ids(form.turns(shown, question=text, system=system)), *tokenizer().encode_text(answer)]
            for form in PLAIN
            for system in ("Answer the question from the documents.", "")
            for text, answer in asked.items()
        ]
        assert all(any(prompt[:-1] == each for each in written) for prompt in found)


def _ids(turns: Sequence[TurnParts]) -> list[int]:
    laid = PromptBuilder(tokenizer()).lay(turns)
    return [*laid.prefix, *(token for run in laid.runs for token in run.ids), *laid.suffix]


def test_every_form_is_drawn_and_others_besides() -> None:
    forms = {drawn_form(Random(seed)) for seed in range(400)}
    assert forms > set(FORMS.values())
    assert len(forms) > 100
    assert {form.role for form in forms} == {"user", "system"} and {form.is_json for form in forms} == {True, False}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_mixture_the_answers_are_those_of_the_scene(seed: int) -> None:
    scene = drawn(seed)
    known = {question.answer for question in scene.questions} | {UNKNOWN}
    found = row(scene, mixture=EVERYTHING, seed=seed, questions=8)
    for place, kind in found.answers:
        answer = tokenizer().decode([token for token in found.targets[place] if token != found.targets[place][-1]])
        assert answer in known
        assert (answer == UNKNOWN) == (kind == UNKNOWN)


@pytest.mark.parametrize("seed", range(20))
def test_hints_stand_at_full_stops_and_at_the_ends_of_questions(seed: int) -> None:
    found = row(drawn(seed), mixture=EVERYTHING, seed=seed)
    starts = {place.start for place, _ in found.answers}
    [stop] = tokenizer().encode_text(".")
    places = [place for place, *_ in found.hints]
    assert {place for place in places if place not in starts} and set(places) & starts
    assert {found.ids[place] for place in places if place not in starts} == {stop}


def test_a_question_in_training_sees_the_context_and_itself_alone() -> None:
    made = batch(drawn(3), questions=3)
    mask, positions = made.mask[0, 0], made.positions[0]
    starts = [place for place in range(1, len(positions)) if positions[place] <= positions[place - 1]]
    context = int(positions[starts[0]])
    first, second = context, starts[0]
    assert not mask[second:, first:second].any()
    assert mask[second, :context].all()
    assert not mask.triu(1).any()


def test_what_counts_in_training_are_answers_and_restated_names() -> None:
    scene = drawn(5, stage=2)
    made = batch(scene, questions=2)
    counted = (made.targets[0] != IGNORED).sum()
    answers = sum(place.stop - place.start for _, place, _ in made.answers)
    restated = sum(passage.text.count("(") for passage in scene.passages)
    assert answers + 2 * restated <= counted <= answers + 6 * restated


def test_a_grown_model_says_what_it_said_and_learns(tmp_path: Path) -> None:
    training = begun(tmp_path)
    examples = batch(drawn(0, stage=0), questions=3)
    with torch.no_grad():
        before, _ = training.loss(examples)
        training.deepen(STAGES[-1].layers)
        assert float(training.loss(examples)[0]) == pytest.approx(float(before), rel=1e-3)
    assert training.model.config.num_hidden_layers == 12
    training.learn(FEW)
    training.learn(FEW)
    assert training.model.state_dict()["model.layers.11.mlp.down_proj.weight"].abs().max() > 0


def test_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """A step, a save and a step are two steps, behind the stage in which the model grew too."""
    grows = next(number for number, stage in enumerate(STAGES) if stage.layers > STAGES[0].layers)
    whole, part = begun(tmp_path / "whole"), begun(tmp_path / "part")
    for training in (whole, part):
        training.stage = grows
        training.deepen(STAGES[grows].layers)
    for training, steps in ((whole, 2), (part, 1)):
        for _ in range(steps):
            training.learn(FEW)
    part.save()
    resumed = Training(tmp_path / "part", "cpu")
    resumed.resume()
    resumed.learn(FEW)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert (resumed.total, resumed.tokens) == (whole.total, whole.tokens)
