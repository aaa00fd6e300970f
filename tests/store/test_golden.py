"""Blobs that were written once, and are read the same way for ever. Their files are never written again."""

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from blake3 import blake3

from store.blob import FORMAT, PLAIN_FORMAT, Blob
from store.codec.decode import decode
from store.codec.quantize import step_sizes
from store.errors import BadBlob, MissReason
from store.reader import read
from store.record import Dtype, Record, widen
from tests.store.golden import make

FOLDER = Path(make.__file__).parent
EXPECTED: dict[str, dict[str, object]] = {
    f"v{number}-{name}": expected
    for number in range(1, FORMAT + 1)
    for name, expected in json.loads((FOLDER / f"v{number}.json").read_bytes()).items()
}
READABLE = [name for name in EXPECTED if name != "v1-table"]
TODAY = [
    name
    for name in EXPECTED
    if name.startswith((f"v{PLAIN_FORMAT}-", f"v{FORMAT}-"))
    and name not in {f"v{PLAIN_FORMAT}-three-frames", f"v{PLAIN_FORMAT}-q2.3@1-k1.5v4"}
]


def golden(name: str) -> Blob:
    return Blob.parse((FOLDER / f"{name}.blob").read_bytes())


def plain(name: str) -> Record:
    return decode(read(golden(name)))


def dtype_of(name: str) -> Dtype:
    return next((dtype for dtype in get_args(Dtype) if name.endswith(dtype)), "bfloat16")


@pytest.mark.parametrize("name", READABLE)
def test_a_golden_blob_reads_as_it_always_did(name: str) -> None:
    assert make.described(golden(name)) == EXPECTED[name]


def test_a_golden_blob_that_leans_on_a_fitted_table_is_refused_with_its_codec() -> None:
    with pytest.raises(BadBlob, match=str(EXPECTED["v1-table"]["codec"])) as raised:
        plain("v1-table")
    assert raised.value.reason is MissReason.NEWER_FORMAT


@pytest.mark.parametrize("name", [name for name in EXPECTED if not name.endswith("three-frames")])
def test_the_head_of_a_golden_blob_reads_as_it_always_did(name: str) -> None:
    head = golden(name).head
    assert head.key == make.key(str(EXPECTED[name]["codec"]))
    assert head.terms == make.TERMS
    assert (head.dtype, head.tokens, f"v{head.format}") == (dtype_of(name), 130, name[:2])
    assert [shape and (shape.key_heads, shape.key_dim) for shape in head.shapes] == [(1, 4), None, (1, 4)]
    assert head.ids_digest == ("" if head.format == 1 else make.source().ids_digest)


@pytest.mark.parametrize("name", TODAY)
def test_what_is_encoded_today_decodes_to_the_same_numbers(name: str) -> None:
    """Not to the same bytes: another zstd may pack them otherwise. The source is read from the lossless golden blob."""
    kept = f"v{PLAIN_FORMAT}-lossless"
    today = make.pack(plain(name if name.startswith(kept) and "@" not in name else kept), str(EXPECTED[name]["codec"]))
    assert make.checksum(decode(read(today))) == EXPECTED[name]["checksum"]


def test_the_numbers_in_the_list_are_the_numbers_in_the_blob() -> None:
    """The checksums alone could all be of nothing."""
    (first, shared, last) = plain("v1-lossless").layers
    assert shared is None and first is not None and last is not None
    assert widen(first.keys, "bfloat16")[0, 0].tolist() == EXPECTED["v1-lossless"]["first_keys"]
    assert len({entry["checksum"] for entry in EXPECTED.values()}) == len(EXPECTED)


def test_the_step_sizes_are_what_they_always_were() -> None:
    """They are computed, not stored, and every quantized blob leans on them."""
    steps = step_sizes(np.arange(4066))
    assert (steps[0], steps[1], steps[2]) == (0.0, 2.0**-126, 2.0**-126 * 1.046875)
    assert steps[-2] == steps[-1] == steps.max() == 2.0**127 * 1.921875
    assert blake3(steps.tobytes()).hexdigest(8) == "4b39e5698a8544ab"


def test_every_golden_file_is_checked_and_small() -> None:
    assert {file.stem for file in FOLDER.glob("v*.blob")} == set(EXPECTED)
    assert all(file.stat().st_size < 12_000 for file in FOLDER.iterdir() if file.is_file())


def test_what_is_there_is_not_written_again() -> None:
    with pytest.raises(FileExistsError):
        make.write("v1.json", b"")
