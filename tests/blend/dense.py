"""What a fuse must compute, by stock transformers alone: dense attention, explicit masks, caches filled by hand.

Nothing of blend is used here. Keys at a place come from a native prefill at that place, so nothing is ever rotated.
"""

import inspect
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

Ids = Sequence[int]
Layers = list[tuple[Tensor, Tensor] | None]


@dataclass(frozen=True)
class Cached:
    """A chunk that was captured behind a prefix and stands at `start` now."""

    start: int
    prefix: Ids
    ids: Ids

    @property
    def slots(self) -> range:
        return range(self.start, self.start + len(self.ids))


def config_for_cache(model: PreTrainedModel) -> PreTrainedConfig | None:
    """Of a model with states, whose cache has layers of its own; a cache of any other is of full-length layers."""
    config = model.config.get_text_config(decoder=True)
    layers = DynamicCache(config=config).layers
    return config if any(isinstance(each, LinearAttentionCacheLayerMixin) for each in layers) else None


class Placed(DynamicCache):
    """A stock cache of full-length layers that knows where the fresh rows stand (Llama-4 asks it).

    Layers with states run the rows in order, as if there were no others.
    """

    def __init__(self, model: PreTrainedModel, rows: Tensor) -> None:
        super().__init__(config=config_for_cache(model))
        self._offsets = rows - torch.arange(len(rows))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._offsets  # type: ignore[return-value]


