"""Refuses a codec that loses too much of a model's numbers, or names a layer that it lacks, by packing one record."""

import numpy as np

from blend.capture.capture import capture
from blend.run.decoder import Decoder
from service.model.served_model import made_up_ids
from service.settings import SettingsError
from store.blob import Terms
from store.codec.decode import decode
from store.codec.encode import encode
from store.codec.spec import Spec
from store.key import CacheKey
from store.reader import read
from store.record import Array, Dtype, Record, widen

TOKENS = 128
COARSE = 0.5  # of the spread: `q2` takes 0.4 of numbers that are spread evenly, and where all is lost it is 1 or more
BETTER = ("q2", "q3", "q4", "q5", "q6", "q8", "lossless")


def check_codec(decoder: Decoder, codec: str) -> None:
    """Raises SettingsError where the codec does not fit the model's layers, or loses too much of their records."""
    ids = made_up_ids(min(TOKENS, decoder.window // 2), vocabulary=decoder.vocabulary)
    [record] = capture(decoder, (), chunks=[ids])
    last, layers = Spec.parse(codec).parts[-1][0], len(record.layers)
    if last >= layers:
        raise SettingsError(f"codec {codec!r} names layer {last}, the model has {layers}: name a lower one")
    lost = coarseness(record, codec)
    if lost > COARSE:
        better = next(spec for spec in BETTER if coarseness(record, spec) <= COARSE)
        raise SettingsError(
            f"codec {codec!r} is too coarse for this model: its error is {lost:.2f} of what the numbers of a "
            f"layer spread over. Set KVWEAVE_CODEC to {better}, or a finer one"
        )


def coarseness(record: Record, spec: str) -> float:
    """The worst layer's error over the spread of each channel's keys and each head's values, a root mean square."""
    blob = encode(record, CacheKey("check", "chunk", "model", spec), terms=Terms(0, precomputed=False))
    shares = [
        _lost(one, other, dtype=record.dtype, axes=axes)
        for a, b in zip(record.layers, decode(read(blob)).layers, strict=True)
        if a is not None and b is not None
        for one, other, axes in ((a.keys, b.keys, (1,)), (a.values, b.values, (1, 2)))
    ]
    return max(shares)


def _lost(computed: Array, kept: Array, *, dtype: Dtype, axes: tuple[int, ...]) -> float:
    wide = widen(computed, dtype).astype(np.float64)
    errors, spreads = np.square(wide - widen(kept, dtype)).mean(axis=axes), wide.var(axis=axes)
    return float(np.sqrt((errors[spreads > 0] / spreads[spreads > 0]).mean())) if spreads.any() else 0.0
