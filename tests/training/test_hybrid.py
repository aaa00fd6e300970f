"""How the hybrid twin is trained: questions go on from a context alone, and training goes on where it stopped."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import Qwen3NextForCausalLM

from service.lab.world.scene import draw
from tests.training.examples import Batch
from tests.training.hybrid import MIXER_STAGES, STAGES, Distillation
from tests.training.train import PLAINLY, VALUED

FEW = replace(VALUED, passages=(2, 2))


def drawn(training: Distillation) -> Batch:
    scenes = [draw(Random(seed), replace(VALUED, passages=(seed, seed))) for seed in (2, 4)]
    return training.examples.batch(
        [training.examples.row(Random(1), scene, questions=3, mixture=PLAINLY) for scene in scenes]
    )


@torch.no_grad()
def test_a_question_beside_others_finds_what_it_finds_alone(tmp_path: Path) -> None:
    """By transformers' own model, which reads a context and one question at a time."""
    training = Distillation(tmp_path, "cpu")
    for weight in training.model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.02)
    training.save()
    alone = Qwen3NextForCausalLM.from_pretrained(tmp_path)
    batch = drawn(training)
    *_, together = training.hidden(batch)
    for row, owners in enumerate(batch.owners):
        for question in range(1, int(owners.max()) + 1):
            places = (owners == 0) | (owners == question)
            torch.testing.assert_close(
                together[row][places], alone.model(batch.ids[row][places][None]).last_hidden_state[0], atol=1e-3, rtol=0
            )


@pytest.mark.parametrize("stage", [0, MIXER_STAGES])
def test_training_goes_on_where_it_stopped(tmp_path: Path, stage: int) -> None:
    """As far as it went: where a tensor lies in memory decides in which order it is summed, and a weight with hardly
    any gradient may go either way then."""
    few = replace(STAGES[stage], tokens=1, shapes=(FEW,))  # a row in each step
    whole, part = Distillation(tmp_path / "whole", "cpu"), Distillation(tmp_path / "part", "cpu")
    for training, steps in ((whole, 3), (part, 2)):
        training.stage = stage
        for _ in range(steps):
            training.learn(few)
    part.save()
    resumed = Distillation(tmp_path / "part", "cpu")
    resumed.resume()
    before = weights(resumed)
    resumed.learn(few)
    off, step = weights(resumed) - weights(whole), weights(whole) - before
    assert off.norm() < 0.2 * step.norm()  # with optimizers that begin anew it is .75


def weights(training: Distillation) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in training.model.parameters()])


def test_mixers_come_nearer_to_the_attention_they_stand_for(tmp_path: Path) -> None:
    training = Distillation(tmp_path, "cpu")
    few = replace(STAGES[0], tokens=1, shapes=(FEW,))
    first, *_, last = [training.learn(few) for _ in range(8)]
    assert last < first
