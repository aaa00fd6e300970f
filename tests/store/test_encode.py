"""What zstd makes of a frame's bytes; `test_codec.py` has what becomes of the numbers."""

import numpy as np
import pytest

from store.blob import StoredShape, Terms
from store.codec.encode import encode
from store.codec.frame import written_form
from store.codec.spec import Spec
from tests.store import samples


def entropy_bytes(piece: bytes) -> float:
    """What the frequencies of a piece's bytes need, without a table of them."""
    found = np.bincount(np.frombuffer(piece, np.uint8))
    found = found[found > 0]
    return float(-(found * np.log2(found / found.sum())).sum() / 8)


@pytest.mark.parametrize("spec", ["q2", "q3", "q4", "q8"])
def test_layers_of_few_heads_take_what_each_kind_of_their_bytes_needs(spec: str) -> None:
    """Steps, middles and codes have frequencies of their own, however few they are."""
    plain = samples.record(layers=3, tokens=256, heads=4, dim=32)
    form = written_form(Spec.parse(spec).bits(0), StoredShape(4, 32, 4, 32), dtype=plain.dtype)
    pieces = form.write([layer for layer in plain.layers if layer])
    blob = encode(plain, samples.key(codec=spec), terms=Terms(0, precomputed=True))
    assert blob.head.body_bytes <= 1.045 * sum(map(entropy_bytes, pieces))
