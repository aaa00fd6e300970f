"""Fuses for the tests: prompts of cached and missing chunks, ours and what `dense` says of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blend.adopt.load import LoadedModel
from blend.capture.capture import capture
from blend.fuse.fuse import BlendOrder, FusedPrompt, fuse
from blend.fuse.policy import policy_name, select
from blend.fuse.prompt import ChunkSegment, Prompt, PromptLayout, TextSegment, lay_out
from blend.fuse.record_loader import Readers
from store.blob import Terms
from store.codec.encode import encode
from store.fingerprint import digest_ids
from store.key import CacheKey
from store.reader import read
from store.record import Tail
from store.record_source import BlobSource, HeldRecord
from tests.blend.dense import Cached, Choice

READERS = Readers(2)
ASK = (
    "ask/rows=question/layers=third/check=none/stretch=8"  # `ask` without its rule of short chunks: here all are short
)


def source(model: LoadedModel, behind: Sequence[int], ids: Sequence[int], *, tail: Sequence[int] = ()) -> HeldRecord:
    """A fresh record of a chunk, and of what follows it."""
    [record] = capture(model.decoder, behind, chunks=[[*ids, *tail]])
    if tail:
        record = replace(record, ids_digest=digest_ids(ids), tail=Tail(len(tail), digest_ids(tail)))
    return HeldRecord(record, model.fingerprint.behind(behind))


def packed(held: HeldRecord, spec: str) -> BlobSource:
    """The record as a store keeps it."""
    key = CacheKey("t", "c", "f", spec)
    blob = encode(held._record, key, terms=Terms(0, precomputed=True))  # pyright: ignore[reportPrivateUsage]
    return BlobSource(read(blob), held.fingerprint)


@dataclass(frozen=True)
class Case:
    """`pattern`: one letter for a segment: h a chunk with a record, m one without, t text between."""

    prefix: tuple[int, ...]
    captured_behind: tuple[int, ...]
    pattern: str
    parts: tuple[tuple[int, ...], ...]
    suffix: tuple[int, ...]
    question: int = 0

    def prompt(self, model: LoadedModel) -> Prompt:
        kinds = {
            "h": lambda ids: ChunkSegment(ids, source(model, self.captured_behind, ids)),
            "m": ChunkSegment,
            "t": TextSegment,
        }
        segments = tuple(kinds[kind](ids) for kind, ids in zip(self.pattern, self.parts, strict=True))
        return Prompt(self.prefix, segments, self.suffix, self.question)

    @property
    def cached(self) -> list[Cached]:
        """Those with a record, and where they stand."""
        place, found = len(self.prefix), list[Cached]()
        for kind, ids in zip(self.pattern, self.parts, strict=True):
            if kind == "h":
                found.append(Cached(place, self.captured_behind, ids))
            place += len(ids)
        return found


def layout(model: LoadedModel, prompt: Prompt) -> PromptLayout:
    decoder = model.decoder
    return lay_out(prompt, fingerprint=model.fingerprint, window=decoder.window, vocabulary=decoder.vocabulary)


def fused(
    model: LoadedModel, prompt: Prompt, *, policy: str, ratio: float = 0.0, piece_rows: int = 1024
) -> FusedPrompt:
    """A fuse in a context of its own."""
    placed = layout(model, prompt)
    context = model.decoder.context(len(placed.ids) + 32)
    return fuse(
        model.decoder, placed, context=context, order=BlendOrder(policy, ratio, piece_rows=piece_rows), readers=READERS
    )


def chosen(
    model: LoadedModel, prompt: Prompt, *, policy: str, ratio: float, found: Sequence[Sequence[int]] = ()
) -> Choice:
    """What a policy forces and filters: the input of `dense.blended`."""
    placed = layout(model, prompt)
    selection = select(placed, policy=policy, ratio=ratio, keeping=model.decoder.model_layers.keeping)
    spans = {slot for span in selection.layout.spans for slot in range(span.start, span.stop)}
    always = [slot for slot in range(len(placed.ids)) if slot not in spans]
    filters = [(each.layer, each.keep) for each in selection.filters]
    question = 1 if policy_name(policy) != policy and "rows=question" not in policy else rows_of_question(prompt)
    asked = selection.probe
    probe = asked and (asked.layers, asked.keep, question, asked.stretch)
    return Choice(sorted({*always, *selection.forced}), filters, found, probe, selection.replayed)


def rows_of_question(prompt: Prompt) -> int:
    """How many of the prompt's last tokens ask: of what stands behind all chunks and their tails."""
    last = next((each for each in reversed(prompt.segments) if isinstance(each, ChunkSegment)), None)
    tail = 0
    if last is prompt.segments[-1] and last is not None and last.source is not None:
        recorded = last.source.tail
        behind = prompt.suffix[:-1][: recorded.tokens]
        tail = recorded.tokens if recorded.tokens and digest_ids(behind) == recorded.digest else 0
    return min(128, len(prompt.suffix) - tail, prompt.question or 128)


def off(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of logits, relative to the largest logit."""
    return float((ours.cpu() - theirs.cpu()).abs().max() / theirs.abs().max())


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool(torch.isfinite(ours).all()) and off(ours, theirs) < 1e-4
