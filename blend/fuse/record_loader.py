"""Brings records into a context layer by layer, ahead of the pass that needs them. Knows no medium: sources deliver."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Event

import torch
from torch import Tensor

from blend.fuse.prompt import ChunkSpan
from blend.fuse.unpack import first_rows, unpack_joined
from blend.model.context import Context, LayerShape, Slots, scattered
from blend.model.decoder import Decoder
from store.record import LayerKV, PackedLayer

JOINED = 1 << 18  # numbers of short records that are unpacked together


class DamagedRecord(Exception):
    """A record failed at some layer; its chunk must be computed from its text."""

    def __init__(self, span: ChunkSpan, reason: str) -> None:
        super().__init__(reason)
        self.span = span
        self.reason = reason


class RecordLoader:
    """Reads, unpacks and places layer after layer in a thread of its own; `wait` holds back who comes too early.

    On CUDA the copies and the unpacking run on a stream of their own, and waiting is ordering, not blocking.
    """

    def __init__(
        self,
        decoder: Decoder,
        context: Context,
        *,
        wanted: Callable[[int], Sequence[ChunkSpan]],
        readers: ThreadPoolExecutor,
    ) -> None:
        """Begins to read. `wanted`: the spans that a layer needs, for each layer that keeps keys."""
        self.bytes = 0
        self.read_s = 0.0
        self.waited_s = 0.0
        self._decoder = decoder
        self._context = context
        self._wanted = wanted
        self._stopped = Event()
        self._slots: dict[tuple[int, ...], tuple[Slots, Tensor | None]] = {}  # by chunks
        self._layers: dict[int, Future[torch.Event | None]] = {
            layer: Future() for layer in decoder.model_layers.keeping if wanted(layer)
        }
        self._stream = torch.cuda.Stream(decoder.device) if decoder.device.type == "cuda" else None
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream(decoder.device))
        self._work = readers.submit(self._read) if self._layers else None

    def wait(self, layer: int) -> None:
        """Return once the layer's cached rows stand in the context. Raises Damaged where one cannot be read."""
        loaded = self._layers.get(layer)
        if loaded is None:
            return
        start = time.perf_counter()
        event = loaded.result()
        self.waited_s += time.perf_counter() - start
        if event is not None:
            torch.cuda.current_stream(self._decoder.device).wait_event(event)

    def close(self) -> None:
        """Stop reading, and return when nothing writes to the context any more."""
        self._stopped.set()
        if self._work is not None:
            self._work.result()
        if self._stream:  # whoever gets the context's memory next, or that of a record, must not meet a copy on its way
            self._stream.synchronize()

    def _read(self) -> None:
        try:
            with self._on_stream(), torch.inference_mode():
                for layer, loaded in self._layers.items():
                    start = time.perf_counter()
                    for spans in self._together(layer):
                        self._place(layer, spans)
                    self.read_s += time.perf_counter() - start
                    loaded.set_result(self._stream.record_event() if self._stream else None)
        except Exception as error:
            for loaded in self._layers.values():
                if not loaded.done():
                    loaded.set_exception(error)

    def _on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def _together(self, layer: int) -> Iterator[list[ChunkSpan]]:
        """Yields the spans that a layer needs, short neighbours in one list: calls cost them more than numbers do."""
        shape = self._shape(layer)
        group, numbers = list[ChunkSpan](), 0
        for span in self._wanted(layer):
            more = span.recorded * shape.numbers
            if group and numbers + more > JOINED:
                yield group
                group, numbers = [], 0
            group.append(span)
            numbers += more
        if group:
            yield group

    def _place(self, layer: int, spans: Sequence[ChunkSpan]) -> None:
        decoder = self._decoder
        stored = [self._stored(layer, span) for span in spans]
        keys, values = unpack_joined(stored, dtype=decoder.dtype, device=decoder.device)
        self.bytes += keys.nbytes + values.nbytes
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
        shape, tokens = self._shape(layer), span.recorded
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
            rows = None if kept is None else torch.tensor(kept, device=device)
            found = self._slots[chunks] = (scattered(places, device=device), rows)
        return found
