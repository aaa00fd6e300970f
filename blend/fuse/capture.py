"""Computes chunks alone behind their capture prefix, and lifts their keys to no position. The result may be stored.

Every pass has the same number of rows, whatever is captured: chunks are padded to a bucket chosen by their own length,
and dummy chunks fill up. So the bits of a record depend on the chunk, and not on its companions.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from blend.errors import NotFinite, PromptError
from blend.fuse.prefixes import Prefixes
from blend.fuse.prompt import check_ids
from blend.model.context import Context, span
from blend.model.decoder import Decoder
from blend.model.fingerprint import digest_ids
from blend.model.step import LayerHooks, LayerRange, Segment
from store.record import Dtype, LayerKV, Record

VERSION = "1"  # of what a record means
ROWS = {"cuda": 4096}  # of one pass, on a device that computes many at once
FEW_ROWS = 512  # on any other
SMALLEST = 32

Ids = Sequence[int]


def batches(chunks: Sequence[Ids], *, rows: int) -> Iterator[list[int]]:
    """Yields the numbers of the chunks that one pass computes together: those of one bucket, in order."""
    waiting: dict[int, list[int]] = {}
    for number, ids in enumerate(chunks):
        size = bucket(len(ids), rows=rows)
        group = waiting.setdefault(size, [])
        group.append(number)
        if len(group) * size == rows or size == rows:
            yield waiting.pop(size)
    yield from waiting.values()


def bucket(tokens: int, *, rows: int) -> int:
    """The rows of one chunk in a pass: the next power of two, up to the whole pass."""
    return min(rows, max(SMALLEST, 1 << (tokens - 1).bit_length()))


@torch.inference_mode()
def capture(
    decoder: Decoder,
    prefix: Ids,
    *,
    chunks: Sequence[Ids],
    between: Callable[[], None] = lambda: None,
    prefixes: Prefixes | None = None,
) -> list[Record]:
    """Records of chunks behind a prefix, in their order. `between` is called before each layer of each pass.

    `prefixes` remembers capture prefixes, and nothing that was computed in another shape.
    """
    rows = ROWS.get(decoder.device.type, FEW_ROWS)
    check_ids(prefix, vocabulary=decoder.vocabulary)
    for number, ids in enumerate(chunks):
        check_ids(ids, vocabulary=decoder.vocabulary)
        if not ids:
            raise PromptError(f"chunk {number} has no tokens: there is nothing to capture")
        if len(prefix) + len(ids) > decoder.window:
            raise PromptError(
                f"chunk {number} has {len(ids)} tokens behind a prefix of {len(prefix)}, "
                f"the model's window is {decoder.window}: cut it smaller"
            )
    work = _Capture(decoder, rows=rows, between=between)
    before = work.prefix(tuple(prefix), prefixes or Prefixes(0))
    found: dict[int, Record] = {}
    for numbers in batches(chunks, rows=rows):
        contexts = work.together(before, [chunks[number] for number in numbers], behind=len(prefix))
        for number, context in zip(numbers, contexts, strict=False):
            found[number] = _lift(decoder, context, ids=chunks[number], behind=len(prefix))
    return [found[number] for number in range(len(chunks))]


class _Capture:
    def __init__(self, decoder: Decoder, *, rows: int, between: Callable[[], None]) -> None:
        self._decoder = decoder
        self._rows = rows
        self._watch = LayerHooks(lambda layer: between())
        self._course = LayerRange(stop=decoder.model_layers.keeping[-1])

    def prefix(self, ids: tuple[int, ...], prefixes: Prefixes) -> Context:
        """The context of a capture prefix, computed by itself, in passes of the same shape."""
        context = self._decoder.context(-(-len(ids) // self._rows) * self._rows)
        prefixes.restore(ids, context)
        if not context.exact:
            for start in range(0, len(ids), self._rows):
                self._pass([context], start, ids=[ids[start : start + self._rows]], size=self._rows)
            prefixes.keep(ids, context)
        return context

    def together(self, before: Context, chunks: Sequence[Ids], *, behind: int) -> list[Context]:
        """Contexts of the chunks of one bucket, one for each, the dummies' last."""
        size = bucket(len(chunks[0]), rows=self._rows)
        longest = max(len(ids) for ids in chunks)
        contexts = [self._decoder.context(behind + -(-longest // size) * size) for _ in range(self._rows // size)]
        for context in contexts:
            context.copy_first(behind, before)
        for start in range(0, longest, size):
            parts = [ids[start : start + size] for ids in chunks]
            self._pass(contexts, behind + start, ids=parts, size=size)
        return contexts

    def _pass(self, contexts: Sequence[Context], start: int, *, ids: Sequence[Ids], size: int) -> None:
        padded = torch.zeros(len(contexts), size, dtype=torch.int64)
        for row, part in enumerate(ids):
            padded[row, : len(part)] = torch.tensor(part, dtype=torch.int64)
        slots = span(start, start + size, device=self._decoder.device)
        segments = [Segment(context, slots, row * size) for row, context in enumerate(contexts)]
        flat = padded.flatten().to(self._decoder.device)
        self._decoder.advance(segments, flat, layer_range=self._course, hooks=self._watch)


def _lift(decoder: Decoder, context: Context, *, ids: Ids, behind: int) -> Record:
    dtype, layers = _name(decoder.dtype), list[LayerKV | None]()
    slots = slice(behind, behind + len(ids))
    for layer, shape in enumerate(decoder.model_layers.shapes):
        if shape is None:
            layers.append(None)
            continue
        keys, values = decoder.lift(context, layer, slots=slots)
        if not bool(torch.isfinite(keys).all() and torch.isfinite(values).all()):
            raise NotFinite(f"layer {layer} computed keys or values that are not finite: the weights are damaged")
        layers.append(LayerKV(_plain(keys), _plain(values)))
    return Record(dtype, tuple(layers), digest_ids(ids))


def _plain(x: Tensor) -> np.ndarray:
    x = x.cpu().contiguous()
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def _name(dtype: torch.dtype) -> Dtype:
    names: dict[torch.dtype, Dtype] = {
        torch.float32: "float32",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
    }
    return names[dtype]
