"""A stored blob as a source of keys and values: what the model's side asks for, layer by layer, out of a reader."""

import time
from collections.abc import Sequence
from functools import cached_property
from threading import Lock

from blend.errors import UnreadableRecord
from blend.fingerprint import Fingerprint
from service.model.capture_context import is_alone
from store.blob import Frame
from store.codec.decode import read_frames, read_group
from store.codec.spec import LOSSLESS
from store.errors import BadBlob, MissReason, StoreError
from store.key import context_of
from store.reader import BlobReader
from store.record import FramedRecord, LayerKV, PackedLayer, ReadFrames, Tail

_TIERS = {"object": "s3"}  # a medium's name in reports


class BlobSource:
    """One chunk's record in a store. Threads may share it: where layers are asked for about in order, and each once,
    each group is read once, and kept until all of its layers were asked for; what memory has unpacked is not read.

    `tier` is the medium that answered, as reports call it; of the blob's `nbytes` so many are `read` so far, all but
    its head in `read_s` seconds.
    """

    def __init__(self, reader: BlobReader, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        head = reader.head
        self.is_exact = head.codec == LOSSLESS and is_alone(context_of(head.fingerprint))
        self.tokens, self.ids_digest = head.tokens - head.tail_tokens, head.ids_digest
        self.tail = Tail(head.tail_tokens, head.tail_digest)
        self.tier = _TIERS.get(reader.source, reader.source)
        self.nbytes = len(reader.raw_head) + reader.head.body_bytes
        self.read = len(reader.raw_head)
        self.read_s = 0.0
        self.failure: MissReason | None = None  # why a layer could not be read: the blob's fault, or the store's
        self._reader: BlobReader | None = reader
        self._lock = Lock()  # one thread reads a group; others that need its layers wait, as they would read the same
        self._kept: dict[int, LayerKV | PackedLayer] = {}

    @property
    def parts(self) -> int:
        """The number of parts that arrive one after the other, each with some layers."""
        return 1 if self._reader is None else len(self._reader.numbers)

    @property
    def framed(self) -> FramedRecord | None:
        """The whole record, where memory holds it in the layout of frames."""
        return None if self._reader is None else self._reader.framed

    @property
    def groups(self) -> tuple[range, ...]:
        """Groups of layers that are read together."""
        return self._groups

    def frames(self, layers: Sequence[int], of: Sequence[object], *, threads: int = 1) -> ReadFrames | None:
        """Groups of layers of several records, read in one call; None where each is better read by itself, which then
        reports why.
        """
        sources = [each for each in of if isinstance(each, BlobSource)]
        readers = [each._reader for each in sources if each._reader is not None]
        if len(readers) < len(of) or any(each._kept or each.parts != self.parts for each in sources):
            return None
        groups = [*dict.fromkeys([self._group_of[layer] for layer in layers])]
        if [layer for group in groups for layer in self._groups[group]] != [*layers]:
            return None
        start = time.perf_counter()
        found = read_frames(readers, groups, threads=threads)
        if found is not None:
            seconds = (time.perf_counter() - start) / len(sources)
            for each, reader in zip(sources, readers, strict=True):
                each.read += sum([_frames_bytes(reader, group) for group in groups])
                each.read_s += seconds
        return found

    def begin(self) -> None:
        """Begin to fetch the record before its layers are read."""
        if self._reader is not None:
            self._reader.begin()

    def let_go(self) -> None:
        """Release the record's memory: no more layers will be read."""
        self._reader = None
        with self._lock:
            self._kept.clear()

    def layer(self, index: int) -> LayerKV | PackedLayer:
        """A layer's keys and values. Raises Unreadable for a damaged frame, and where the medium does not answer."""
        reader = self._reader
        assert reader is not None, "the record was let go of"
        if reader.layers is not None:
            layer = reader.layers[index]
            assert layer is not None, f"layer {index} keeps nothing of its own"
            return layer
        with self._lock:
            layer = self._kept.pop(index, None)
            if layer is None:
                self._kept.update(self._read(reader, self._group_of[index]))
                layer = self._kept.pop(index)
        return layer

    @cached_property
    def _groups(self) -> tuple[range, ...]:
        assert self._reader is not None, "the record was let go of"
        frames = self._reader.head.frames
        return tuple([_layers_of(frames[each.start]) for each in self._reader.numbers])

    @cached_property
    def _group_of(self) -> dict[int, int]:
        """The group of each layer."""
        return {layer: number for number, group in enumerate(self._groups) for layer in group}

    def _read(self, reader: BlobReader, group: int) -> dict[int, LayerKV | PackedLayer]:
        start = time.perf_counter()
        try:
            layers = read_group(reader, group)
        except BadBlob as error:
            self.failure = error.reason
            raise UnreadableRecord(str(error)) from error
        except StoreError as error:
            self.failure = MissReason.UNAVAILABLE
            raise UnreadableRecord(str(error)) from error
        self.read_s += time.perf_counter() - start
        self.read += _frames_bytes(reader, group)
        return {number: layer for number, layer in zip(self._groups[group], layers, strict=True) if layer}


def _layers_of(frame: Frame) -> range:
    return range(frame.layer, frame.layer + frame.layers)


def _frames_bytes(reader: BlobReader, group: int) -> int:
    return sum([reader.head.frames[number].nbytes for number in reader.numbers[group]])
