"""Small records, keys and blobs for the tests, and stores of every kind. Everything is a function of its arguments."""

import numpy as np

from store.blob import Blob, Terms
from store.codec.decode import decode, read_rows
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import BlobReader
from store.record import Dtype, LayerKV, Record, narrow
from store.rows import StoredRows


def record(
    seed: int = 0, *, layers: int = 3, tokens: int = 40, heads: int = 2, dim: int = 16, dtype: Dtype = "bfloat16"
) -> Record:
    """Normal keys and values, each channel with a scale of its own; the middle layer shares another one's cache."""
    random = np.random.default_rng(seed)

    def tensor() -> np.ndarray:
        wide = random.standard_normal((heads, tokens, dim)) * np.exp(random.standard_normal((heads, 1, dim)))
        return narrow(wide.astype(np.float32), dtype)

    return Record(
        dtype, tuple(None if layers > 2 and i == layers // 2 else LayerKV(tensor(), tensor()) for i in range(layers))
    )


def rows_of(reader: BlobReader) -> StoredRows:
    """Rows of all layers."""
    return read_rows([reader], range(len(reader.head.shapes)))


def plain_bytes(reader: BlobReader) -> list[bytes]:
    """Keys and values of all layers."""
    layers = [layer for layer in decode(reader).layers if layer]
    return [array.tobytes() for layer in layers for array in (layer.keys, layer.values)]


def key(name: object = 0, *, tenant: str = "acme", fingerprint: str = "fp", codec: str = "q4") -> CacheKey:
    """A key whose chunk is named after anything."""
    return CacheKey(tenant, f"chunk-{name}", fingerprint, codec)


def blob(
    name: object = 0,
    *,
    tenant: str = "acme",
    codec: str = "q4",
    seed: int = 0,
    tokens: int = 40,
    epoch: int = 0,
    precomputed: bool = True,
) -> Blob:
    """A blob of a few kilobytes under `key(name)`."""
    terms = Terms(epoch, precomputed)
    return encode(record(seed, tokens=tokens), key(name, tenant=tenant, codec=codec), terms=terms)
