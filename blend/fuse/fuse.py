"""Fuses a prompt's stored and recomputed rows in pieces; records damaged, or cut by a kept beginning, become text.

A fuse is a row of stages. Each runs some rows from one layer to the keys and values of another, in pieces of bounded
size; where a stage ends, `choice` decides which rows the next one still runs. All rows end at the last layer with keys
of its own, except the last token's, which goes on to the logits.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from blend.errors import NotFinite
from blend.fuse.choice import AttentionChoice, DeviationChoice
from blend.fuse.policy import DeviationFilter, QuestionProbe, Selection, select
from blend.fuse.prompt import ChunkSpan, PromptLayout
from blend.fuse.record_loader import DamagedRecord, Readers, RecordLoader
from blend.run.context import Context, Slots, numbers, scattered
from blend.run.decoder import Decoder
from blend.run.rows_cache import LayerHooks, LayerRange
from store.errors import Miss, MissReason

PIECE_ROWS = {"cuda": 8192}  # a GPU prefers few large pieces, and is soon done even so
FEW_ROWS = 1024  # on any other device


@dataclass(frozen=True, slots=True)
class BlendOrder:
    """How caches are reused. Orders of one policy and ratio are equal; the rest fits the fuse into an engine's work.

    `between` is called before each layer of each piece of `piece_rows` (0: as many as suit the device), so that other
    requests may compute meanwhile. `final` is called once for each layer that keeps keys, in order, as soon as those of
    all tokens but the last are final; `again` where a damaged record makes the fuse start over: no layer is final any
    more.
    """

    policy: str = "ask"
    ratio: float = 0.15
    piece_rows: int = field(default=0, repr=False, compare=False)
    between: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    final: Callable[[int], None] = field(default=lambda layer: None, repr=False, compare=False)
    again: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def check(self) -> None:
        """Raise PromptError for a policy or a ratio that does not exist."""
        select(PromptLayout((), (), ()), policy=self.policy, ratio=self.ratio, keeping=(0,))


@dataclass(frozen=True, slots=True)
class FuseReport:
    """What a fuse did. `reused`, `recomputed` and `fresh` add up to the prompt's tokens.

    Seconds: `ask`, `select` and `compute` are the fuse's own; `wait` (for records) and `others` (other requests' steps)
    are parts of them, and `read` ran in parallel. `bytes` of keys and values came out of records. `stages` are the
    cached slots that the probe chose, and those that each stage after a check computed; the last ran all layers.
    """

    order: BlendOrder
    reused: int
    recomputed: int
    fresh: int
    stages: tuple[tuple[int, ...], ...]
    misses: tuple[tuple[int, Miss], ...]
    bytes: int
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class FusedPrompt:
    """A computed prompt: the context holds all of it, and `logits` (V,) are those of its last token."""

    context: Context
    logits: Tensor
    report: FuseReport


@dataclass(slots=True)
class Clock:
    """Counts seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Add the time inside to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@torch.inference_mode()
def fuse(
    decoder: Decoder, layout: PromptLayout, *, context: Context, order: BlendOrder, readers: Readers
) -> FusedPrompt:
    """Compute the layout into the context, behind the slots that are computed already; of these, too, what its policy
    chooses of what they have from records, as long as their records are at hand.
    """
    decoder.prepare(len(layout.ids))
    if decoder.model_layers.states:
        layout = layout.inexact()  # no record holds the states behind it
    for each in layout.spans:
        if each.start < context.placed < each.stop:
            layout = layout.without(each.chunk, Miss(MissReason.BEGUN))
    clock = Clock()
    moved = 0
    while True:
        layers = decoder.model_layers
        selection = select(layout, policy=order.policy, ratio=order.ratio, keeping=layers.keeping)
        work = _Fuse(decoder, selection, context=context, order=order, clock=clock)
        wanted = {layer: work.missing(selection.wanted(layer)) for layer in layers.keeping}
        wanted |= dict.fromkeys(layers.inputs, selection.replaying)
        loader = RecordLoader(decoder, context, wanted=wanted, readers=readers)
        try:
            logits = work.run(loader)
        except DamagedRecord as error:
            layout = layout.without(error.span.chunk, Miss(MissReason.CORRUPT, error.reason))
            order.again()
            continue
        finally:
            loader.close()
            moved += loader.bytes
        clock.seconds["read"] = clock.seconds.get("read", 0.0) + loader.read_s
        clock.seconds["wait"] = clock.seconds.get("wait", 0.0) + loader.waited_s
        if bool(torch.isfinite(logits).all()):
            work.finish_layers()
            context.cached = work.cached
            return FusedPrompt(context, logits, work.report(layout, moved))
        if not selection.layout.spans:
            raise NotFinite("the model's first logits are not finite: its weights are damaged, or overflow its dtype")
        layout = layout.as_text(Miss(MissReason.CORRUPT, "not finite"))
        order.again()


