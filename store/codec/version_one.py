"""What lies inside a frame of format 1, which is read for ever and written no more.

Span by span and layer by layer the keys, then the values: exponent of the largest step i16 | step bytes (H*D for keys,
H*T for values), in sixteenths of an octave below it | codes (H, D, P). Middles were zero. Lossless layers lie as today.
"""

import struct

import numpy as np
from numpy.typing import NDArray

from store.codec.frame import Levels, planes, span_count, spans_of
from store.record import Codes

_TOP = struct.Struct("<h")
_LAST = 255  # the byte of a tensor's largest step; byte 0 is "all zeros"
_OCTAVES = 126 * 16  # sixteenths of an octave below 1 at which steps begin


class VersionOne(Levels):
    """Codes as format 1 has them. The places of their steps are in the same grid as today's."""

    __slots__ = ()

    def nbytes(self, tokens: int) -> int:
        spans, step = span_count(tokens)
        return (spans - 1) * sum(self._tensors(step)) + sum(self._tensors(tokens - (spans - 1) * step))

    def current_nbytes(self, tokens: int) -> int:
        return Levels.nbytes(self, tokens)

    def current(self, data: Codes, tokens: int) -> Codes:
        layout, spans, place = self.layout(tokens), spans_of(tokens), 0
        keys, values = list[tuple[NDArray[np.uint16], Codes]](), list[tuple[NDArray[np.uint16], Codes]]()
        for span in spans:
            key_bytes, value_bytes = self._tensors(len(span))
            keys.append(_read(data[place : place + key_bytes], self.shape.key_heads * self.shape.key_dim))
            place += key_bytes
            values.append(_read(data[place : place + value_bytes], self.shape.value_heads * len(span)))
            place += value_bytes
        value_steps = [steps.reshape(self.shape.value_heads, -1) for steps, _ in values]
        pieces = [
            *planes(np.concatenate([steps for steps, _ in keys])),
            bytes(layout.key_codes - layout.middles),
            *(codes.tobytes() for _, codes in keys),
            *planes(np.concatenate(value_steps, axis=1)),
            *(codes.tobytes() for _, codes in values),
        ]
        return np.frombuffer(b"".join(pieces), np.uint8)

    def _tensors(self, tokens: int) -> tuple[int, int]:
        """Bytes of the keys and of the values of one span."""
        shape, packed = self.shape, -(-tokens * self.layout(1).key_width // 8)
        keys = _TOP.size + shape.key_heads * shape.key_dim * (1 + packed)
        return keys, _TOP.size + shape.value_heads * (tokens + shape.value_dim * packed)


def _read(data: Codes, steps: int) -> tuple[NDArray[np.uint16], Codes]:
    """The places of so many steps in the grid, and the codes behind them."""
    (top,) = _TOP.unpack(data[: _TOP.size].tobytes())
    below = data[_TOP.size : _TOP.size + steps].astype(np.int64)
    places = np.where(below > 0, np.maximum(below + (top - _LAST + _OCTAVES), 0) + 1, 0)
    return places.astype(np.uint16), data[_TOP.size + steps :]
