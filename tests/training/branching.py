"""Gated DeltaNet on contexts with several questions each, for training: linear attention knows no mask.

The same parameters as transformers' own, which reads one question at a time, and the same outputs.
"""

# transformers is not typed to the end
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

BLOCK = 16  # tokens of a context that the delta rule takes at a time


@dataclass(frozen=True, slots=True)
class Branches:
    """Where a batch's contexts and questions lie. Each question goes on from the context, as if alone.

    Contexts end together, on a border of the delta rule's blocks; questions begin together.
    """

    contexts: Tensor  # (B, C) places in the flattened batch, -1 before a context's first token
    questions: Tensor  # (Q, S) the same, -1 behind a question's last token
    rows: Tensor  # (Q,) the context of each question

    @staticmethod
    def of(owners: Tensor) -> "Branches":
        width = owners.shape[1]
        contexts, questions = list[Tensor](), list[Tensor]()
        rows: list[int] = []
        for row, owner in enumerate(owners):
            contexts.append((owner == 0).nonzero()[:, 0] + row * width)
            for asked in range(1, int(owner.max()) + 1):
                questions.append((owner == asked).nonzero()[:, 0] + row * width)
                rows.append(row)
        return Branches(
            _together(contexts, BLOCK, ends=True),
            _together(questions, 4, ends=False),
            torch.tensor(rows, device=owners.device),
        )

    def put(self, contexts: Tensor, questions: Tensor, *, tokens: int) -> Tensor:
        """What lies at these places, (B * T, W)."""
        found = contexts.new_zeros(tokens + 1, contexts.shape[-1])
        found = found.index_copy(0, self.contexts.flatten() % (tokens + 1), contexts.flatten(0, 1))
        return found.index_copy(0, self.questions.flatten() % (tokens + 1), questions.flatten(0, 1))[:-1]


def _together(places: Sequence[Tensor], multiple: int, *, ends: bool) -> Tensor:
    width = -(-max(map(len, places)) // multiple) * multiple
    pads = [(width - len(each), 0) if ends else (0, width - len(each)) for each in places]
    return torch.stack([functional.pad(each, pad, value=-1) for each, pad in zip(places, pads, strict=True)])


@dataclass(frozen=True, slots=True)
class Blocks:
    """What blocks of N times L tokens say while the states before them are not known; B rows, H heads."""

    keys: Tensor  # (B, H, N, L, K), as the state behind the block has them
    overwritten: Tensor  # (B, H, N, L, K), what of the state before it they overwrite
    decay: Tensor  # (B, H, N), of that state
    adds: Tensor  # (B, H, N, K, V), to the state
    reads: Tensor  # (B, H, N, L, K), of the state before
    own: Tensor  # (B, H, N, L, V), what is read from the block itself
    gate: Tensor  # (B, N * L, H, V)

    def kept(self) -> Tensor:
        """What is left of a state, (B, H, N, K, K)."""
        once = torch.eye(self.keys.shape[-1], device=self.keys.device) * self.decay[..., None, None]
        return once - self.keys.transpose(-1, -2) @ self.overwritten


class BranchingDeltaNet(Qwen3NextGatedDeltaNet):
    """transformers' own for a batch of contexts, each with questions that go on from its state. Keeps gradients."""

    def forward(self, hidden_states: Tensor, attention_mask: Branches, **kwargs: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        branches, flat = attention_mask, hidden_states.flatten(0, 1)
        before = flat.new_zeros(len(branches.contexts), self.conv_kernel_size - 1, self.conv_dim, dtype=torch.float32)
        context, inputs = _blocks(self, flat, branches.contexts, before, tokens=BLOCK)
        with torch.autocast(flat.device.type, enabled=False):
            states = [torch.zeros_like(context.adds[:, :, 0])]
            for kept, adds in zip(context.kept().unbind(2), context.adds.unbind(2), strict=True):
                states.append(kept @ states[-1] + adds)
        told = _read(self, context, torch.stack(states[:-1], 2))
        length = branches.questions.shape[1]
        questions, _ = _blocks(self, flat, branches.questions, inputs[branches.rows], tokens=length)
        asked = _read(self, questions, states[-1][branches.rows][:, :, None])
        return branches.put(told, asked, tokens=len(flat)).view_as(hidden_states)


def _blocks(
    net: BranchingDeltaNet, flat: Tensor, places: Tensor, before: Tensor, *, tokens: int
) -> tuple[Blocks, Tensor]:
    """What lies at these places, in blocks of so many tokens, and the last inputs of the convolution.

    `before`: its inputs before the first token.
    """
    hidden = flat[places.clamp(0)] * (places >= 0)[..., None]
    rows, width = places.shape
    query, key, value, gate, write, fade = net.fix_query_key_value_ordering(
        net.in_proj_qkvz(hidden), net.in_proj_ba(hidden)
    )
    with torch.autocast(flat.device.type, enabled=False):
        inputs = torch.cat([before, torch.cat([each.flatten(2) for each in (query, key, value)], -1).float()], 1)
        taps = net.conv1d.weight[:, 0].unbind(1)
        mixed = functional.silu(reduce(torch.add, (inputs[:, i : i + width] * tap for i, tap in enumerate(taps))))
        query, key, value = (
            each.reshape(rows, width // tokens, tokens, net.num_v_heads, -1).permute(0, 3, 1, 2, 4)
            for each in mixed.split([net.key_dim, net.key_dim, net.value_dim], -1)
        )  # (B, H, N, L, K), (B, H, N, L, V)
        query, key = (each * torch.rsqrt(each.square().sum(-1, keepdim=True) + 1e-6) for each in (query, key))
        query = query * net.head_k_dim**-0.5
        fade = -net.A_log.exp() * functional.softplus(fade.float() + net.dt_bias)
        write, fade = (
            each.float().view(rows, width // tokens, tokens, -1).permute(0, 3, 1, 2) for each in (write.sigmoid(), fade)
        )  # (B, H, N, L)
        fade = fade.cumsum(-1)
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=flat.device).tril()
        decay = (fade[..., :, None] - fade[..., None, :]).masked_fill(~seen, float("-inf")).exp()
        written = key * write[..., None]
        system = (written @ key.transpose(-1, -2)) * decay  # its diagonal is taken for ones
        known = torch.cat([value * write[..., None], written * fade.exp()[..., None]], -1)
        known = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
        values, overwritten = known.split([net.head_v_dim, net.head_k_dim], -1)
        own = (query @ key.transpose(-1, -2)) * decay
        reads = query * fade.exp()[..., None] - own @ overwritten
        keys = key * (fade[..., -1:] - fade).exp()[..., None]
        return Blocks(
            keys, overwritten, fade[..., -1].exp(), keys.transpose(-1, -2) @ values, reads, own @ values, gate
        ), inputs[:, width:]


def _read(net: BranchingDeltaNet, blocks: Blocks, states: Tensor) -> Tensor:
    """What the mixer gives, (B, N * L, W), when the state before each block is known."""
    with torch.autocast(states.device.type, enabled=False):
        found = (blocks.reads @ states + blocks.own).permute(0, 2, 3, 1, 4)  # (B, N, L, H, V)
    return net.out_proj(net.norm(found.flatten(1, 2), blocks.gate).flatten(2))
