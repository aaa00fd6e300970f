"""Frees a pass' keys of their rotary positions and copies the results to the host; refuses NaN and infinity.

Knows the places of their rows, no ids and no records. Letters: `N` chunks, `H` kv heads, `T` tokens, `D` head dim.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blend.errors import NotFinite
from blend.fuse.record_loader import is_apart
from blend.place.rotation import Angles
from blend.run.context import Context
from blend.run.decoder import Decoder
from blend.run.model_layers import LayerRule
from store.record import Array, LayerKV

Layers = list[LayerKV | None]  # of one chunk


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Where the rows of a pass stand: its chunks' parts of a context are adjacent, from `start` on, `size` slots each.

    `kept` of these hold a chunk's tokens. The first slot of each part stands at `position`.
    """

    kept: tuple[range, ...]
    size: int
    start: int
    position: int

    @property
    def slots(self) -> slice:
        """All slots of the pass."""
        return slice(self.start, self.start + len(self.kept) * self.size)

    @property
    def counts(self) -> list[int]:
        """The number of tokens of each chunk."""
        return [len(each) for each in self.kept]

    def index(self, heads: int) -> NDArray[np.int64]:
        """The indices of all tokens in the rows of (H, N, size): those of one chunk are adjacent, head by head."""
        chunk, head, token = np.ogrid[: len(self.kept), :heads, : self.size]
        places = (head * len(self.kept) + chunk) * self.size + token
        first, stop = np.array([(each.start, each.stop) for each in self.kept]).T[:, :, None, None]
        return places[np.broadcast_to((first <= token) & (token < stop), places.shape)]


class CapturedPass:
    """Position-free keys and values of a pass' chunks. A GPU makes and sends them without being waited for; they are
    complete when `layers` returns, which may be called once. The context may be released at once.

    They lie layer by layer in one array for all chunks; each chunk's arrays are views of it.
    """

    def __init__(self, decoder: Decoder, context: Context, *, rows: ChunkRows) -> None:
        self._decoder = decoder
        self._rows = rows
        self._angles: dict[LayerRule, Angles] = {}
        self._index: dict[int, Tensor] = {}  # by heads
        self._extremes: list[Tensor] = []  # four for each layer: the smallest and the largest key, the same of values
        kept = decoder.model_layers.stored
        self._sent = {layer: self._tokens(context, layer) for layer in kept}
        self._limits = _sent(torch.stack(self._extremes))
        self._done = torch.cuda.Event() if decoder.device.type == "cuda" else None
        if self._done:
            self._done.record(torch.cuda.current_stream(decoder.device))
        self.nbytes = sum(keys.nbytes + values.nbytes for keys, values in self._sent.values())

    @property
    def is_pinned(self) -> bool:
        """Whether the arrays lie in pinned memory, which is scarce."""
        return is_apart(self._decoder.device)

    def layers(self) -> list[Layers]:
        """The layers of each chunk, in order. Raises NotFinite."""
        if self._done:
            self._done.synchronize()
        for layer, extremes in zip(self._sent, self._limits.view(-1, 4), strict=True):
            if not bool(torch.isfinite(extremes).all()):
                raise NotFinite(f"layer {layer} computed keys or values that are not finite: the weights are damaged")
        found: list[Layers] = [[] for _ in self._rows.kept]
        for layer, shape in enumerate(self._decoder.model_layers.shapes):
            if shape is None:
                for each in found:
                    each.append(None)
                continue
            keys, values = self._sent.pop(layer)
            both = zip(self._cut(keys, shape.key_heads), self._cut(values, shape.value_heads), strict=True)
            for each, (own_keys, own_values) in zip(found, both, strict=True):
                each.append(LayerKV(own_keys, own_values))
        return found

    def _tokens(self, context: Context, layer: int) -> tuple[Tensor, Tensor]:
        rule = self._decoder.rule(layer)
        if rule not in self._angles:
            self._angles[rule] = self._decoder.inverse_angles(rule, self._rows.position, count=self._rows.size)
        keys, values = (
            part.view(len(part), -1, self._rows.size, part.shape[-1]) for part in context.part(layer, self._rows.slots)
        )
        keys, values = self._decoder.unrotated(layer, keys, values=values, angles=self._angles[rule])
        return self._to_host(keys), self._to_host(values)

    def _to_host(self, rows: Tensor) -> Tensor:
        """Begins to copy the tokens' rows (R, D) of (H, N, size, D) to the host."""
        heads = rows.shape[0]
        if heads not in self._index:
            self._index[heads] = _placed(self._rows.index(heads), self._decoder.device)
        tokens = rows.reshape(-1, rows.shape[-1]).index_select(0, self._index[heads])
        self._extremes += torch.aminmax(tokens)
        return _sent(tokens)

    def _cut(self, tokens: Tensor, heads: int) -> Iterator[Array]:
        array: Array = tokens.view(torch.uint16).numpy() if tokens.dtype == torch.bfloat16 else tokens.numpy()
        for start, stop in pairwise(accumulate(self._rows.counts, initial=0)):
            yield array[heads * start : heads * stop].reshape(heads, stop - start, -1)


def ordinary(layers: Layers) -> Layers:
    """Copies in ordinary memory."""
    return [each and LayerKV(each.keys.copy(), each.values.copy()) for each in layers]


def joined(pieces: list[Layers]) -> Layers:
    """One chunk's layers, whose tokens came in several passes."""
    if len(pieces) == 1:
        return pieces[0]
    return [_joined([each for each in layer if each]) for layer in zip(*pieces, strict=True)]


def _joined(pieces: list[LayerKV]) -> LayerKV | None:
    if not pieces:
        return None
    keys, values = [each.keys for each in pieces], [each.values for each in pieces]
    return LayerKV(np.concatenate(keys, axis=1), np.concatenate(values, axis=1))


def _sent(x: Tensor) -> Tensor:
    """A copy on the host, complete once the device has come to it."""
    if not is_apart(x.device):
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
    return host.copy_(x, non_blocking=True)


def _placed(index: NDArray[np.int64], device: torch.device) -> Tensor:
    held = torch.from_numpy(index)  # pyright: ignore[reportUnknownMemberType]
    return held.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else held
