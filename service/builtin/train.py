"""Trains the built-in model: `python -m service.builtin.train FOLDER`. Run again, it goes on where it stopped."""

# transformers and torch.optim are not typed to the end
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import logging
import math
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from blend.tokens import Tokenizer
from service.builtin.examples import IGNORED, Batch, Examples
from service.builtin.tokenizer import make
from service.world.phrases import NAMINGS, RELATIONS
from service.world.scene import Shape, draw

log = logging.getLogger(__name__)

SEED = 20261121
LINKS = tuple(NAMINGS)


@dataclass(frozen=True, slots=True)
class Stage:
    """It ends when so much of what was never seen is answered right, or after so many steps."""

    shape: Shape
    accuracy: float
    steps: int
    tokens: int = 8000  # in a step, about
    questions: int = 8
    rate: float = 3e-3
    rests: bool = False  # does the rate fall to nearly nothing?
    hint_layer: int = 2


STAGES = (
    Stage(Shape((3, 3), (1, 1), relations=2), 0.9, 600, tokens=4000, hint_layer=3),
    Stage(Shape((2, 4), (1, 2), (1, 2), ("topic",), restated=0.3, relations=3), 0.95, 700, tokens=6000, hint_layer=3),
    Stage(Shape((2, 4), (1, 3), (1, 3), LINKS, restated=0.4), 0.88, 500, tokens=6000, hint_layer=3),
    Stage(Shape((2, 4), (1, 3), (1, 3), LINKS, restated=0.4), 0.95, 700, tokens=6000),
    Stage(Shape((2, 6), (1, 4), (2, 4), LINKS, values=0.4, asides=(0, 2), restated=0.3, rare=0.05), 0.96, 300),
    Stage(
        Shape((2, 8), (1, 5), (2, 3), LINKS, values=0.4, asides=(0, 4), restated=0.15, rare=0.05), 1.0, 850, rests=True
    ),
    Stage(
        Shape((2, 8), (1, 9), (2, 3), LINKS, values=0.4, asides=(0, 6), restated=0.1, rare=0.05),
        1.0,
        240,
        rate=8e-4,
        rests=True,
    ),
)
HINT_WEIGHT = 0.3
WARMUP, CHECK_EVERY, SAVE_EVERY_S = 100, 50, 600
SCORED = 6  # batches


def configuration(tokenizer: Tokenizer) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer.source),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=4,
        pad_token_id=4,
        initializer_range=0.06,
    )


