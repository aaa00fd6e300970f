"""Copies of contexts on the disk, in files without a name: a share of the free space at most, checked when read."""

import logging
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from weakref import finalize

import torch
from blake3 import blake3
from torch import Tensor

from blend.run.context import Context

log = logging.getLogger(__name__)

_NOWHERE = torch.device("meta")

SHARE = 10  # of what is free on the disk, one part in so many may be taken
WAITING = 64 << 20  # bytes that wait to be written; one context may be larger


class Spill:
    """A folder's disk, and how many bytes may be taken of it. A thread of its own writes, one context after another."""

    def __init__(self, folder: Path, bytes_at_most: int, *, writer: Executor | None = None) -> None:
        self._folder = folder
        self._most = bytes_at_most
        self._writer = writer or ThreadPoolExecutor(1, "kvweave-spill")
        self._writing: list[tuple[Future[None], int]] = []

    def room(self, taken: int) -> int:
        """How many bytes may be taken in all, where so many are taken already: others fill the disk, too."""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError:
            return 0
        return min(self._most, (free + taken) // SHARE)

    def put(self, context: "Context | SpilledContext", then: Callable[["SpilledContext | None"], None]) -> bool:
        """Copy a context, which nobody may change meanwhile, and tell where it is, None where the disk does not take
        it. False where it has too much to write already: nothing was done then.
        """
        assert isinstance(context, Context)
        self._writing = [(writing, nbytes) for writing, nbytes in self._writing if not writing.done()]
        waiting = sum(nbytes for _, nbytes in self._writing)
        if waiting and waiting + context.nbytes > WAITING:
            return False
        self._writing.append((self._writer.submit(self._write, context, then), context.nbytes))
        return True

    def close(self) -> None:
        """Wait for what is being written."""
        self._writer.shutdown()

    @torch.inference_mode()
    def _write(self, context: Context, then: Callable[["SpilledContext | None"], None]) -> None:
        try:
            then(SpilledContext(context, self._folder))
        except (OSError, RuntimeError) as error:
            log.warning("the disk took no beginning of a prompt", exc_info=error)
            then(None)


class SpilledContext:
    """A context on the disk. The bytes are checked when they are read."""

    def __init__(self, context: Context, folder: Path) -> None:
        some = context.keys(context.layers[0])
        self.nbytes = context.nbytes
        self._like = (context.shapes, context.capacity, some.dtype, some.device)
        self._states = context.states.like(_NOWHERE)
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as this one is used
        finalize(self, self._file.close)
        digest = blake3()
        for each in _tensors(context):
            part = each.cpu().contiguous().view(torch.uint8).numpy().data
            digest.update(part)
            self._file.write(part)
        self._file.flush()
        self._digest = digest.digest()

    def read(self) -> Context:
        """The context as it was. Raises OSError where the disk does not give back what it took."""
        shapes, capacity, dtype, device = self._like
        context = Context(shapes, capacity=capacity, dtype=dtype, device=device)
        context.states = self._states.like(device)
        digest = blake3()
        self._file.seek(0)
        for each in _tensors(context):
            part = torch.empty(each.shape, dtype=each.dtype)
            held = part.view(torch.uint8).numpy().data
            self._file.readinto(held)
            digest.update(held)
            each.copy_(part)
        if digest.digest() != self._digest:
            raise OSError("a kept beginning is not what was written")
        return context


def _tensors(context: Context) -> Iterator[Tensor]:
    for layer in context.layers:
        yield context.keys(layer)
        yield context.values(layer)
    yield from context.states.tensors()
