"""Fitted tables: what they win, what they keep, and what is refused."""

from typing import get_args

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from store.blob import Blob, Terms
from store.codec.decode import decode, decode_packed
from store.codec.encode import encode
from store.codec.table import Table, fit, named
from store.errors import BadBlob, MissReason, RecordError
from store.reader import read
from store.record import Dtype, LayerKV, Record, all_finite, largest, narrow, widen
from tests.store import samples
from tests.store.test_codec import LOSSY, alike, excess, formula

TERMS = Terms(0, precomputed=True)


def offset(seed: int, *, tokens: int = 80, dim: int = 16, dtype: Dtype = "float32") -> Record:
    """Channels far from zero, the same way in every record."""
    far = np.random.default_rng(99).standard_normal((2, 1, dim)) * 50
    random = np.random.default_rng(seed)

    def tensor() -> np.ndarray:
        return narrow((random.standard_normal((2, tokens, dim)) + far).astype(np.float32), dtype)

    return Record(dtype, (LayerKV(tensor(), tensor()), None, LayerKV(tensor(), tensor())))


def pack(plain: Record, spec: str, table: Table | None) -> Blob:
    return encode(plain, samples.key(codec=f"{spec}@{table.id}" if table else spec), terms=TERMS, table=table)


def centered(record: Record, table: Table) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = zip(record.layers, table.layers, strict=True)
    return [
        (widen(kv.keys, record.dtype) - row[0], widen(kv.values, record.dtype) - row[1])
        for kv, row in rows
        if kv and row
    ]


@pytest.mark.parametrize("spec", LOSSY)
def test_the_bound_holds_on_the_centered_numbers(spec: str) -> None:
    table = named(fit([offset(seed) for seed in range(3)]))
    plain = offset(7)
    back = decode(read(pack(plain, spec, table), table))
    for (keys, values), (new_keys, new_values) in zip(centered(plain, table), centered(back, table), strict=True):
        slack = 2.0**-21 * 200  # the centers themselves are rounded away and on again
        assert excess(spec, keys, new_keys, "float32", 1) <= slack
        assert excess(spec, values, new_values, "float32", 2) <= slack


@pytest.mark.parametrize("spec", LOSSY)
def test_a_table_brings_far_channels_nearer(spec: str) -> None:
    table, plain = named(fit([offset(0), offset(1)])), offset(7)
    with_table = decode(read(pack(plain, spec, table), table))
    without = decode(read(pack(plain, spec, None)))
    assert error(plain, with_table) < error(plain, without) / 5