@torch.no_grad()
def _pair_words(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """A word at the start of a line begins as the same word behind a space, moved by one vector for all words.

    Otherwise that both are one name has to be learned for every name.
    """
    rows = cast(Tensor, model.get_input_embeddings().weight)
    moved = torch.randn(rows.shape[1]) * rows.std()
    spelled = {tokenizer.decode([token]): token for token in range(len(rows))}
    for text, token in spelled.items():
        if text.startswith(" ") and text[1:] in spelled:
            rows[spelled[text[1:]]] = rows[token] + moved


class Training:
    """A model, its optimizer, and where in the curriculum it is. `save` and `resume` keep all of it."""

    def __init__(self, folder: Path, device: str) -> None:
        torch.manual_seed(SEED)
        self.folder = folder
        self.source = make(seed=SEED)
        tokenizer = Tokenizer(self.source)
        self.examples = Examples(tokenizer)
        self.device = device
        self.model = LlamaForCausalLM(configuration(tokenizer))
        _pair_words(self.model, tokenizer)
        torch.nn.Module.to(self.model, device)
        self.hints = torch.nn.Linear(width := self.model.config.hidden_size, 2 * width + len(RELATIONS)).to(device)
        matrices = [p for p in self.model.model.layers.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if not any(p is matrix for matrix in matrices)]
        self.optimizers = (
            torch.optim.Muon(matrices, lr=1e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW([*others, *self.hints.parameters()], lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0),
        )
        self.stage, self.step, self.total, self.tokens, self.seconds = 0, 0, 0, 0, 0.0
        self.size = 0

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and what is predicted where it can be known."""
        ids, positions, mask = (x.to(self.device) for x in (batch.ids, batch.positions, batch.mask))
        with torch.autocast(self.device, torch.bfloat16):
            output = self.model.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, output_hidden_states=True
            )
            known, logits = self._predicted(output.last_hidden_state, batch.targets)
            hinted = self._hinted(output.hidden_states[self._hint_layer], batch.hints.to(self.device))
        return known + HINT_WEIGHT * hinted, logits.argmax(-1)

    def _hinted(self, hidden: Tensor, hints: Tensor) -> Tensor:
        """In the middle of the model a fact's full stop knows what it says, and the end of a question what it asks."""
        found = self.hints(functional.rms_norm(hidden[hints[:, 0], hints[:, 1]], hidden.shape[-1:])).float()
        subject, value, relation = found.split((*hidden.shape[-1:] * 2, len(RELATIONS)), -1)
        words = cast(Tensor, self.model.get_input_embeddings().weight)
        return (
            functional.cross_entropy(subject @ words.T, hints[:, 2], ignore_index=IGNORED)
            + functional.cross_entropy(value @ words.T, hints[:, 3], ignore_index=IGNORED)
            + functional.cross_entropy(relation, hints[:, 4], ignore_index=IGNORED)
        )

    @property
    def _hint_layer(self) -> int:
        return STAGES[min(self.stage, len(STAGES) - 1)].hint_layer

    def _predicted(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        counted = targets != IGNORED
        logits = self.model.lm_head(hidden[counted]).float()
        return functional.cross_entropy(logits, targets[counted].to(self.device)), logits

    def run(self) -> None:
        saved = time.monotonic()
        while self.stage < len(STAGES):
            stage = STAGES[self.stage]
            start = time.monotonic()
            loss = self.learn(stage)
            self.seconds += time.monotonic() - start
            if self.step % CHECK_EVERY == 0:
                right = self.score(stage.shape)
                every = sum(right.values()) / len(right)
                self._tell(loss=loss, every=every, right=right)
                if every >= stage.accuracy or self.step >= stage.steps:
                    self._next_stage()
            if time.monotonic() - saved > SAVE_EVERY_S:
                self.save()
                saved = time.monotonic()
        self.save()

    def _next_stage(self) -> None:
        before = self._hint_layer
        self.stage, self.step = self.stage + 1, 0
        if self._hint_layer != before:
            self.hints.reset_parameters()

    def learn(self, stage: Stage) -> float:
        """One step."""
        random = Random(f"{SEED}/{self.stage}/{self.step}")
        earlier = STAGES[: self.stage]
        shape = random.choice(earlier).shape if earlier and random.random() < 0.1 else stage.shape
        scenes = [draw(random, shape) for _ in range(self.size or 64)]
        batch = self.examples.batch(random, scenes, questions=stage.questions)
        self.size = max(8, round(stage.tokens * len(scenes) / batch.ids.numel()))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self._rate(stage)
        loss, _ = self.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step, self.total = self.step + 1, self.total + 1
        self.tokens += batch.ids.numel()
        return loss.item()

    def _rate(self, stage: Stage) -> float:
        if stage.rests:
            return stage.rate * (0.02 + 0.49 * (1 + math.cos(math.pi * self.step / stage.steps)))
        return stage.rate * min(1.0, (self.total + 1) / WARMUP)

    @torch.no_grad()
    def score(self, shape: Shape) -> dict[str, float]:
        """The share of whole answers that are right, by kind, on scenes never trained on."""
        random = Random(f"{SEED}/score")
        asked, right = Counter[str](), Counter[str]()
        for _ in range(SCORED):
            plain = [draw(random, shape) for _ in range(24)]
            batch = self.examples.batch(random, plain, questions=12)
            _, predicted = self.loss(batch)
            guesses = torch.full(batch.targets.shape, IGNORED)
            guesses[batch.targets != IGNORED] = predicted.cpu()
            for row, place, kind in batch.answers:
                asked[kind] += 1
                right[kind] += bool((guesses[row, place] == batch.targets[row, place]).all())
        return {kind: right[kind] / asked[kind] for kind in sorted(asked)}

    def _tell(self, *, loss: float, every: float, right: dict[str, float]) -> None:
        rows = " ".join(f"{kind} {share:.3f}" for kind, share in right.items())
        log.info(
            "stage %d step %d (%d) loss %.3f mean %.3f %s %.1fM tokens %.0f s",
            *(self.stage, self.step, self.total, loss, every, rows, self.tokens / 1e6, self.seconds),
        )

    def save(self) -> None:
        state = {name: getattr(self, name) for name in ("stage", "step", "total", "tokens", "seconds", "size")}
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / "training.tmp"
        torch.save(
            {
                "model": self.model.state_dict(),
                "hints": self.hints.state_dict(),
                "optimizers": [each.state_dict() for each in self.optimizers],
                "at": state,
            },
            unfinished,
        )
        unfinished.replace(self.folder / "training.pt")
        self.model.save_pretrained(self.folder)
        self.source.save_pretrained(self.folder)

    def resume(self) -> None:
        kept = self.folder / "training.pt"
        if kept.exists():
            state = torch.load(kept, map_location=self.device)
            self.model.load_state_dict(state["model"])
            self.hints.load_state_dict(state["hints"])
            for optimizer, kept_state in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(kept_state)
            for name, value in state["at"].items():
                setattr(self, name, value)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the checkpoint is kept")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; all by default")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    training = Training(options.folder, options.device)
    training.resume()
    training.run()


if __name__ == "__main__":
    main()
