"""Trains a hybrid twin of the built-in model: `python -m tests.training.hybrid FOLDER`. Run again, it goes on.

Three layers of four have a Gated DeltaNet in place of attention. The built-in model teaches it: first each mixer alone
what the attention of its layer gives, then the whole model what it answers. Embeddings and norms are copies, and MLPs
begin as such.
"""

# transformers and torch.optim are not typed to the end
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import logging
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, LlamaForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM
from transformers import PreTrainedTokenizerBase as Source
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer

from blend.text.tokenizer import Tokenizer
from service.builtin import CHECKPOINT
from service.lab.world.scene import SceneShape
from tests.training.block_attention import BLOCKS, added
from tests.training.branching import Branches, BranchingDeltaNet
from tests.training.examples import IGNORED, Batch, Mixture
from tests.training.train import LINKED, LONG, MANY, MOST, SCORED, SEED, VALUED, Stage, Training, main, shares

log = logging.getLogger(__name__)

LAYERS = 8
# Layers that begin as one of the teacher's first four, which tell nearly all; the others change nothing yet. What
# another name stands for is told by the teacher's second and third layer, here one of attention and one without.
TAUGHT = {0: 0, 3: 1, 4: 2, 7: 3}
FOLLOWED = {2: 0, 3: 1, 6: 2}  # behind these layers the model is to be where the teacher is behind those
MIXER_STAGES = 1  # the first stages, in which mixers learn each for itself
FADES = torch.tensor([0.002, 0.01, 0.05, 0.3])  # how quickly each head of a linear layer forgets, as training begins
SOME = Mixture(forms=0.3, unknown=0.1)
STAGES = (
    Stage((LINKED, VALUED), 1.0, 200, tokens=3000, rate=6e-3, rests=True),
    Stage((LINKED, VALUED), 0.95, 300, tokens=3000, rate=1.5e-3, rests=True),
    Stage((VALUED, VALUED, MANY), 0.96, 400, tokens=4000, rate=1e-3, mixture=SOME),
    Stage((MANY, MANY, VALUED, LONG, MOST), 1.0, 250, tokens=6000, rate=1e-3, rests=True, mixture=SOME),
)
COMPARED = Stage((), 1.0, 0, tokens=6000)
SIZES = tuple(replace(MANY, passages=(size, size)) for size in (4, 8, 12))
HIDDEN_WEIGHT = 3.0


def configuration(teacher: LlamaForCausalLM) -> Qwen3NextConfig:
    """The teacher's, with its attention in every fourth layer."""
    config = teacher.config
    return Qwen3NextConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=LAYERS,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_attention_heads,
        head_dim=32,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={**cast(dict[str, object], config.rope_parameters), "partial_rotary_factor": 1.0},
        linear_key_head_dim=32,
        linear_value_head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        mlp_only_layers=list(range(LAYERS)),
        num_experts=0,
        initializer_range=0.06,
        tie_word_embeddings=True,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )


