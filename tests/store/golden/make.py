"""Writes the golden blobs of this format: `python -m tests.store.golden.make`. What is there is never written again.

A new format gets new names beside the old ones, and a line in `test_golden.py`. `v1-table.blob` is of an older release,
whose codecs could lean on fitted tables. Format 3 is that of blobs with codes of a trellis alone; for them `v2` had
levels.
"""

import json
from pathlib import Path

import numpy as np
from blake3 import blake3

from store.blob import FORMAT, Blob, Terms
from store.codec.decode import decode
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import read
from store.record import Dtype, LayerKV, Record, narrow, widen
from tests.store import samples

FOLDER = Path(__file__).parent
TERMS = Terms(3, precomputed=True)


def source(dtype: Dtype = "bfloat16") -> Record:
    """Two layers with a shared one between them, 130 tokens in two spans, keys that lie away from zero."""
    plain = samples.record(layers=3, tokens=130, heads=1, dim=4, dtype=dtype)
    offsets = np.array([0, 10, -50, 1000], np.float32)
    layers = [
        layer and LayerKV(narrow(widen(layer.keys, dtype) + offsets, dtype), layer.values) for layer in plain.layers
    ]
    return Record(dtype, tuple(layers), "0123456789abcdef" * 2)


def key(spec: str) -> CacheKey:
    return CacheKey("Acme GmbH", "Verträge/2024", "fp", spec)


def pack(plain: Record, spec: str) -> Blob:
    return encode(plain, key(spec), terms=TERMS)


def checksum(plain: Record) -> str:
    """Dtype, shapes and bytes of everything that a record holds."""
    told = blake3(plain.dtype.encode())
    for layer in plain.layers:
        for array in (layer.keys, layer.values) if layer else ():
            told.update(f"{array.shape}".encode() + array.tobytes())
        told.update(b"|")
    return told.hexdigest(16)


def described(blob: Blob) -> dict[str, object]:
    """What must be read from this blob for ever. The first numbers are there for human eyes."""
    plain = decode(read(blob))
    (first, *_) = [layer for layer in plain.layers if layer]
    return {
        "codec": blob.head.codec,
        "frames": len(blob.frames),
        "checksum": checksum(plain),
        "first_keys": widen(first.keys, plain.dtype)[0, 0].tolist(),
        "last_values": widen(first.values, plain.dtype)[-1, -1].tolist(),
    }


def write(name: str, content: bytes) -> None:
    with (FOLDER / name).open("xb") as file:
        file.write(content)


def main() -> None:
    blobs = {spec: pack(source(), spec) for spec in ("q2.3", "q2.9@1-k1.5v4", "k8v2.2")}
    expected = {name: described(blob) for name, blob in blobs.items()}
    write(f"v{FORMAT}.json", json.dumps(expected, indent=1).encode() + b"\n")
    for name, blob in blobs.items():
        write(f"v{FORMAT}-{name}.blob", bytes(blob))


if __name__ == "__main__":
    main()
