"""Computes chunks behind a shared prefix and own context, in padded batches by size; refuses empty and too long ones.

The tokens before a chunk are computed and dropped. All chunks of a call share a prefix, which is computed once.

The rows of a pass depend on the size of its chunks alone: chunks are padded to a bucket chosen by their own length,
and dummy rows fill up. So the bits of a record depend on the chunk, and not on its companions. All chunks of a pass
read one prefix, and dummy rows share one slot.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from blend.capture.captured_pass import CapturedPass, ChunkRows, Layers, joined, ordinary
from blend.errors import PromptError
from blend.fuse.prompt import check_ids
from blend.run.context import Context, PrefixedContext, Segment, numbers, span
from blend.run.decoder import Decoder
from blend.run.model_layers import ModelLayers
from blend.run.prefixes import Prefixes
from blend.run.rows_cache import LayerHooks, LayerRange
from store.fingerprint import digest_ids
from store.record import Dtype, Record

VERSION = "2"  # changes when the meaning of a record does
ROWS = {"cuda": 4096}  # the most rows of a pass, on a device that computes many in parallel
FEW_ROWS = 512  # on any other
SMALLEST = 32
LARGE, STEPS = 256, 16  # rows from which on powers of two waste too much, and the steps between two powers
PINNED_BYTES = 1 << 30  # of a capture's records in pinned memory; the rest is copied to ordinary memory
TOGETHER = 8  # chunks of one size in a pass; a lone one wastes the rows of the others

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The chunks of one pass, by their numbers, and its rows: `size` of each chunk, `rows` in all."""

    numbers: tuple[int, ...]
    size: int
    rows: int


def passes(chunks: Sequence[Ids], before: Sequence[Ids], *, device: torch.device) -> list[tuple[int, ...]]:
    """The numbers of chunks whose records come out together, pass by pass: what is computed by itself costs no more."""
    whole = [[*own, *ids] for own, ids in zip(before or [()] * len(chunks), chunks, strict=True)]
    return [each.numbers for each in plan(whole, rows=ROWS.get(device.type, FEW_ROWS))]


def plan(chunks: Sequence[Ids], *, rows: int, room: float = math.inf) -> Iterator[PassPlan]:
    """Yields the passes over all chunks: each over chunks of one bucket, in order, whose tokens are within `room`."""
    waiting: dict[int, list[int]] = {}
    for number, ids in enumerate(chunks):
        size = bucket(len(ids), rows=rows)
        group = waiting.setdefault(size, [])
        group.append(number)
        if len(group) == _together(size, rows=rows) or (len(group) + 2) * size > room:
            yield _planned(waiting.pop(size), size, rows=rows)
    yield from (_planned(group, size, rows=rows) for size, group in waiting.items())


def _planned(numbers: Sequence[int], size: int, *, rows: int) -> PassPlan:
    return PassPlan(tuple(numbers), size, _together(size, rows=rows) * size)


