"""Rows of a decoding step, one of each request, whose contexts share buffers: written by one call and attended by one.

Letters: `N` rows, `H` kv heads, `Hq` query heads, `S` tokens of a slab, `D` head dim.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

from blend.run.context import Context, LayerShape, Segment, numbers, span
from blend.run.slabs import LEAST, SlabContext, Slabs

log = logging.getLogger(__name__)

_OFF = 2e-2  # of numbers around one, in half precision


@dataclass(frozen=True, slots=True)
class JointRows:
    """Rows `start` to `stop` of a pass, one of each context, in the order in which these lie in a slab."""

    whole: Context
    start: int
    stop: int
    slots: Tensor  # (N,) int64, the rows' places in the slab
    rows: Tensor  # (N + 1,) int32, where the rows of each context begin: one behind the other
    begins: Tensor  # (N + 1,) int32, where its keys do
    seen: Tensor  # (N,) int32, how many of them its row sees
    most: int  # that a row sees

    def write(self, layer: int, keys: Tensor, *, values: Tensor) -> None:
        """Put these rows' part of a pass' keys and values (H, T, D) at their slots."""
        self.whole.keys(layer).index_copy_(1, self.slots, keys[:, self.start : self.stop])
        self.whole.values(layer).index_copy_(1, self.slots, values[:, self.start : self.stop])

    def seeing(self, first: Tensor, count: Tensor) -> "JointRows | None":
        """The rows, of whose keys each sees so many from the first on; None where that is not up to its own."""
        if not bool((first + count == self.seen).all()):
            return None
        begins = torch.cat([self.begins[:-1] + first, self.begins[-1:]])
        return replace(self, begins=begins.int(), seen=count.int())


def joint_rows(segments: Sequence[Segment]) -> list[JointRows]:
    """A pass' rows by slabs; none where some lie elsewhere, or in another order, or nothing would be spared."""
    placed = [(each.context, each.slots) for each in segments if len(each.slots) == 1]
    lone = [(context, slots.last) for context, slots in placed if isinstance(context, SlabContext)]
    places = [context.place for context, _ in lone]
    if len(lone) < len(segments) or sorted({*places}) != places:
        return []
    found, start = list[JointRows](), 0
    for _, each in groupby(lone, key=lambda one: one[0].slab):
        group = [*each]
        found.append(_joint(group, start))
        start += len(group)
    return found if len(found) < len(segments) else []


def _joint(group: Sequence[tuple[SlabContext, int]], start: int) -> JointRows:
    whole = group[0][0].slab.whole
    begins, lasts = [context.place[1] for context, _ in group], [last for _, last in group]
    device = whole.keys(whole.layers[0]).device
    slots = [begin + last for begin, last in zip(begins, lasts, strict=True)]
    table = [[*slots, 0], [*range(len(group) + 1)], [*begins, whole.capacity], [*(last + 1 for last in lasts), 0]]
    told = numbers(table, device=device)
    rows, ends, seen = told[1:].int()
    return JointRows(whole, start, start + len(group), told[0, :-1], rows, ends, seen[:-1], max(lasts) + 1)


def attend_jointly(group: JointRows, query: Tensor, *, seen: tuple[Tensor, Tensor], scaling: float | None) -> Tensor:
    """Query (1, Hq, T, D) of a pass over the slab's keys and values (H, S, D): these rows' part, (1, N, Hq, D)."""
    rows = query[0, :, group.start : group.stop].transpose(0, 1)
    keys, values = (each.transpose(0, 1) for each in seen)
    out = varlen_attn(
        *(rows, keys, values, group.rows, group.begins, 1, group.most),
        scale=scaling,
        enable_gqa=rows.shape[1] != keys.shape[1],
        seqused_k=group.seen,
    )
    assert isinstance(out, Tensor)
    return out[None]


def attends_jointly(
    shapes: Sequence[LayerShape | None], *, heads: int, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether this device attends the rows of several contexts by one call: each form of a layer is tried."""
    if device.type != "cuda" or dtype == torch.float32:
        return False
    some = {each for each in shapes if each}
    try:
        return all(_agrees(each, heads=heads, dtype=dtype, device=device) for each in some)
    except (RuntimeError, TypeError, ValueError) as error:
        log.info("decoding goes request by request: %s", error)
        return False


def _agrees(shape: LayerShape, *, heads: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether rows of two contexts see what they see alone."""
    slabs = Slabs(lambda tokens: Context([shape], capacity=tokens, dtype=dtype, device=device), most=4 * LEAST)
    contexts = [slabs.context(tokens) for tokens in (300, 200)]
    segments = [
        Segment(each, span(each.capacity - 2, each.capacity - 1, device=device), row)
        for row, each in enumerate(contexts)
    ]
    [group] = joint_rows(segments)
    seen = group.whole.keys(0), group.whole.values(0)
    for each in seen:
        each.normal_(generator=torch.Generator(device).manual_seed(0))
    query = torch.empty(1, heads, len(segments), shape.key_dim, dtype=dtype, device=device)
    for row, each in enumerate(segments):  # what a row looks at is its own key, and even more the one that it must not
        keys, _ = each.context.seen(0, each.visible + 1)
        query[0, :, row] = keys[:, -2].repeat_interleave(heads // len(keys), 0)
        keys[:, -1] = 2 * keys[:, -2]
    ours = attend_jointly(group, query, seen=seen, scaling=None)[0]
    for row, each in enumerate(segments):
        keys, values = (every.repeat_interleave(heads // len(every), 0) for every in each.context.seen(0, each.visible))
        alone = nn.functional.scaled_dot_product_attention(query[0, :, row : row + 1], keys, values)[:, 0]
        if not torch.allclose(ours[row].float(), alone.float(), atol=_OFF, rtol=_OFF):
            return False
    return True
