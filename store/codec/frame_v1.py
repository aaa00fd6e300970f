"""What lies inside a frame of format 1, which is read for ever and written no more.

Span by span and layer by layer the keys, then the values: exponent of the largest step i16 | step bytes (H*D for keys,
H*T for values), in sixteenths of an octave below it | codes (H, D, P). Middles were zero. Lossless layers lie as today.
"""

import struct

import numpy as np

from store.codec.frame import LayerForm, span_count, spans_of
from store.codec.quantize import KEYS, VALUES, step_sizes
from store.codec.spec import code_bits
from store.record import PackedLayer, PackedTensor, PackedTile, codes_per_byte

_TOP = struct.Struct("<h")
_LAST = 255  # the byte of a tensor's largest step; byte 0 is "all zeros"
_OCTAVES = 126 * 16  # sixteenths of an octave below 1 at which steps begin


def frame_v1_bytes(form: LayerForm, tokens: int) -> int:
    """Bytes of a layer's keys and values in a frame, before zstd."""
    if form.bits is None:
        return form.nbytes(tokens)
    spans, step = span_count(tokens)
    return (spans - 1) * sum(_tensor_bytes(form, step)) + sum(_tensor_bytes(form, tokens - (spans - 1) * step))


def _tensor_bytes(form: LayerForm, tokens: int) -> tuple[int, int]:
    assert form.bits is not None
    shape, packed = form.shape, -(-tokens // codes_per_byte(code_bits(form.bits.keys)))
    keys = _TOP.size + shape.key_heads * shape.key_dim * (1 + packed)
    return keys, _TOP.size + shape.value_heads * (tokens + shape.value_dim * packed)


def read_frame_v1(raw: memoryview, form: LayerForm, *, start: int, tokens: int) -> PackedLayer:
    """The codes of a quantized layer as views of the frame; `start` is the frame's first token."""
    shape, place = form.shape, 0
    tiles: list[PackedTile] = []
    for span in spans_of(tokens):
        key_bytes, value_bytes = _tensor_bytes(form, len(span))
        middle, end = place + key_bytes, place + key_bytes + value_bytes
        keys = _tensor(raw[place:middle], (shape.key_heads, len(span), shape.key_dim), form=form, axis=KEYS)
        values = _tensor(raw[middle:end], (shape.value_heads, len(span), shape.value_dim), form=form, axis=VALUES)
        tiles.append(PackedTile(start + span.start, keys, values))
        place = end
    return PackedLayer.of(tuple(tiles))


def _tensor(data: memoryview, shape: tuple[int, int, int], *, form: LayerForm, axis: int) -> PackedTensor:
    assert form.bits is not None
    heads, tokens, dim = shape
    (top,) = _TOP.unpack(data[: _TOP.size])
    step_shape = (heads, 1, dim) if axis == KEYS else (heads, tokens, 1)
    count = step_shape[0] * step_shape[1] * step_shape[2]
    below = np.frombuffer(data, np.uint8, count=count, offset=_TOP.size).astype(np.int64)
    codes = np.frombuffer(data, np.uint8, offset=_TOP.size + count).reshape(heads, dim, -1)
    places = np.where(below > 0, np.maximum(below + (top - _LAST + _OCTAVES), 0) + 1, 0)
    return PackedTensor(codes, step_sizes(places.reshape(step_shape)), code_bits(form.bits.keys), tokens)
