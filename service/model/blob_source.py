"""A stored blob as a source of keys and values: what the model's side asks for, layer by layer, out of a reader."""

import time
from threading import Lock

from blend.errors import UnreadableRecord
from blend.model.fingerprint import Fingerprint
from store.codec.decode import read_group
from store.errors import BadBlob, MissReason, StoreError
from store.reader import BlobReader, Layers
from store.record import LayerKV, PackedLayer, Tail

_TIERS = {"object": "s3"}  # what reports call a medium


class BlobSource:
    """One chunk's record in a store. Threads may share it: where layers are asked for about in order, and each once,
    each group is read once, and kept until all of its layers were asked for.

    `tier` is the medium that answered, as reports call it; of the blob's `nbytes` so many are `read` so far, all but
    its head in `read_s` seconds.
    """

    def __init__(self, reader: BlobReader, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        head = reader.head
        self.tokens, self.ids_digest = head.tokens - head.tail_tokens, head.ids_digest
        self.tail = Tail(head.tail_tokens, head.tail_digest)
        self.tier = _TIERS.get(reader.source, reader.source)
        self.nbytes = len(reader.raw_head) + reader.head.body_bytes
        self.read = len(reader.raw_head)
        self.read_s = 0.0
        self.failure: MissReason | None = None  # why a layer could not be read: the blob's fault, or the store's
        self._reader: BlobReader | None = reader
        self._groups = reader.numbers
        first = [reader.head.frames[numbers.start] for numbers in self._groups]
        self._group_of = {
            layer: group
            for group, frame in enumerate(first)
            for layer in range(frame.layer, frame.layer + frame.layers)
        }
        self._start_of = [frame.layer for frame in first]
        self._lock = Lock()  # a group is read by one thread; who wants another of its layers would read the same
        self._kept: dict[int, Layers] = {}

    def begin(self) -> None:
        """Begin to bring the record near, before anyone asks for its layers."""
        if self._reader is not None:
            self._reader.begin()

    def let_go(self) -> None:
        """Give the record's memory back: nobody asks for a layer any more."""
        self._reader = None
        with self._lock:
            self._kept.clear()

    def layer(self, index: int) -> LayerKV | PackedLayer:
        """A layer's keys and values. Raises Unreadable for a damaged frame, and where the medium does not answer."""
        group = self._group_of[index]
        place = index - self._start_of[group]
        with self._lock:
            layers = self._kept.pop(group, None)
            if layers is None or layers[place] is None:
                layers = self._read(group)
            layer, rest = layers[place], [*layers[:place], None, *layers[place + 1 :]]
            if any(rest):
                self._kept[group] = rest
        assert layer is not None, f"layer {index} keeps nothing of its own"
        return layer

    def _read(self, group: int) -> Layers:
        start, reader = time.perf_counter(), self._reader
        assert reader is not None, "the record was let go of"
        try:
            layers = read_group(reader, group)
        except BadBlob as error:
            self.failure = error.reason
            raise UnreadableRecord(str(error)) from error
        except StoreError as error:
            self.failure = MissReason.UNAVAILABLE
            raise UnreadableRecord(str(error)) from error
        self.read_s += time.perf_counter() - start
        self.read += sum(reader.head.frames[number].nbytes for number in self._groups[group])
        return layers
