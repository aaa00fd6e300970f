"""Brings records into a context layer by layer, ahead of the pass that needs them. Knows no medium: sources deliver."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple
from functools import lru_cache
from itertools import groupby
from threading import Condition, Event

import numpy as np
import torch
from torch import Tensor

from blend.fuse.prompt import ChunkSpan
from blend.place.row_turn import FramedRows, framed_rows
from blend.place.unpack import first_rows, unpack_joined
from blend.run.context import Context, LayerShape, Slots, numbers, scattered
from blend.run.decoder import Decoder
from store.record import FramedRecord, LayerKV, PackedLayer

JOINED = 1 << 18  # numbers of short records that are unpacked together
PLACED = 1 << 22  # and of packed ones that are read and placed at once, where that leaves each thread a part of a layer
UNIT = 1 << 19  # or of as many: fewer take less time than threads need to pass the interpreter's lock on
NEAR = 1 << 22  # and of records that are in memory, of several layers
ON_DEVICE = 1 << 23  # and of plain ones, on a GPU: its calls cost more than its work, and what it unpacks takes memory
FAR_DEVICE = 1 << 25  # and there of packed ones, of several layers: so much is read by one thread before it is placed
NEAR_DEVICE = 1 << 26  # and there of records that are in memory
THREADS = min(8, max(2, (os.cpu_count() or 1) // 2))  # more would take the interpreter's lock from the model's thread


def is_apart(device: torch.device) -> bool:
    """Whether the device has memory of its own, and calls that cost more than most work."""
    return device.type == "cuda"


class DamagedRecord(Exception):
    """A record failed at some layer; its chunk must be computed from its text."""

    def __init__(self, span: ChunkSpan, reason: str) -> None:
        super().__init__(reason)
        self.span = span
        self.reason = reason


class Readers(ThreadPoolExecutor):
    """The threads that bring records, shared by the fuses of an engine."""

    def __init__(self, threads: int = THREADS) -> None:
        super().__init__(threads, "kvweave-read")
        self.threads = threads
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """The stream on which they copy to a GPU, always the same: memory that one gave back is there for the next."""
        if device.type != "cuda":
            return None
        return self._streams.setdefault(device, self._streams.get(device) or torch.cuda.Stream(device))


@lru_cache
def _heads_and_dims(shape: LayerShape) -> tuple[int, ...]:
    """Tells them as records do."""
    return astuple(shape)


_Unit = tuple[Sequence[int], Sequence[ChunkSpan]]  # layers, and the spans of them that are placed together


def _tokens(spans: Sequence[ChunkSpan]) -> int:
    return sum([span.recorded for span in spans])


def _divided(spans: Sequence[ChunkSpan]) -> Iterable[list[ChunkSpan]]:
    """The spans by which layers of their records come together."""
    found: dict[tuple[range, ...], list[ChunkSpan]] = {}
    for span in spans:
        found.setdefault(span.source.groups, []).append(span)
    return found.values()


class RecordLoader:
    """Reads, unpacks and places records, several at once, those of the first layers first.

    `wait` holds back who comes too early. On CUDA the copies and the unpacking run on a stream of their own, and
    waiting is ordering, not blocking. `read_s` is from the beginning to the last record that was placed.
    """

    def __init__(
        self,
        decoder: Decoder,
        context: Context,
        *,
        wanted: Callable[[int], Sequence[ChunkSpan]],
        readers: Readers,
    ) -> None:
        """Begins to read. `wanted`: the spans that a layer needs, for each layer that keeps keys."""
        self.bytes = 0
        self.read_s = 0.0
        self.waited_s = 0.0
        self._decoder = decoder
        self._context = context
        self._wanted = wanted
        self._began = time.perf_counter()
        self._stopped = Event()
        self._slots: dict[tuple[int, ...], tuple[Slots, Tensor | None]] = {}  # by chunks
        self._rows: dict[tuple[int, ...], FramedRows] = {}  # of all layers, by chunks
        self._is_apart = is_apart(decoder.device)
        alike = [*self._alike(decoder.model_layers.keeping)]
        self._near = self._found_near({span.chunk: span for _, spans in alike for span in spans})
        near, far = self._units_of(alike, threads=readers.threads)
        units = [*near, *far] if self._is_apart else sorted([*near, *far], key=lambda unit: unit[0][0])
        self._units = iter(units)
        self._missing = Counter(layer for some, _ in units for layer in some)  # units of it that do not stand there yet
        self._events: dict[int, torch.Event] = {}  # behind which a layer stands there, on a GPU
        self._failed: Exception | None = None
        self._awaited = set[int]()
        self._changed = Condition()  # of all that the readers change
        self._stream = readers.stream(decoder.device)
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream(decoder.device))
        workers, self._unpacking = min(readers.threads, len(units)), 1
        if self._is_apart:  # half the threads for what is far, each with as many of zstd's, who knows no lock
            half = readers.threads // 2
            self._unpacking = max(1, half)
            workers = min(readers.threads, max(2, half), len(far) + bool(near))  # one tells it of all that is near
        self._work = [readers.submit(self._read) for _ in range(workers)]

    def wait(self, layer: int) -> None:
        """Return once the layer's cached rows stand in the context. Raises Damaged where one cannot be read."""
        if self._missing[layer]:
            start = time.perf_counter()
            with self._changed:
                self._awaited.add(layer)
                self._changed.wait_for(lambda: self._failed or not self._missing[layer])
                self._awaited.remove(layer)
            self.waited_s += time.perf_counter() - start
            if self._missing[layer]:
                assert self._failed is not None
                raise self._failed
        event = self._events.get(layer)
        if event is not None:
            torch.cuda.current_stream(self._decoder.device).wait_event(event)

    def close(self) -> None:
        """Stop reading, and return when nothing writes to the context any more."""
        self._stopped.set()
        wait(self._work)
        if self._stream:  # whoever gets the context's memory next, or that of a record, must not meet a copy on its way
            self._stream.synchronize()
        self._near.clear()

    def _read(self) -> None:
        try:
            with self._on_stream(), torch.inference_mode():
                while unit := self._next():
                    self._placed(unit[0], nbytes=self._place(*unit))
        except Exception as error:
            with self._changed:
                self._failed = self._failed or error
                self._changed.notify_all()
            self._stopped.set()  # not before: the other threads end by an error that is not theirs to tell

    def _next(self) -> _Unit | None:
        with self._changed:
            return next(self._units, None)

    def _placed(self, layers: Sequence[int], *, nbytes: int) -> None:
        with self._changed:
            self.bytes += nbytes
            self.read_s = time.perf_counter() - self._began
            for layer in layers:
                if self._stream and self._missing[layer] == 1:
                    self._events[layer] = self._stream.record_event()
                self._missing[layer] -= 1
            if any(not self._missing[layer] for layer in self._awaited):
                self._changed.notify_all()

    def _on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def _found_near(self, spans: Mapping[int, ChunkSpan]) -> dict[int, FramedRecord]:
        """Records that stand in memory as this model's layers are placed, by chunks. A GPU may be reading that memory
        until all is closed.
        """
        shapes = tuple(shape and _heads_and_dims(shape) for shape in self._decoder.model_layers.shapes)
        found = {chunk: span.source.framed for chunk, span in spans.items()} if self._decoder.places_frames else {}
        return {
            chunk: framed
            for chunk, framed in found.items()
            if framed and framed.tokens == spans[chunk].recorded and framed.shapes == shapes
        }

    def _alike(self, layers: Sequence[int]) -> Iterator[_Unit]:
        """Yields neighbours among layers that have the same shape, with the spans that all of them need."""
        for _, neighbours in groupby(layers, key=lambda layer: (self._shape(layer), self._wanted(layer))):
            some = [*neighbours]
            yield some, self._wanted(some[0])

    def _units_of(self, alike: Iterable[_Unit], *, threads: int) -> tuple[list[_Unit], list[_Unit]]:
        """What is placed together: of spans that are near, layers together, and of others."""
        near, far, told = list[_Unit](), list[_Unit](), 0
        for layers, spans in alike:
            here = [span for span in spans if span.chunk in self._near]
            there = [span for span in spans if span.chunk not in self._near]
            for some in _divided(there):
                far += self._far_units(layers, some, threads=threads)
            if here:
                near += self._near_units(layers, here, before=told, threads=threads)
                told += len(layers)
        return near, sorted(far, key=lambda unit: unit[0][0])

    def _far_units(self, layers: Sequence[int], spans: Sequence[ChunkSpan], *, threads: int) -> Iterator[_Unit]:
        """Yields layers that come together, with some of the spans, whose records have them together; for a GPU those
        of one group, one more, two, four and so on.
        """
        together = spans[0].source.groups
        group_of = {layer: number for number, group in enumerate(together) for layer in group}
        groups = [[*each] for _, each in groupby(layers, key=lambda layer: group_of.get(layer, -1 - layer))]
        tokens, numbers, place = _tokens(spans), self._shape(layers[0]).numbers, 0
        while place < len(groups):
            wanted, most, many = tokens * numbers * len(groups[place]), FAR_DEVICE, 1
            if not self._is_apart:
                most = max(UNIT, min(PLACED, wanted // threads))
            elif together:
                many = max(1, min(place, FAR_DEVICE // wanted, len(groups) // threads))
            some = [layer for group in groups[place : place + many] for layer in group]
            place += many
            for group in self._joined(spans, most=most // (numbers * len(some))):
                yield some, group

    def _near_units(
        self, layers: Sequence[int], spans: Sequence[ChunkSpan], *, before: int, threads: int
    ) -> Iterator[_Unit]:
        """Yields one layer, one more, two, four and so on: a GPU is told of them at once, each thread of a CPU of a
        part of the spans.
        """
        tokens, shape, place = _tokens(spans), self._shape(layers[0]), 0
        most = max(1, (NEAR_DEVICE if self._is_apart else NEAR * threads) // (tokens * shape.numbers))
        while place < len(layers):
            some = layers[place : place + min(most, max(1, before + place))]
            place += len(some)
            together = shape.numbers * len(some)
            part = max(UNIT, min(NEAR, tokens * together // threads))
            for group in [spans] if self._is_apart else self._joined(spans, most=-(-part // together)):
                yield some, group

    def _joined(self, spans: Sequence[ChunkSpan], *, most: int) -> Iterator[list[ChunkSpan]]:
        """Yields them in lists of so many tokens at most, or of one."""
        group, tokens = list[ChunkSpan](), 0
        for span in spans:
            if group and tokens + span.recorded > most:
                yield group
                group, tokens = [], 0
            group.append(span)
            tokens += span.recorded
        if group:
            yield group

    def _place(self, layers: Sequence[int], spans: Sequence[ChunkSpan]) -> int:
        """Returns how many bytes of keys and values came out of the spans' records."""
        if spans[0].chunk in self._near:
            self._place_near(layers, spans)
        else:
            self._place_far(layers, spans)
        numbers = sum([self._shape(layer).numbers for layer in layers])
        return _tokens(spans) * numbers * self._decoder.dtype.itemsize

    def _place_near(self, layers: Sequence[int], spans: Sequence[ChunkSpan]) -> None:
        if self._stopped.is_set():
            raise DamagedRecord(spans[0], "stopped")
        near = self._rows.get(chunks := tuple([span.chunk for span in spans]))
        if near is None:
            records = [self._near[chunk] for chunk in chunks]
            rows = np.concatenate([each.rows for each in records], axis=1)
            slots = np.array([(span.start, span.stop) for span in spans], np.int64)
            near = self._rows[chunks] = FramedRows(rows, slots, records[0].sizes)
        self._decoder.place_packed(self._context, layers, stored=near._replace(rows=near.rows[[*layers]]))

    def _place_far(self, layers: Sequence[int], spans: Sequence[ChunkSpan]) -> None:
        if self._decoder.places_frames and self._place_frames(layers, spans):
            return
        for layer in layers:
            self._place_layer(layer, spans)

    def _place_layer(self, layer: int, spans: Sequence[ChunkSpan]) -> None:
        decoder = self._decoder
        stored = [(span, self._stored(layer, span)) for span in spans]
        packed = [(span.start, span.stop, each) for span, each in stored if decoder.takes_packed(each)]
        if packed:
            decoder.place_packed(self._context, [layer], stored=framed_rows(packed))
        if len(packed) < len(stored):
            self._place_plain(layer, [(span, each) for span, each in stored if not decoder.takes_packed(each)])

    def _place_frames(self, layers: Sequence[int], spans: Sequence[ChunkSpan]) -> bool:
        """Whether all could be read by one call, and was placed."""
        if self._stopped.is_set():
            return False
        found = spans[0].source.frames(layers, [span.source for span in spans], threads=self._unpacking)
        if found is None or {*found.shapes} != {_heads_and_dims(self._shape(layers[0]))}:
            return False
        if [*found.tokens] != [span.recorded for span in spans]:
            return False
        slots = np.array([(span.start, span.stop) for span in spans], np.int64)
        self._decoder.place_packed(self._context, layers, stored=FramedRows(found.rows, slots, found.sizes))
        return True

    def _place_plain(self, layer: int, records: Sequence[tuple[ChunkSpan, LayerKV | PackedLayer]]) -> None:
        stored = {span.chunk: each for span, each in records}
        most = (ON_DEVICE if self._is_apart else JOINED) // self._shape(layer).numbers
        for some in self._joined([span for span, _ in records], most=most):
            self._place_joined(layer, some, stored=[stored[span.chunk] for span in some])

    def _place_joined(self, layer: int, spans: Sequence[ChunkSpan], *, stored: Sequence[LayerKV | PackedLayer]) -> None:
        decoder = self._decoder
        keys, values = unpack_joined(stored, dtype=decoder.dtype, device=decoder.device)
        slots, kept = self._slots_of(spans)
        if kept is not None:
            keys, values = keys.index_select(1, kept), values.index_select(1, kept)
        decoder.place(self._context, layer, slots=slots, keys=keys, values=values)

    def _stored(self, layer: int, span: ChunkSpan) -> LayerKV | PackedLayer:
        """What the span's record has of a layer, in the layer's shape."""
        if self._stopped.is_set():
            raise DamagedRecord(span, "stopped")
        try:
            stored = span.source.layer(layer)
        except OSError as error:  # Unreadable among them: whatever a medium does, the text is at hand
            raise DamagedRecord(span, str(error)) from error
        tokens, shape = span.recorded, self._shape(layer)
        keys, values = (shape.key_heads, tokens, shape.key_dim), (shape.value_heads, tokens, shape.value_dim)
        if stored.shapes != (keys, values):
            raise DamagedRecord(span, f"layer {layer} has the wrong shape")
        return stored

    def _shape(self, layer: int) -> LayerShape:
        shape = self._decoder.model_layers.shapes[layer]
        assert shape is not None, f"layer {layer} keeps nothing of its own"
        return shape

    def _slots_of(self, spans: Sequence[ChunkSpan]) -> tuple[Slots, Tensor | None]:
        """Where the rows of the spans' records stand, and which of the rows these are; None for all."""
        found = self._slots.get(chunks := tuple(span.chunk for span in spans))
        if found is None:
            places = [place for span in spans for place in range(span.start, span.stop)]
            kept = first_rows([span.recorded for span in spans], [span.stop - span.start for span in spans])
            device = self._decoder.device
            rows = None if kept is None else numbers(kept, device=device)
            found = self._slots[chunks] = (scattered(places, device=device), rows)
        return found
