"""Blobs that were written once, and are read the same way for ever. Their files are never written again."""

import json
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from store.blob import Blob
from store.codec.decode import decode
from store.codec.quantize import Steps
from store.errors import BadBlob, MissReason
from store.reader import read
from store.record import Dtype, Record, widen
from tests.store.golden import make

FOLDER = Path(make.__file__).parent
EXPECTED: dict[str, dict[str, object]] = json.loads((FOLDER / "v1.json").read_bytes())
READABLE = [name for name in EXPECTED if name != "table"]
LOSSLESS: dict[str, Dtype] = {"lossless": "bfloat16", "lossless-float16": "float16", "lossless-float32": "float32"}


def golden(name: str) -> Blob:
    return Blob.parse((FOLDER / f"v1-{name}.blob").read_bytes())


def plain(name: str) -> Record:
    return decode(read(golden(name)))


@pytest.mark.parametrize("name", READABLE)
def test_a_golden_blob_reads_as_it_always_did(name: str) -> None:
    assert make.described(golden(name)) == EXPECTED[name]


def test_a_golden_blob_that_leans_on_a_fitted_table_is_refused_with_its_codec() -> None:
    with pytest.raises(BadBlob, match=str(EXPECTED["table"]["codec"])) as raised:
        plain("table")
    assert raised.value.reason is MissReason.NEWER_FORMAT


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "three-frames"])
def test_the_head_of_a_golden_blob_reads_as_it_always_did(name: str) -> None:
    head = golden(name).head
    assert head.key == make.key(str(EXPECTED[name]["codec"]))
    assert head.terms == make.TERMS
    assert (head.dtype, head.tokens) == (LOSSLESS.get(name, "bfloat16"), 130)
    assert [shape and (shape.key_heads, shape.key_dim) for shape in head.shapes] == [(1, 4), None, (1, 4)]


@pytest.mark.parametrize("name", [name for name in READABLE if name != "three-frames"])
def test_what_is_encoded_today_decodes_to_the_same_numbers(name: str) -> None:
    """Not to the same bytes: another zstd may pack them otherwise. The source is read from the lossless golden blob."""
    source = plain(name if name in LOSSLESS else "lossless")
    today = make.pack(source, str(EXPECTED[name]["codec"]))
    assert make.checksum(decode(read(today))) == EXPECTED[name]["checksum"]


def test_the_numbers_in_the_list_are_the_numbers_in_the_blob() -> None:
    """The checksums alone could all be of nothing."""
    (first, shared, last) = plain("lossless").layers
    assert shared is None and first is not None and last is not None
    assert widen(first.keys, "bfloat16")[0, 0].tolist() == EXPECTED["lossless"]["first_keys"]
    assert len({entry["checksum"] for entry in EXPECTED.values()}) == len(EXPECTED)


def test_the_step_sizes_are_what_they_always_were() -> None:
    """They are computed, not stored, and every quantized blob leans on them."""
    codes = np.arange(256, dtype=np.uint8)
    steps = np.concatenate([Steps(codes, top).values() for top in range(-1761, 2048, 238)])
    assert (steps[1], steps.max()) == (2.0**-126 * 1.046875, 2.0**127 * 1.921875)
    assert blake3(steps.tobytes()).hexdigest(8) == "3cf9f3cca373420b"


def test_every_golden_file_is_checked_and_small() -> None:
    assert {file.name for file in FOLDER.glob("v1-*.blob")} == {f"v1-{name}.blob" for name in EXPECTED}
    assert all(file.stat().st_size < 12_000 for file in FOLDER.iterdir() if file.is_file())


def test_what_is_there_is_not_written_again() -> None:
    with pytest.raises(FileExistsError):
        make.write("v1.json", b"")
