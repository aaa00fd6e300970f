"""Reads a blob frame by frame, each verified before it is returned. Knows no codec and no medium."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property

from store.blob import Blob, Buffer, Head, verified
from store.rows import StoredRows

Fetch = Callable[[int], AbstractContextManager[Buffer]]


class BlobReader:
    """An open blob. Threads may share it; nothing needs to be closed.

    `source` names the medium that answered, for reports: ram, lmdb or object. `unpacked` are all of the blob's layers
    where the medium has them so: they were verified when they came.
    """

    def __init__(
        self, head: Head, raw_head: bytes, *, fetch: Fetch, source: str, unpacked: StoredRows | None = None
    ) -> None:
        self.head = head
        self.raw_head = raw_head
        self.source = source
        self.unpacked = unpacked
        self._fetch = fetch

    @cached_property
    def groups(self) -> tuple[range, ...]:
        """The layers that are read together: those of one frame, or each by itself where they are unpacked."""
        if self.unpacked:
            return tuple([range(layer, layer + 1) for layer in range(len(self.head.shapes))])
        firsts = [self.head.frames[each.start] for each in self.head.groups]
        return tuple([range(each.layer, each.layer + each.layers) for each in firsts])

    def begin(self) -> None:
        """Begin to fetch the frames, where they are remote and there is memory for them. Best effort."""

    @contextmanager
    def frame(self, number: int) -> Generator[Buffer]:
        """The verified bytes of one frame, valid inside the block. Raises `BadBlob` or what the medium raises."""
        with self._fetch(number) as data:
            yield verified(data, self.head, number=number)

    @contextmanager
    def several(self, wanted: "Sequence[tuple[BlobReader, int]]") -> Generator[Sequence[Buffer]]:
        """Frames of several readers of this medium, verified as by `frame`, which may take less time together."""
        with ExitStack() as stack:
            yield [stack.enter_context(reader.frame(number)) for reader, number in wanted]

    def blob(self) -> Blob:
        """The whole blob, copied into memory."""
        frames: list[bytes] = []
        for number in range(len(self.head.frames)):
            with self.frame(number) as data:
                frames.append(bytes(data))
        return Blob(self.head, self.raw_head, tuple(frames))


def read(blob: Blob, *, source: str = "ram") -> BlobReader:
    """A reader of a blob that is in memory."""

    @contextmanager
    def fetch(number: int) -> Generator[Buffer]:
        yield blob.frames[number]

    return BlobReader(blob.head, blob.head_bytes, fetch=fetch, source=source)
