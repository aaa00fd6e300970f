"""Fuses for the tests: prompts of cached and missing chunks, ours and what `dense` says of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from blend.capture import capture
from blend.fuse import Fused, Order, fuse
from blend.load import Model
from blend.policy import select
from blend.prompt import Chunk, Held, Layout, Prompt, Text, lay_out
from tests.blend.dense import Cached, Choice

READERS = ThreadPoolExecutor(2)


def source(model: Model, behind: Sequence[int], ids: Sequence[int]) -> Held:
    """A fresh record of a chunk."""
    [record] = capture(model.decoder, behind, chunks=[ids])
    return Held(record, model.fingerprint.behind(behind))


@dataclass(frozen=True)
class Case:
    """`pattern`: one letter for a segment: h a chunk with a record, m one without, t text between."""

    prefix: tuple[int, ...]
    captured_behind: tuple[int, ...]
    pattern: str
    parts: tuple[tuple[int, ...], ...]
    suffix: tuple[int, ...]

    def prompt(self, model: Model) -> Prompt:
        kinds = {
            "h": lambda ids: Chunk(ids, source(model, self.captured_behind, ids)),
            "m": Chunk,
            "t": Text,
        }
        segments = tuple(kinds[kind](ids) for kind, ids in zip(self.pattern, self.parts, strict=True))
        return Prompt(self.prefix, segments, self.suffix)

    @property
    def cached(self) -> list[Cached]:
        """Those with a record, and where they stand."""
        place, found = len(self.prefix), list[Cached]()
        for kind, ids in zip(self.pattern, self.parts, strict=True):
            if kind == "h":
                found.append(Cached(place, self.captured_behind, ids))
            place += len(ids)
        return found


def layout(model: Model, prompt: Prompt) -> Layout:
    decoder = model.decoder
    return lay_out(prompt, fingerprint=model.fingerprint, window=decoder.window, vocabulary=decoder.vocabulary)


def fused(model: Model, prompt: Prompt, *, policy: str, ratio: float = 0.0, piece_rows: int = 1024) -> Fused:
    """A fuse in a context of its own."""
    placed = layout(model, prompt)
    context = model.decoder.context(len(placed.ids) + 32)
    return fuse(model.decoder, placed, context=context, order=Order(policy, ratio, piece_rows), readers=READERS)


def chosen(model: Model, prompt: Prompt, *, policy: str, ratio: float, found: Sequence[Sequence[int]] = ()) -> Choice:
    """What a policy forces and filters: the input of `dense.blended`."""
    placed = layout(model, prompt)
    selection = select(placed, policy=policy, ratio=ratio, keeping=model.decoder.anatomy.keeping)
    spans = {slot for span in selection.layout.spans for slot in range(span.start, span.stop)}
    always = [slot for slot in range(len(placed.ids)) if slot not in spans]
    filters = [(each.layer, each.keep) for each in selection.filters]
    return Choice(sorted({*always, *selection.forced}), filters, found)


def off(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of logits, relative to the largest logit."""
    return float((ours.cpu() - theirs).abs().max() / theirs.abs().max())


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool(torch.isfinite(ours).all()) and off(ours, theirs) < 1e-4