class Distillation(Training):
    """The training of the twin. Where it is in STAGES, and what it keeps, are as in any training."""

    stages, warmup = STAGES, 20

    def __init__(self, folder: Path, device: str) -> None:
        cast(Source, AutoTokenizer.from_pretrained(CHECKPOINT)).save_pretrained(folder)
        super().__init__(folder, device)

    def _begun(self, tokenizer: Tokenizer) -> Qwen3NextForCausalLM:
        self.teacher = LlamaForCausalLM.from_pretrained(CHECKPOINT).requires_grad_(False)
        torch.nn.Module.to(self.teacher, self.device)
        if self.device == "cpu":
            self.teacher.set_attn_implementation(BLOCKS)
        self._inputs, self._outputs = list[Tensor](), list[Tensor]()
        for layer in cast(list[LlamaDecoderLayer], self.teacher.model.layers):
            layer.input_layernorm.register_forward_hook(lambda *call: self._inputs.append(call[2]))
            layer.self_attn.register_forward_hook(lambda *call: self._outputs.append(call[2][0]))
        model = Qwen3NextForCausalLM(configuration(self.teacher))
        if self.device == "cpu":
            model.set_attn_implementation(BLOCKS)
        for number, layer in enumerate(cast(list[Qwen3NextDecoderLayer], model.model.layers)):
            if layer.block_type == "linear_attention":
                layer.linear_attn = BranchingDeltaNet(model.config, number)
                model._init_weights(layer.linear_attn)
        _begin(model, self.teacher)
        for name, weight in model.named_parameters():
            weight.requires_grad_("attn" in name or "mlp" in name)
        return model

    def hidden(self, batch: Batch) -> tuple[Tensor, ...]:
        """What is behind each layer of the twin, (B, T, W); normed behind the last one."""
        return self.model.model(
            input_ids=batch.ids,
            attention_mask=self._masks(batch),
            position_ids=batch.positions,
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states[1:]

    @torch.no_grad()
    def taught(self, batch: Batch) -> tuple[Tensor, ...]:
        """The same of the teacher."""
        self._inputs.clear()
        self._outputs.clear()
        return self.teacher.model(
            input_ids=batch.ids,
            attention_mask=self._masks(batch)["full_attention"],
            position_ids=batch.positions,
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states[1:]

    def _masks(self, batch: Batch) -> dict[str, Tensor | Branches]:
        mask = added(batch.mask) if self.device == "cpu" else batch.mask
        return {"full_attention": mask, "linear_attention": Branches.of(batch.owners)}

    def _drawn(self, random: Random, shape: SceneShape, *, stage: Stage) -> Batch:
        batch = super()._drawn(random, shape, stage=stage)
        ids, positions, mask, owners = (
            each.to(self.device) for each in (batch.ids, batch.positions, batch.mask, batch.owners)
        )
        return replace(batch, ids=ids, positions=positions, mask=mask, owners=owners)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and what is predicted where it can be known; nothing is while mixers learn each for itself."""
        with torch.autocast(self.device, torch.bfloat16):
            taught = self.taught(batch)
            if self.stage < MIXER_STAGES and torch.is_grad_enabled():
                return self._mixer_loss(batch), torch.empty(0)
            hidden = self.hidden(batch)
            known, logits = self._predicted(hidden[-1], batch.targets)
            wanted = self.teacher.lm_head(taught[-1][batch.targets != IGNORED]).float().log_softmax(-1)
            far = functional.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean", log_target=True)
            held = batch.owners >= 0
            off = [_distance(hidden[ours][held], taught[theirs][held]) for ours, theirs in FOLLOWED.items()]
        self.parts = [round(each.item(), 3) for each in (known, far, *off)]
        return known + far + HIDDEN_WEIGHT * torch.stack(off).mean(), logits.argmax(-1)

    def _mixer_loss(self, batch: Batch) -> Tensor:
        """How far each mixer is from the attention of its layer, given the same input."""
        masks, held = self._masks(batch), batch.owners >= 0
        layers = cast(list[Qwen3NextDecoderLayer], self.model.model.layers)
        angles = self.model.model.rotary_emb(self._inputs[0], batch.positions)
        off: list[Tensor] = []
        for ours, theirs in TAUGHT.items():
            layer, given, wanted = layers[ours], self._inputs[theirs], self._outputs[theirs]
            mask = masks[layer.block_type]
            is_full = layer.block_type == "full_attention"
            mixed = layer.self_attn(given, angles, mask)[0] if is_full else layer.linear_attn(given, mask)
            off.append(_distance(mixed[held], wanted[held]))
        self.parts = [round(each.item(), 3) for each in off]
        return torch.stack(off).mean()

    def run(self) -> None:
        super().run()
        self.compare()

    @torch.no_grad()
    def compare(self) -> None:
        """Tells what the built-in model and the twin have right of the same questions, by kind, in three sizes."""

        def teachers(batch: Batch) -> Tensor:
            return self.teacher.lm_head(self.taught(batch)[-1][batch.targets != IGNORED]).argmax(-1)

        for shape in SIZES:
            random = Random(f"{SEED}/compared")
            batches = [self._drawn(random, shape, stage=COMPARED) for _ in range(SCORED)]
            log.info("%d passages, %d questions", shape.passages[0], sum(len(each.answers) for each in batches))
            for name, model in (("built-in", teachers), ("twin", lambda batch: self.loss(batch)[1])):
                right = shares((batch, model(batch)) for batch in batches)
                log.info("  %s %s", name, " ".join(f"{kind} {share:.3f}" for kind, share in right.items()))


def _distance(ours: Tensor, theirs: Tensor) -> Tensor:
    theirs = theirs.float()
    return (ours.float() - theirs).square().mean() / theirs.square().mean()


@torch.no_grad()
def _begin(model: Qwen3NextForCausalLM, teacher: LlamaForCausalLM) -> None:
    """Gives the model what fits of the teacher, attention too; what else it has says nothing yet."""
    config, weights = model.config, teacher.state_dict()
    fitting = {name: weight for name, weight in weights.items() if "layers" not in name}
    for ours, theirs in TAUGHT.items():
        prefix = f"layers.{theirs}."
        fitting |= {n.replace(prefix, f"layers.{ours}."): weight for n, weight in weights.items() if prefix in n}
    for name, weight in fitting.items():
        if name.endswith("norm.weight"):
            fitting[name] = weight - 1
        elif "q_proj" in name:  # a gate of zeros lets a half through, so what it lets through is doubled
            asks = weight.view(config.num_attention_heads, config.head_dim, -1)
            fitting[name] = torch.cat([asks, torch.zeros_like(asks)], 1).flatten(0, 1)
        elif "o_proj" in name:
            fitting[name] = 2 * weight
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            weight.fill_(1.0)
        elif name.endswith("A_log"):
            weight.copy_(FADES.log())
        elif name.endswith(("out_proj.weight", "down_proj.weight")):
            weight.zero_()
    model.load_state_dict(fitting, strict=False)


if __name__ == "__main__":
    main(Distillation)