def _together(size: int, *, rows: int) -> int:
    return min(rows // size, TOGETHER)


def bucket(tokens: int, *, rows: int) -> int:
    """The rows of one chunk in a pass: the next power of two, large ones in finer steps, up to the whole pass."""
    size = max(SMALLEST, 1 << (tokens - 1).bit_length())
    step = size // STEPS if size > LARGE else size
    return min(rows, -(-tokens // step) * step)


@dataclass(frozen=True, slots=True)
class CaptureHooks:
    """Called during a capture: `between` before each pass and each of its layers, `hold` with the number of tokens that
    take memory from then on, which stays within `room`, unless a single chunk needs more.

    `prefixes` keeps capture prefixes, and nothing that was computed in another shape.
    """

    between: Callable[[], None] = lambda: None
    hold: Callable[[int], None] = lambda tokens: None
    room: float = math.inf
    prefixes: Prefixes | None = None


@torch.inference_mode()
def capture(
    decoder: Decoder,
    prefix: Ids,
    *,
    chunks: Sequence[Ids],
    before: Sequence[Ids] = (),
    hooks: CaptureHooks = CaptureHooks(),
) -> list[Record]:
    """Compute the records of chunks behind a prefix, in their order.

    `before`: the ids between the prefix and each chunk, which get no record; none by default.
    """
    rows = ROWS.get(decoder.device.type, FEW_ROWS)
    check_ids(prefix, vocabulary=decoder.vocabulary)
    placed = [_Placed(tuple(own), tuple(ids)) for own, ids in zip(before or [()] * len(chunks), chunks, strict=True)]
    for number, each in enumerate(placed):
        check_ids(each.all, vocabulary=decoder.vocabulary)
        if not each.ids:
            raise PromptError(f"chunk {number} has no tokens: there is nothing to capture")
        if len(prefix) + len(each.all) > decoder.window:
            raise PromptError(
                f"chunk {number} has {len(each.ids)} tokens behind {len(prefix) + len(each.before)} others, "
                f"the model's window is {decoder.window}: cut it smaller"
            )
    work = _Capture(decoder, placed, rows=rows, hooks=hooks)
    shared = work.prefix(tuple(prefix))
    for each in plan([each.all for each in placed], rows=rows, room=hooks.room - shared.capacity):
        work.together(shared, planned=each, behind=len(prefix))
    work.collect()
    dtype, layers = _name(decoder.dtype), work.layers
    return [Record(dtype, tuple(joined(layers.pop(number))), digest_ids(ids)) for number, ids in enumerate(chunks)]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A chunk's ids, and the ids right before it."""

    before: tuple[int, ...]
    ids: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        return self.before + self.ids


class _Capture:
    def __init__(self, decoder: Decoder, chunks: Sequence[_Placed], *, rows: int, hooks: CaptureHooks) -> None:
        self._decoder = decoder
        self._chunks = chunks
        self._rows = rows
        self._hooks = hooks
        self._watch = LayerHooks(lambda layer: hooks.between())
        self._course = _course(decoder.model_layers)
        self._computed: tuple[tuple[int, ...], CapturedPass] | None = None  # of which chunks
        self._pinned = 0  # bytes so far
        self.layers: defaultdict[int, list[Layers]] = defaultdict(list)  # of each chunk, in as many pieces as passes

    def prefix(self, ids: tuple[int, ...]) -> Context:
        """The context of a capture prefix, computed by itself, in passes of a shape that it alone decides."""
        prefixes, itself = self._hooks.prefixes or Prefixes(0), digest_ids(ids)  # rows of a longer one differ in bits
        size = bucket(len(ids), rows=self._rows) if ids else 1
        capacity = -(-len(ids) // size) * size
        self._hooks.hold(capacity)
        context = self._decoder.context(capacity)
        context.states.mark = len(ids)
        prefixes.restore(ids, context, owner=itself)
        if not context.placed:
            for start in range(0, len(ids), size):
                own = ids[start : start + size]
                rows = len(own) if self._decoder.model_layers.states else size  # a state takes in what fills up
                slots = span(start, start + rows, device=self._decoder.device)
                self._pass([Segment(context, slots, 0)], [own], size=rows)
            prefixes.keep(ids, context, owner=itself)
        return context

    def together(self, shared: Context, *, planned: PassPlan, behind: int) -> None:
        """Compute the chunks of one plan. A lone chunk may be longer than a pass; it then takes several."""
        size, device = planned.size, self._decoder.device
        own = [self._chunks[number] for number in planned.numbers]
        capacity = -(-max(len(each.all) for each in own) // size) * size
        self._hooks.hold(shared.capacity)
        self._hooks.between()
        dummies = planned.rows // size - len(own)
        each = capacity + self._decoder.state_tokens
        self._hooks.hold(shared.capacity + len(own) * each + (size if dummies else 0))
        rest, dummy = self._decoder.context(len(own) * capacity), self._decoder.context(size if dummies else 0)
        parts = [slice(start, start + capacity) for start in range(0, rest.capacity, capacity)]
        contexts = [PrefixedContext(shared, behind, own=rest, part=part) for part in parts]
        nowhere = span(0, size, device=device)
        for start in range(0, capacity, size):
            slots = span(behind + start, behind + start + size, device=device)
            segments = [Segment(context, slots, row * size) for row, context in enumerate(contexts)]
            segments += [Segment(dummy, nowhere, row * size) for row in range(len(own), len(own) + dummies)]
            ids = [each.all[start : start + size] for each in own]
            self._pass(segments, ids, size=size)
            self.collect()  # the pass before, while a GPU computes this one
            kept = tuple(
                range(min(len(part), max(0, len(each.before) - start)), len(part))
                for part, each in zip(ids, own, strict=True)
            )
            if any(kept):
                rows = ChunkRows(kept, size, start, position=behind + start)
                self._computed = planned.numbers, CapturedPass(self._decoder, rest, rows=rows)

    def collect(self) -> None:
        """Wait for the results of the last pass, and keep them."""
        if self._computed is None:
            return
        chunks, computed = self._computed
        self._computed = None
        self._pinned += computed.nbytes if computed.is_pinned else 0
        for number, layers in zip(chunks, computed.layers(), strict=True):
            self.layers[number].append(layers if self._pinned <= PINNED_BYTES else ordinary(layers))

    def _pass(self, segments: list[Segment], ids: Sequence[Ids], *, size: int) -> None:
        padded = [[*part, *[0] * (size - len(part))] for part in ids]
        padded += [[0] * size] * (len(segments) - len(ids))
        flat = numbers(padded, device=self._decoder.device).flatten()
        self._decoder.advance(segments, flat, layer_range=self._course, hooks=self._watch)


def _course(layers: ModelLayers) -> LayerRange:
    """The layers up to the last one that something is kept of."""
    last = layers.stored[-1]
    is_input = last in layers.inputs
    return LayerRange(stop=None if is_input else last, until=last if is_input else None, noted=layers.inputs)


def _name(dtype: torch.dtype) -> Dtype:
    names: dict[torch.dtype, Dtype] = {
        torch.float32: "float32",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
    }
    return names[dtype]