def error(one: Record, other: Record) -> float:
    pairs = zip(one.layers, other.layers, strict=True)
    return max(float(np.abs(a.keys - b.keys).max()) for a, b in pairs if a and b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_codes_scales_and_center_stand_for_the_plain_numbers(dtype: Dtype) -> None:
    table, plain = named(fit([offset(0, dtype=dtype)])), offset(7, tokens=150, dtype=dtype)
    blob = pack(plain, "q4", table)
    packed, numbers = decode_packed(read(blob, table)), decode(read(blob, table))
    for codes, layer in zip(packed.layers, numbers.layers, strict=True):
        if codes is not None and layer is not None:
            keys = np.concatenate([formula(tile.keys) for tile in codes.tiles], axis=1)
            values = np.concatenate([formula(tile.values) for tile in codes.tiles], axis=1)
            assert alike(LayerKV(narrow(keys, dtype), narrow(values, dtype)), layer)


def test_a_codec_that_names_another_table_is_refused() -> None:
    one, other = named(fit([offset(0)])), named(fit([offset(1)]))
    key = samples.key(codec=f"q4@{one.id}")
    for given in (other, None):
        with pytest.raises(RecordError, match="needs table"):
            encode(offset(7), key, terms=TERMS, table=given)
    with pytest.raises(RecordError, match="needs table"):
        encode(offset(7), samples.key(codec="q4"), terms=TERMS, table=one)


@pytest.mark.parametrize(
    "plain", [offset(7, dim=8), samples.record(layers=3, heads=2), samples.record(layers=4, heads=2, dtype="float32")]
)
def test_a_table_of_another_shape_is_refused(plain: Record) -> None:
    with pytest.raises(RecordError, match="fitted on another model"):
        pack(plain, "q4", named(fit([offset(0, dim=24)])))


def test_a_table_with_fewer_layers_is_refused() -> None:
    short = named(fit([Record("float32", offset(0).layers[:2])]))
    with pytest.raises(RecordError, match="layer 2"):
        pack(offset(7), "q4", short)


def test_a_blob_is_not_decoded_with_another_table_or_none() -> None:
    one, other = named(fit([offset(0)])), named(fit([offset(1)]))
    blob = pack(offset(7), "q4", one)
    for given in (other, None):
        with pytest.raises(BadBlob, match="needs table") as raised:
            decode(read(blob, given))
        assert raised.value.reason is MissReason.NO_TABLE
    with pytest.raises(BadBlob, match="needs table None"):
        decode(read(pack(offset(7), "q4", None), one))


def test_a_table_that_does_not_fit_the_head_is_no_table() -> None:
    blob, other = pack(offset(7), "q4", named(fit([offset(0)]))), named(fit([offset(0, dim=24)]))
    forged = Table(str(blob.head.codec).split("@")[1], other.layers)
    with pytest.raises(BadBlob, match="another shape"):
        decode(read(blob, forged))


def test_other_bytes_are_no_table() -> None:
    data = fit([offset(0)])
    table_id = named(data).id
    assert Table.parse(data, table_id).id == table_id
    spoilt = [data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(0, len(data), 37)]
    for other in (*spoilt, data[:-1], data + b"\0", b""):
        with pytest.raises(BadBlob) as raised:
            Table.parse(other, table_id)
        assert raised.value.reason is MissReason.NO_TABLE


def crafted(*rows: object) -> bytes:
    return msgspec.msgpack.encode(rows)


NUMBERS = np.ones(6, np.float32).tobytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 4000,
        crafted(1),
        crafted([[2, 2], [3, 3], NUMBERS, NUMBERS[:-4]]),
        crafted([[2, 2], [3, 3], NUMBERS, NUMBERS[:-1]]),
        crafted([[2, 2], [3, 4], NUMBERS, NUMBERS]),
        crafted([[-2, 2], [-3, 3], NUMBERS, NUMBERS]),
        crafted([[0, 2], [0, 3], b"", NUMBERS]),
        b"\x91\x95" + msgspec.msgpack.encode([[2, 2], [3, 3], NUMBERS, NUMBERS])[1:] + b"\x91" * 100_000 + b"\x90",
        crafted([[2, 2], [3, 3], NUMBERS, np.full(6, np.nan, np.float32).tobytes()]),
    ],
)
def test_bytes_under_their_own_digest_that_are_no_table_are_refused(data: bytes) -> None:
    with pytest.raises(BadBlob, match="does not parse"):
        Table.parse(data, blake3(data).hexdigest(16))
    with pytest.raises(BadBlob, match="does not parse"):
        named(data)


def test_a_table_is_fitted_on_records_of_one_model() -> None:
    with pytest.raises(RecordError, match="at least one"):
        fit([])
    with pytest.raises(RecordError, match="one model"):
        fit([offset(0), offset(0, dim=24)])


def test_a_table_is_not_fitted_on_what_is_not_finite() -> None:
    spoilt = np.full((1, 3, 2), np.nan, np.float32)
    with pytest.raises(RecordError, match="layer 0"):
        fit([Record("float32", (LayerKV(spoilt, spoilt),))])


def test_the_mean_of_the_largest_numbers_does_not_overflow() -> None:
    full = np.full((1, 300, 2), np.finfo(np.float32).max, np.float32)
    plain = Record("float32", (LayerKV(full, full),))
    table = named(fit([plain]))
    assert alike(decode(read(pack(plain, "q2", table), table)).layers[0], plain.layers[0])


def test_numbers_that_overflow_when_centered_are_refused() -> None:
    full = np.full((1, 3, 2), np.finfo(np.float32).max, np.float32)
    table = named(fit([Record("float32", (LayerKV(full, full),))]))
    with pytest.raises(RecordError, match="without a table"):
        pack(Record("float32", (LayerKV(-full, -full),)), "q8", table)


@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_the_largest_numbers_stay_finite_behind_a_center(dtype: Dtype) -> None:
    """A code may stand for a little more than the number that was packed, and here there is no more."""
    below = np.linspace(0.01, 0.2, 64, dtype=np.float32) * largest(dtype)
    wide = np.full((1, 20, 64), largest(dtype), np.float32)
    wide[:, 1:] -= below
    array = narrow(wide, dtype)
    plain = Record(dtype, (LayerKV(array, array),))
    table = named(fit([plain]))
    for spec in LOSSY:
        (back,) = decode(read(pack(plain, spec, table), table)).layers
        assert back is not None and all_finite(back.keys, dtype) and all_finite(back.values, dtype)
