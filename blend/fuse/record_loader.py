"""Loads records ahead of the pass: how many layers and chunks at once, in how many threads, which one is damaged."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple
from itertools import chain, groupby
from threading import Condition, Event
from typing import NamedTuple

import numpy as np
import torch

from blend.fuse.prompt import ChunkSpan
from blend.place.placement import in_lists
from blend.run.context import Context, LayerShape
from blend.run.decoder import Decoder
from store.errors import StoreError
from store.record import Shape
from store.rows import IS_PINNED, records_of

UNIT = 1 << 19  # numbers that one thread reads and places at once: fewer take less time than threads need to take turns
MOST = 1 << 22  # and at most, so that each thread has a part of a layer
ON_DEVICE = 1 << 25  # and on a GPU, whose calls cost more than its work
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


class _Unit(NamedTuple):
    """Layers, and the spans of them that are read together; `alike`: what of them is placed together."""

    layers: range
    spans: list[ChunkSpan]
    alike: list[tuple[list[int], list[ChunkSpan]]]


def _tokens(spans: Sequence[ChunkSpan]) -> int:
    return sum([span.recorded for span in spans])


def _divided(spans: Sequence[ChunkSpan]) -> Iterable[list[ChunkSpan]]:
    """The spans whose records are read together: those of one kind that has the same layers together."""
    found: dict[object, list[ChunkSpan]] = {}
    for span in spans:
        found.setdefault((type(span.source), span.source.is_near, span.source.groups), []).append(span)
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
        wanted: Mapping[int, Sequence[ChunkSpan]],
        readers: Readers,
    ) -> None:
        """Begins to read. `wanted`: the spans that each layer needs which keeps keys."""
        self.bytes = 0
        self.read_s = 0.0
        self.waited_s = 0.0
        self._decoder = decoder
        self._context = context
        self._began = time.perf_counter()
        self._stopped = Event()
        self._wanted = {layer: {each.chunk: each for each in some} for layer, some in wanted.items()}
        spans = {chunk: span for some in self._wanted.values() for chunk, span in some.items()}
        units = sorted(self._units_of([*spans.values()], threads=readers.threads), key=lambda unit: unit.layers.start)
        self._misfits: dict[tuple[Shape | None, ...], int | None] = {}  # layers that are not the model's, by shapes
        self._held: list[object] = []  # memory that a GPU may be reading until all is closed
        self._units = iter(units)
        # Units of each layer that do not stand there yet.
        self._missing = Counter(layer for unit in units for some, _ in unit.alike for layer in some)
        self._events: dict[int, torch.Event] = {}  # behind which a layer stands there, on a GPU
        self._failed: Exception | None = None
        self._awaited = set[int]()
        self._changed = Condition()  # of all that the readers change
        self._stream = readers.stream(decoder.device)
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream(decoder.device))
        # On a GPU half the threads read, each with as many of zstd's, who knows no lock.
        half = max(1, readers.threads // 2)
        workers, self._unpacking = (max(2, half), half) if is_apart(decoder.device) else (readers.threads, 1)
        workers = min(readers.threads, workers, len(units))
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
        self._held.clear()

    def _read(self) -> None:
        try:
            with self._on_stream(), torch.inference_mode():
                while unit := self._next():
                    self._place(unit)
                    self._placed(unit)
        except Exception as error:
            with self._changed:
                self._failed = self._failed or error
                self._changed.notify_all()
            self._stopped.set()  # not before: the other threads end by an error that is not theirs to tell

    def _next(self) -> _Unit | None:
        with self._changed:
            return next(self._units, None)

    def _placed(self, unit: _Unit) -> None:
        numbers = sum([_tokens(spans) * self._shape(some[0]).numbers * len(some) for some, spans in unit.alike])
        with self._changed:
            self.bytes += numbers * self._decoder.dtype.itemsize
            self.read_s = time.perf_counter() - self._began
            for layer in chain.from_iterable([some for some, _ in unit.alike]):
                if self._stream and self._missing[layer] == 1:
                    self._events[layer] = self._stream.record_event()
                self._missing[layer] -= 1
            if any(not self._missing[layer] for layer in self._awaited):
                self._changed.notify_all()

    def _on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def _alike(self, layers: range, spans: Sequence[ChunkSpan]) -> Iterator[tuple[list[int], list[ChunkSpan]]]:
        """Yields neighbours among the layers that have the same shape, with the spans that all of them need."""
        keeping = [layer for layer in layers if layer in self._wanted]
        for (_, needed), some in groupby(keeping, key=lambda layer: (self._shape(layer), self._wanted[layer].keys())):
            if found := [span for span in spans if span.chunk in needed]:
                yield [*some], found

    def _units_of(self, spans: Sequence[ChunkSpan], *, threads: int) -> Iterator[_Unit]:
        """Yields what is read and placed at once: a group of layers, and a part of the spans. What is near, and all on
        a GPU, comes by one group, one more, two, four and so on, as long as that is not too much. A GPU is told of all
        spans at once that are near.
        """
        on_device = is_apart(self._decoder.device)
        for some in _divided(spans):
            groups, tokens, place, is_near = some[0].source.groups, _tokens(some), 0, some[0].source.is_near
            while place < len(groups):
                many = (ON_DEVICE if on_device else MOST * threads) // max(1, tokens * self._numbers(groups[place]))
                many = max(1, min(many, place, len(groups) // threads)) if is_near or on_device else 1
                layers = range(groups[place].start, groups[min(place + many, len(groups)) - 1].stop)
                place += many
                numbers = self._numbers(layers)
                most = ON_DEVICE if on_device else max(UNIT, min(MOST, tokens * numbers // threads))
                most = tokens * numbers if is_near and on_device else most
                sizes = [span.recorded for span in some]
                for part in in_lists(some, sizes, most=-(-most // numbers)) if numbers else ():
                    if alike := [*self._alike(layers, part)]:
                        yield _Unit(layers, part, alike)

    def _numbers(self, layers: range) -> int:
        """How many numbers the layers keep for each token."""
        return sum([self._shape(layer).numbers for layer in layers if layer in self._wanted])

    def _place(self, unit: _Unit) -> None:
        layers, spans, alike = unit
        if self._stopped.is_set():
            raise DamagedRecord(spans[0], "stopped")
        for span in spans:
            if (layer := self._misfit(span.source.shapes)) is not None:
                raise DamagedRecord(span, f"layer {layer} has the wrong shape")
        try:
            stored = spans[0].source.rows(layers, [span.source for span in spans], threads=self._unpacking)
        except (StoreError, OSError) as error:  # whatever a medium does, the text is at hand
            if len(spans) == 1:
                raise DamagedRecord(spans[0], str(error)) from error
            for span in spans:  # one of them is damaged, and says so alone
                self._place(_Unit(layers, [span], [(some, [span]) for some, needed in alike if span in needed]))
            return
        if stored.rows[:, :, IS_PINNED].any():
            self._held.append(stored.memory)
        slots = np.array([(span.start, span.stop) for span in spans], np.int64)
        for some, needed in alike:
            rows, own = stored.rows[[layer - layers.start for layer in some]], slots
            if len(needed) < len(spans):
                chosen = np.array([span in needed for span in spans])
                rows, own = rows[:, chosen[records_of(rows)[0]]], slots[chosen]
            self._decoder.place(self._context, some, stored=stored._replace(rows=rows), slots=own)

    def _misfit(self, shapes: tuple[Shape | None, ...]) -> int | None:
        """The first layer whose keys or values have other heads or dims than the model's, if there is one."""
        if shapes not in self._misfits:
            ours = {layer: astuple(self._shape(layer)) for layer in self._wanted}
            found = [layer for layer, shape in ours.items() if shapes[layer : layer + 1] != (shape,)]
            self._misfits[shapes] = next(iter(found), None)
        return self._misfits[shapes]

    def _shape(self, layer: int) -> LayerShape:
        shape = self._decoder.model_layers.shapes[layer]
        assert shape is not None, f"layer {layer} keeps nothing of its own"
        return shape