def masks(
    model: PreTrainedModel, rows: Tensor, columns: Tensor
) -> Tensor | dict[str, Tensor] | dict[str, Tensor | None]:
    """Additive masks for rows that see columns, by their positions, as the configuration describes each layer type."""
    config = model.config.get_text_config(decoder=True)
    ahead = columns[None, :] > rows[:, None]
    window = getattr(config, "sliding_window", None) or 10**9
    chunk = getattr(config, "attention_chunk_size", None) or 10**9
    hidden = {
        "full_attention": ahead,
        "sliding_attention": ahead | (columns[None, :] <= rows[:, None] - window),
        "chunked_attention": ahead | (columns[None, :] // chunk != rows[:, None] // chunk),
    }
    shown = {
        kind: torch.zeros(mask.shape).masked_fill(mask, torch.finfo(torch.float32).min)[None, None]
        for kind, mask in hidden.items()
    }
    kinds = set(getattr(config, "layer_types", None) or ())
    if config_for_cache(model) is not None:  # a mask of states would tell what fills up
        states = dict.fromkeys({"linear_attention", *kinds} - {"full_attention", "attention"})
        ordinary = dict.fromkeys(("full_attention", "attention"), shown["full_attention"])
        return {**states, **ordinary} if takes_dict(model) else shown["full_attention"]
    if len(kinds) > 1 or kinds & {"chunked_attention"} or takes_dict(model):
        return shown
    return shown["sliding_attention" if config.model_type == "mistral" else (kinds or {"full_attention"}).pop()]


def takes_dict(model: PreTrainedModel) -> bool:
    """Models that could mix layer types take a mask for each: told by the source of what runs the layers."""
    text = model.config.get_text_config(decoder=True)
    parts = {type(each) for each in model.modules() if isinstance(each, PreTrainedModel) and each.config is text}
    return any(map(_asks_for_dict, parts))


@lru_cache(None)
def _asks_for_dict(part: type[PreTrainedModel]) -> bool:
    return ":= attention_mask, dict)" in inspect.getsource(part.forward)


def prefill(model: PreTrainedModel, ids: Ids) -> Tensor:
    """Logits (T, V) of a full prefill."""
    with torch.inference_mode():
        return model(torch.tensor([list(ids)]), use_cache=False).logits[0]


def greedy(model: PreTrainedModel, ids: Ids, count: int) -> tuple[list[int], list[float]]:
    """Tokens chosen one by one, each by a full prefill, and by how much the first beat the second."""
    chosen: list[int] = []
    leads: list[float] = []
    for _ in range(count):
        best = prefill(model, [*ids, *chosen])[-1].topk(2)
        chosen.append(int(best.indices[0]))
        leads.append(float(best.values[0] - best.values[1]) / float(best.values[0].abs()))
    return chosen, leads


def is_greedy(model: PreTrainedModel, ids: Ids, chosen: Sequence[int], *, count: int = 16, tie: float = 0.0) -> bool:
    """Whether so many tokens are those that `greedy` chooses, up to the first that beats the second by less than `tie`.

    One prefill of all of them tells, as no token sees a later one.
    """
    best = prefill(model, [*ids, *chosen[:-1]])[len(ids) - 1 :].topk(2)
    leads = (best.values[:, 0] - best.values[:, 1]) / best.values[:, 0].abs()
    certain = next((at for at, lead in enumerate(leads.tolist()) if lead < tie), count)
    return len(chosen) == count and [*chosen[:certain]] == best.indices[:certain, 0].tolist()


def native_kv(model: PreTrainedModel, ids: Ids, *, first: int = 0) -> Layers:
    """Keys and values (H, T, D) of a native prefill whose first token stands at position `first`, masks as from 0."""
    own = torch.arange(len(ids))
    cache = DynamicCache(config=config_for_cache(model))
    with torch.inference_mode():
        model(
            torch.tensor([list(ids)]),
            position_ids=(own + first)[None],
            past_key_values=cache,
            attention_mask=masks(model, own, own),
            use_cache=True,
        )
    return stored(cache)


@lru_cache(32)  # several tests on end ask about one prompt
def _known_kv(model: PreTrainedModel, ids: tuple[int, ...], *, first: int) -> Layers:
    return native_kv(model, ids, first=first)


def stored(cache: DynamicCache) -> Layers:
    """(H, T, D) of each layer; None where nothing was stored."""
    layers = [each if isinstance(each, DynamicLayer) and each.is_initialized else None for each in cache.layers]
    return [each and (each.keys[0], each.values[0]) for each in layers]  # pyright: ignore[reportOptionalSubscript]


def chunk_kv(model: PreTrainedModel, chunk: Cached) -> Layers:
    """A chunk's keys and values, captured behind its prefix, as they are where the chunk stands now."""
    behind = len(chunk.prefix)
    whole = _known_kv(model, (*chunk.prefix, *chunk.ids), first=chunk.start - behind)
    return [None if kv is None else (kv[0][:, behind:], kv[1][:, behind:]) for kv in whole]


def slots_kv(model: PreTrainedModel, ids: Ids, chunks: Sequence[Cached]) -> Layers:
    """One (H, N, D) for each layer with the chunks in their slots and nothing elsewhere."""
    whole = list(_known_kv(model, tuple(ids), first=0))
    for layer, kv in enumerate(whole):
        if kv is not None:
            whole[layer] = (torch.full_like(kv[0], 7.0), torch.full_like(kv[1], 7.0))
    for chunk in chunks:
        for to, kv in zip(whole, chunk_kv(model, chunk), strict=True):
            if to is not None and kv is not None:
                to[0][:, list(chunk.slots)], to[1][:, list(chunk.slots)] = kv
    return whole


def rows_through(model: PreTrainedModel, ids: Ids, rows: Sequence[int], cached: Layers) -> tuple[Tensor, Layers]:
    """Compute some rows; every other slot holds what `cached` has. Logits of the rows, and their keys and values."""
    places = torch.tensor(rows)
    rest = torch.tensor([slot for slot in range(len(ids)) if slot not in set(rows)], dtype=torch.int64)
    cache = Placed(model, places)
    for layer, kv in enumerate(cached):
        if kv is not None:
            cache.update(kv[0][None, :, rest], kv[1][None, :, rest], layer)
    with torch.inference_mode():
        logits = model(
            torch.tensor([[ids[row] for row in rows]]),
            position_ids=places[None],
            past_key_values=cache,
            attention_mask=masks(model, places, torch.cat([rest, places])),
            use_cache=True,
        ).logits[0]
    behind = len(rest)
    return logits, [kv if kv is None else (kv[0][:, behind:], kv[1][:, behind:]) for kv in stored(cache)]


def entered(model: PreTrainedModel, chunk: Cached, layers: Collection[int]) -> dict[int, Tensor]:
    """What enters these layers (T, E) for a chunk behind its prefix."""
    found: dict[int, Tensor] = {}
    with entering(model, layers, found.setdefault):
        native_kv(model, [*chunk.prefix, *chunk.ids])
    return {layer: hidden[0, len(chunk.prefix) :] for layer, hidden in found.items()}


@contextmanager
def entering(
    model: PreTrainedModel, layers: Collection[int], change: Callable[[int, Tensor], Tensor]
) -> Generator[None]:
    """Has what enters some layers be what `change` makes of it."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    stack = next(each for each in model.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == count)

    def hooked(layer: int) -> Callable[..., tuple[tuple[object, ...], dict[str, object]]]:
        return lambda module, args, kwargs: ((change(layer, args[0]), *args[1:]), kwargs)

    hooks = [stack[layer].register_forward_pre_hook(hooked(layer), with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def replayed(
    model: PreTrainedModel, ids: Ids, chunks: Sequence[Cached], *, choice: "Choice", layers: Collection[int]
) -> Tensor:
    """Last logits of rows that are computed. The replayed ones run along, but enter these layers as at capture, and
    what keys they have nobody sees.
    """
    rows, slots = set(choice.rows), set(choice.replayed)
    both = sorted(rows | slots)
    places, rest = torch.tensor(both), torch.tensor([slot for slot in range(len(ids)) if slot not in rows])
    cache = Placed(model, places)
    for layer, kv in enumerate(slots_kv(model, ids, chunks)):
        if kv is not None:
            cache.update(kv[0][None, :, rest], kv[1][None, :, rest], layer)
    at = [row for row, slot in enumerate(both) if slot in slots]
    shown = masks(model, places, torch.cat([rest, places]))
    for mask in shown.values() if isinstance(shown, dict) else [shown]:
        if mask is not None:
            mask[..., [len(rest) + row for row in at]] = torch.finfo(torch.float32).min
    held = {each.slots.start: entered(model, each, layers) for each in chunks}

    def captured(layer: int, hidden: Tensor) -> Tensor:
        changed = hidden.clone()
        for row in at:
            chunk = next(each for each in chunks if both[row] in each.slots)
            changed[0, row] = held[chunk.start][layer][both[row] - chunk.start]
        return changed

    with entering(model, layers, captured), torch.inference_mode():
        logits = model(
            torch.tensor([[ids[row] for row in both]]),
            position_ids=places[None],
            past_key_values=cache,
            attention_mask=shown,
            use_cache=True,
        ).logits[0]
    return logits[-1]


@dataclass(frozen=True)
class Choice:
    """What a fuse computes: `rows` in any case, and what each filter (layer, keep) leaves of what `probe` leaves.

    Where tokens deviate alike but for rounding, as those whose window ends inside their chunk, any of them may stay:
    then those that `found` names for the stage do.
    """

    rows: Sequence[int]
    filters: Sequence[tuple[int, int]]
    found: Sequence[Sequence[int]] = ()
    probe: tuple[Sequence[int], int, int, int] | None = (
        None  # layers whose attention counts, slots that it leaves, last rows, slots of a chunk that count together
    )
    replayed: Sequence[int] = ()

    def keep(self, scores: dict[int, float], free: Sequence[int], *, count: int, stage: int) -> list[int]:
        """The slots of `free` with the highest scores: what the stage of that number leaves."""
        found = set(self.found[stage]) if self.found else set[int]()
        if count >= len(free):
            return list(free)
        last = sorted(scores[slot] for slot in free)[-count]
        band = 1e-3 * last + 1e-10
        sure = [slot for slot in free if scores[slot] > last + band]
        alike = sorted((slot for slot in free if abs(scores[slot] - last) <= band), key=lambda s: s not in found)
        return sorted([*sure, *alike[: count - len(sure)]])


def exact(chunk: Cached, ids: Ids) -> bool:
    """Whether the chunk stands where it was captured."""
    return list(chunk.prefix) == list(ids[: chunk.start])


def blended(model: PreTrainedModel, ids: Ids, chunks: Sequence[Cached], *, choice: Choice) -> tuple[Tensor, list[int]]:
    """Last logits of a fuse, and the cached slots that were recomputed.

    Each filter ends a stage: all rows of the stage have fresh keys up to its layer.
    """
    rows, filters = choice.rows, choice.filters
    store = slots_kv(model, ids, chunks)
    cached = {slot for chunk in chunks if not exact(chunk, ids) for slot in chunk.slots}
    free = [slot for slot in sorted(cached) if slot not in set(rows)] if filters or choice.probe else []
    if choice.probe:
        fresh_rows = [slot for slot in rows if slot not in cached]  # what is forced is cached as yet
        looked = looked_at(model, ids, fresh_rows, store, probe=choice.probe)
        stretches = [each for chunk in chunks if not exact(chunk, ids) for each in cut(chunk.slots, choice.probe[3])]
        around = {slot: fmean(looked[each] for each in some) for some in stretches for slot in some}
        looked = {slot: score + around.get(slot, 0.0) for slot, score in looked.items()}
        free = choice.keep(looked, free, count=choice.probe[1], stage=0)
    for number, (layer, count) in enumerate(filters):
        stage = sorted({*rows, *free})
        _, fresh = rows_through(model, ids, stage, store)
        scores = deviation(store, fresh, layer=layer, stage=stage, cached=sorted(cached & set(stage)))
        free = choice.keep(scores, free, count=count, stage=number + bool(choice.probe))
        for index in range(layer + 1):
            held, kv = store[index], fresh[index]
            if held is not None and kv is not None:
                held[0][:, stage], held[1][:, stage] = kv
    final = sorted({*rows, *free})
    logits, _ = rows_through(model, ids, final, store)
    return logits[-1], sorted(cached & set(final))


def cut(slots: Sequence[int], size: int) -> list[Sequence[int]]:
    """So many at a time, and what is left at the end."""
    return [slots[at : at + size] for at in range(0, len(slots), size)]


def looked_at(
    model: PreTrainedModel, ids: Ids, rows: Sequence[int], cached: Layers, *, probe: tuple[Sequence[int], int, int, int]
) -> dict[int, float]:
    """How much the last rows look at each slot in these layers, by the weights that transformers itself shows."""
    with showing(model) as weights:
        rows_through(model, ids, rows, cached)
    places = [*(slot for slot in range(len(ids)) if slot not in set(rows)), *rows]
    layers, _, last, _ = probe
    sums = torch.stack([weights[layer][0, :, -last:].mean(0).sum(0) for layer in layers]).sum(0)
    return {slot: float(each) for slot, each in zip(places, sums, strict=True)}


@contextmanager
def showing(model: PreTrainedModel) -> Generator[dict[int, Tensor]]:
    """Collects the attention weights (1, H, T, S) of each layer, out of what its attention module returns."""
    found: dict[int, Tensor] = {}

    def note(module: torch.nn.Module, args: object, output: Tensor | tuple[object, ...]) -> None:
        if isinstance(output, tuple):  # what keeps a state instead is called attention, too
            weights = output[1]
            assert isinstance(weights, Tensor)
            found[cast(int, module.layer_idx)] = weights

    modules = [each for each in model.modules() if type(each).__name__.endswith("Attention") and has_index(each)]
    hooks = [each.register_forward_hook(note) for each in modules]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def has_index(module: torch.nn.Module) -> bool:
    return isinstance(getattr(module, "layer_idx", None), int)


def deviation(store: Layers, fresh: Layers, *, layer: int, stage: list[int], cached: list[int]) -> dict[int, float]:
    """Squared distance of each cached slot's fresh keys and values, each relative to the sum of squares."""
    held, new = store[layer], fresh[layer]
    assert held is not None and new is not None
    scores = dict.fromkeys(cached, 0.0)
    for part in range(2):
        norm = held[part][:, cached].square().sum()
        for slot in cached:
            off = (new[part][:, stage.index(slot)] - held[part][:, slot]).square().sum()
            scores[slot] += float(off / norm)
    return scores
