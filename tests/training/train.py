"""Trains the built-in model: `python -m tests.training.train FOLDER`. Run again, it goes on where it stopped."""

# transformers and torch.optim are not typed to the end
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerBase as Source
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from blend.text.tokenizer import Tokenizer
from service.lab.world.relations import NAMINGS
from service.lab.world.scene import NAMED, SceneShape, draw
from tests.training.block_attention import BLOCKS, added
from tests.training.examples import IGNORED, Batch, ExampleRow, Examples, Mixture
from tests.training.tokenizer import make_tokenizer

log = logging.getLogger(__name__)

SEED = 20261122
LINKS = tuple(NAMINGS)
FIRST_LAYERS, LAYERS = 5, 12
PLAINLY = Mixture()


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the training. It ends when so much of what was never seen is answered right, or after so many steps.

    A step draws one of the shapes, and how many passages all its scenes have, so that they are about as long.
    """

    shapes: tuple[SceneShape, ...]
    accuracy: float
    steps: int
    tokens: int = 8000  # in a step, at most
    rate: float = 3e-3
    rests: bool = False  # does the rate fall to nearly nothing?
    hint_layer: int = 2
    layers: int = FIRST_LAYERS
    mixture: Mixture = PLAINLY


FIRST = SceneShape((3, 3), (1, 1), relations=2)
TOPICS = SceneShape((2, 4), (1, 2), (1, 2), ("topic",), restated=0.3, relations=3)
LINKED = SceneShape((2, 4), (1, 3), (1, 3), LINKS, restated=0.4)
VALUED = SceneShape((2, 6), (1, 4), (2, 4), LINKS, values=0.4, asides=(0, 2), restated=0.3, rare=0.05)
MANY = SceneShape((2, 12), (1, 4), (2, 4), LINKS, values=0.4, asides=(0, 3), restated=0.15, rare=0.05, fillers=(0, 2))
LONG = SceneShape((2, 12), (2, 9), (2, 5), LINKS, values=0.4, asides=(0, 6), restated=0.1, rare=0.1, fillers=(0, 2))
MOST = SceneShape((10, 22), (1, 5), (2, 6), LINKS, values=0.4, asides=(0, 3), restated=0.1, rare=0.1, fillers=(0, 2))
LONGEST = SceneShape((12, 22), (3, 7), (2, 6), LINKS, values=0.4, asides=(0, 6), restated=0.1, rare=0.1, fillers=(0, 2))
PLAIN = SceneShape((2, 10), (1, 6), asides=(0, 4), rare=0.1, fillers=(0, 2))  # nothing links its passages
SOME = Mixture(forms=0.5, babble=0.02, unknown=0.1)
ALL = Mixture(forms=0.6, reversed=0.2, history=0.2, babble=0.04, unknown=0.2)
GAPS = replace(ALL, unknown=0.35, missing=0.4)
GAPPED = tuple(replace(shape, rare=0.2) for shape in (LONGEST, MOST, LONG, MANY, MANY, VALUED, PLAIN))

STAGES = (
    Stage((FIRST,), 0.9, 600, tokens=4000, hint_layer=3),
    Stage((TOPICS,), 0.95, 700, tokens=6000, hint_layer=3),
    Stage((LINKED,), 0.88, 500, tokens=6000, hint_layer=3),
    Stage((LINKED,), 0.95, 700, tokens=6000),
    Stage((VALUED, VALUED, LINKED), 0.95, 500, mixture=SOME),
    Stage((MANY, MANY, VALUED), 0.95, 1000, rate=2e-3, layers=LAYERS, mixture=ALL),
    Stage((LONG, MOST, MANY, PLAIN), 0.97, 700, tokens=12000, rate=2e-3, layers=LAYERS, mixture=ALL),
    Stage((LONGEST, MOST, LONG, MANY, PLAIN), 1.0, 320, 16000, rate=2e-3, rests=True, layers=LAYERS, mixture=ALL),
    Stage(GAPPED, 1.0, 500, 10000, rate=1.5e-3, rests=True, layers=LAYERS, mixture=GAPS),
)
HINT_WEIGHT = 0.3
WARMUP, CHECK_EVERY, SAVE_EVERY_S = 100, 50, 600
SCORED = 6  # batches
MOST_ROWS = 64


def configuration(tokenizer: Tokenizer) -> LlamaConfig:
    """The model's configuration as training begins; it grows to LAYERS."""
    return LlamaConfig(
        vocab_size=len(tokenizer.source),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=FIRST_LAYERS,
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

    stages, warmup = STAGES, WARMUP

    def __init__(self, folder: Path, device: str) -> None:
        torch.manual_seed(SEED)
        self.folder = folder
        begun = (folder / "tokenizer.json").exists()
        self.source = (
            cast(Source, AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
            if begun
            else make_tokenizer(seed=SEED)
        )
        tokenizer = Tokenizer(self.source)
        self.examples = Examples(tokenizer)
        self.device = device
        self.model = self._begun(tokenizer)
        torch.nn.Module.to(self.model, device)
        self.hints = torch.nn.Linear(width := self.model.config.hidden_size, 2 * width + NAMED + 1).to(device)
        self.optimizers = self._optimizers()
        self.stage, self.step, self.total, self.tokens, self.seconds = 0, 0, 0, 0, 0.0
        self.grown = 0  # the total when the model last grew

    def _begun(self, tokenizer: Tokenizer) -> LlamaForCausalLM:
        """The model before the first step."""
        model = LlamaForCausalLM(configuration(tokenizer))
        if self.device == "cpu":
            model.set_attn_implementation(BLOCKS)
        _pair_words(model, tokenizer)
        return model

    def _optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        matrices = [p for p in self.model.model.layers.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if not any(p is matrix for matrix in matrices)]
        return (
            torch.optim.Muon(matrices, lr=1e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW([*others, *self.hints.parameters()], lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0),
        )

    def deepen(self, layers: int) -> None:
        """Layers that change nothing yet are put behind the last one, and learn from here on."""
        torch.manual_seed(SEED)
        config = self.model.config
        for number in range(config.num_hidden_layers, layers):
            layer = LlamaDecoderLayer(config, number).to(self.device)
            for weight in layer.parameters():
                if weight.ndim == 2:
                    torch.nn.init.normal_(weight, std=config.initializer_range)
            for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
                torch.nn.init.zeros_(last.weight)
            self.model.model.layers.append(layer)
        if layers > config.num_hidden_layers:
            config.num_hidden_layers = layers
            self.optimizers, self.grown = self._optimizers(), self.total

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and what is predicted where it can be known."""
        mask = added(batch.mask) if self.device == "cpu" else batch.mask
        ids, positions, mask = (x.to(self.device) for x in (batch.ids, batch.positions, mask))
        with torch.autocast(self.device, torch.bfloat16):
            output = self.model.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, output_hidden_states=True
            )
            known, logits = self._predicted(output.last_hidden_state, batch.targets)
            hinted = self._hinted(output.hidden_states[self._hint_layer], batch.hints.to(self.device))
        return known + HINT_WEIGHT * hinted, logits.argmax(-1)

    def _hinted(self, hidden: Tensor, hints: Tensor) -> Tensor:
        """The loss on hints: a middle layer knows at a full stop what a fact says, at a question's end what it asks."""
        found = self.hints(functional.rms_norm(hidden[hints[:, 0], hints[:, 1]], hidden.shape[-1:])).float()
        subject, value, relation = found.split((*hidden.shape[-1:] * 2, NAMED + 1), -1)
        words = cast(Tensor, self.model.get_input_embeddings().weight)
        return (
            functional.cross_entropy(subject @ words.T, hints[:, 2], ignore_index=IGNORED)
            + functional.cross_entropy(value @ words.T, hints[:, 3], ignore_index=IGNORED)
            + functional.cross_entropy(relation, hints[:, 4], ignore_index=IGNORED)
        )

    @property
    def _hint_layer(self) -> int:
        return self.stages[min(self.stage, len(self.stages) - 1)].hint_layer

    def _predicted(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        counted = targets != IGNORED
        logits = self.model.lm_head(hidden[counted]).float()
        return functional.cross_entropy(logits, targets[counted].to(self.device)), logits

    def run(self) -> None:
        saved = time.monotonic()
        while self.stage < len(self.stages):
            stage = self.stages[self.stage]
            start = time.monotonic()
            loss = self.learn(stage)
            self.seconds += time.monotonic() - start
            if self.step % CHECK_EVERY == 0:
                right = self.score(stage)
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
            torch.manual_seed(SEED)  # a training that was resumed goes on alike
            self.hints.reset_parameters()
        self._grow()
        self.save()

    def _grow(self) -> None:
        if self.stage < len(self.stages):
            self.deepen(self.stages[self.stage].layers)

    def learn(self, stage: Stage) -> float:
        """Takes one step and returns its loss."""
        random = Random(f"{SEED}/{self.stage}/{self.step}")
        earlier = self.stages[: self.stage]
        of = random.choice(earlier) if earlier and random.random() < 0.1 else stage
        batch = self._drawn(random, random.choice(of.shapes), stage=stage)
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

    def _drawn(self, random: Random, shape: SceneShape, *, stage: Stage) -> Batch:
        """A batch of as many rows as a step takes."""
        passages = random.randint(*shape.passages)
        shape = replace(shape, passages=(passages, passages), many_names=True)
        rows: list[ExampleRow] = []
        while len(rows) < MOST_ROWS:
            scene = draw(random, shape)
            row = self.examples.row(random, scene, questions=6 + passages, mixture=stage.mixture)
            longest = max(len(each.ids) for each in (*rows, row))
            if rows and (len(rows) + 1) * longest > stage.tokens:
                break
            rows.append(row)
        return self.examples.batch(rows)

    def _rate(self, stage: Stage) -> float:
        if stage.rests:
            return stage.rate * (0.02 + 0.49 * (1 + math.cos(math.pi * self.step / stage.steps)))
        return stage.rate * min(1.0, (self.total - self.grown + 1) / self.warmup)

    @torch.no_grad()
    def score(self, stage: Stage) -> dict[str, float]:
        """The share of whole answers that are right, by kind, on scenes never trained on."""
        random = Random(f"{SEED}/score")
        shapes = [stage.shapes[number % len(stage.shapes)] for number in range(SCORED)]
        batches = (self._drawn(random, shape, stage=stage) for shape in shapes)
        return shares((batch, self.loss(batch)[1]) for batch in batches)

    def _tell(self, *, loss: float, every: float, right: dict[str, float]) -> None:
        rows = " ".join(f"{kind} {share:.3f}" for kind, share in right.items())
        log.info(
            "stage %d step %d (%d) loss %.3f mean %.3f %s %.1fM tokens %.0f s",
            *(self.stage, self.step, self.total, loss, every, rows, self.tokens / 1e6, self.seconds),
        )

    def save(self) -> None:
        state = {name: getattr(self, name) for name in ("stage", "step", "total", "tokens", "seconds", "grown")}
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
            for name, value in state["at"].items():
                setattr(self, name, value)
            self._grow()
            self.model.load_state_dict(state["model"])
            self.hints.load_state_dict(state["hints"])
            for optimizer, kept_state in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(kept_state)
            self.grown = state["at"]["grown"]


def shares(answered: Iterable[tuple[Batch, Tensor]]) -> dict[str, float]:
    """The share of whole answers that are right, by kind. Beside each batch: what was predicted for its targets."""
    asked, right = Counter[str](), Counter[str]()
    for batch, predicted in answered:
        guesses = torch.full(batch.targets.shape, IGNORED)
        guesses[batch.targets != IGNORED] = predicted.cpu()
        for row, place, kind in batch.answers:
            asked[kind] += 1
            right[kind] += bool((guesses[row, place] == batch.targets[row, place]).all())
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


def main(kind: type[Training] = Training) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=kind.__doc__)
    parser.add_argument("folder", type=Path, help="where the checkpoint is kept")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; all by default")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    training = kind(options.folder, options.device)
    training.resume()
    training.run()


if __name__ == "__main__":
    main()