class _Fuse:
    """One attempt to fuse. `rows`: a flag for each slot that a stage computes; exact slots are never among them."""

    def __init__(
        self, decoder: Decoder, selection: Selection, *, context: Context, order: BlendOrder, clock: Clock
    ) -> None:
        self._decoder = decoder
        self._context = context
        self._order = order
        self._clock = clock
        self._selection = selection
        self._most = order.piece_rows or PIECE_ROWS.get(decoder.device.type, FEW_ROWS)  # rows of a piece
        layout = selection.layout
        self._ids = numbers(layout.ids, device=decoder.device)
        self._cached = torch.zeros(len(layout.ids), dtype=torch.bool)
        self._exact = torch.zeros(len(layout.ids), dtype=torch.bool)
        for each in layout.spans:
            (self._exact if each.exact else self._cached)[each.start : each.stop] = True
        self._exact[: context.placed] = True
        if context.cached is not None:
            own = context.cached[: context.placed]
            self._exact[: len(own)] = ~own
        self._cached &= ~self._exact
        self._forced = torch.zeros_like(self._cached)
        self._forced[list(selection.forced)] = True
        self._forced &= ~self._exact
        self._replayed = torch.zeros_like(self._cached)
        self._replayed[list(selection.replayed)] = True
        self._replayed &= ~self._exact
        self._feed: RecordLoader | None = None
        self._open = deque(decoder.model_layers.keeping)  # the layers that are not final yet
        self._stages: list[Tensor] = []

    @property
    def cached(self) -> Tensor:
        """Flags of the slots that stay as their records have them."""
        return self._cached & ~self._stages[-1]

    def missing(self, spans: Sequence[ChunkSpan]) -> list[ChunkSpan]:
        """Those of the spans that do not stand in the context."""
        return [each for each in spans if each.start >= self._context.placed]

    def run(self, loader: RecordLoader) -> Tensor:
        """Computes the prompt; returns the last token's logits."""
        self._feed = loader
        rows = ~self._exact
        start, hidden = 0, None
        probe, filters = self._selection.probe, self._selection.filters
        if probe:
            with self._clock.stage("ask"):
                chosen = self._probed(probe) | self._forced
            rows &= ~self._cached | chosen
            is_done = probe.layers[-1] == self._open[-1] and not self._decoder.model_layers.states
            if is_done:  # rows before the first chosen slot are computed already
                rows[: next(iter(_numbers(chosen)), len(rows) - 1)] = False
        elif not filters:
            rows &= ~self._cached | self._forced
        if probe or not filters:
            self._stages.append(rows)
        for each in filters:
            with self._clock.stage("select"):
                rows, hidden = self._filter(each, rows, start=start, hidden=hidden)
            self._stages.append(rows)
            start = self._decoder.model_layers.resume(each.layer)
        with self._clock.stage("compute"):
            return self._finish(rows, start=start, hidden=hidden)

    def _probed(self, probe: QuestionProbe) -> Tensor:
        """Runs what is fresh over the caches up to the probe's last layer; flags the cached slots that it chooses."""
        choice = AttentionChoice(len(self._cached), device=self._decoder.device)
        for slots, _ in self._pieces(~self._exact & ~self._cached, None):
            probed = min(len(slots), slots.last + 1 - (len(self._cached) - probe.rows))
            if probed > 0:
                self._pass(slots, LayerRange(), hooks=LayerHooks(self._before, None, probe.layers, choice.add, probed))
            else:
                self._pass(slots, LayerRange(stop=probe.layers[-1]))
        return choice.chosen(self._cached & ~self._forced, probe, spans=self._selection.layout.blended)

    def _filter(
        self, to: DeviationFilter, rows: Tensor, *, start: int, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Runs rows to the filter's layer; returns those that stay, and their hidden states (1, T, E) on entry."""
        keep = self._decoder.model_layers.resume(to.layer)
        choice = DeviationChoice(len(rows), device=self._decoder.device)
        pieces: list[tuple[Tensor, Tensor]] = []
        for slots, entering in self._pieces(rows, hidden):
            compare = self._comparison(choice, to.layer, slots=slots)
            layer_range = LayerRange(start, entering, keep=keep, stop=to.layer)
            _, kept = self._pass(slots, layer_range, hooks=LayerHooks(self._finishing(slots, keep), compare))
            assert kept is not None
            pieces.append((slots.index, kept))
        self.finish_layers(keep)
        free = rows & self._cached & ~self._forced
        staying = rows & ~free | choice.chosen(free, keep=to.keep)
        chosen = staying.to(self._decoder.device)
        return staying, torch.cat([kept[:, chosen[index]] for index, kept in pieces], dim=1)

    def _comparison(self, choice: DeviationChoice, layer: int, *, slots: Slots) -> Callable[[Tensor, Tensor], None]:
        cached = self._cached.to(self._decoder.device)[slots.index]
        places = slots.index[cached]

        def compare(keys: Tensor, values: Tensor) -> None:
            old = (self._context.keys(layer)[:, places], self._context.values(layer)[:, places])
            choice.add(places, fresh=(keys[:, cached], values[:, cached]), old=old)

        return compare

    def _finish(self, rows: Tensor, *, start: int, hidden: Tensor | None) -> Tensor:
        model_layers = self._decoder.model_layers
        last = model_layers.keeping[-1]
        resume = max(start, model_layers.resume(last))
        kept: Tensor | None = None
        slots: Slots | None = None
        # All rows go through the last layer that has a state.
        if any(layer >= last for layer in model_layers.states) or self._selection.replayed:
            return self._to_the_end(rows | self._replayed, start=start, hidden=hidden)
        for slots, entering in self._pieces(rows, hidden):
            layer_range = LayerRange(start, entering, keep=resume, stop=last)
            _, kept = self._pass(slots, layer_range, hooks=LayerHooks(self._finishing(slots, last)))
        assert slots is not None and kept is not None
        logits, _ = self._pass(slots.part(len(slots) - 1, len(slots)), LayerRange(resume, kept[:, -1:]))
        assert logits is not None
        return logits

    def _to_the_end(self, rows: Tensor, *, start: int, hidden: Tensor | None) -> Tensor:
        logits: Tensor | None = None
        for slots, entering in self._pieces(rows, hidden):
            hooks = LayerHooks(self._finishing(slots, self._decoder.model_layers.keeping[-1]))
            replayed = self._replayed[slots.index.cpu()] if self._selection.replayed else None
            if replayed is not None and replayed.any():
                ids = self._ids[slots.index]
                logits = self._decoder.replay(self._context, slots, ids=ids, replayed=replayed, hooks=hooks)
            else:
                logits, _ = self._pass(slots, LayerRange(start, entering), hooks=hooks)
        assert logits is not None
        return logits

    def _pass(
        self, slots: Slots, layer_range: LayerRange, *, hooks: LayerHooks | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        hooks = hooks or LayerHooks(self._before)
        return self._decoder.prefill(
            self._context, slots, ids=self._ids[slots.index], layer_range=layer_range, hooks=hooks
        )

    def _finishing(self, slots: Slots, below: int) -> Callable[[int], None]:
        """Returns the hook before each layer of a piece: after the last piece of a stage no rows change layers `below`
        this one any more.
        """
        return partial(self._before, below=below if slots.last == len(self._ids) - 1 else 0)

    def finish_layers(self, below: int | None = None) -> None:
        """Reports the layers below this one as final; None: all of them, once the fuse cannot start over."""
        while self._open and (below is None or self._open[0] < below):
            self._order.final(self._open.popleft())

    def _before(self, layer: int, *, below: int = 0) -> None:
        assert self._feed is not None
        self.finish_layers(min(layer, below))
        with self._clock.stage("others"):
            self._order.between()
        self._feed.wait(layer)

    def _pieces(self, rows: Tensor, hidden: Tensor | None) -> Iterator[tuple[Slots, Tensor | None]]:
        places = _numbers(rows)
        marked = bisect_left(places, self._context.states.mark) if self._decoder.model_layers.states else 0
        starts = sorted({*range(0, len(places), self._most), marked} - {len(places)})
        for start, stop in pairwise([*starts, len(places)]):
            part = places[start:stop]
            entering = None if hidden is None else hidden[:, start:stop]
            yield scattered(part, device=self._decoder.device), entering

    def report(self, layout: PromptLayout, moved: int) -> FuseReport:
        """Reports what the fuse did, after `run`."""
        stages = tuple(tuple(_numbers(rows & self._cached)) for rows in self._stages)
        again = len(stages[-1])
        reused = int((self._exact | self._cached).sum()) - again
        return FuseReport(
            order=BlendOrder(self._order.policy, self._order.ratio),
            reused=reused,
            recomputed=again,
            fresh=len(layout.ids) - reused - again,
            stages=stages,
            misses=layout.misses,
            bytes=moved,
            seconds=dict(self._clock.seconds),
        )


def _numbers(chosen: Tensor) -> list[int]:
    return cast("list[int]", chosen.nonzero()[:, 0].tolist())  # pyright: ignore[reportUnknownMemberType]
