"""Codes placed by the compiled kernel against the store's decoding and a rotation in float64."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blend.place import packed_placer as packed_placing
from blend.place.packed_placer import PackedPlacer, packed_placer
from blend.place.rotation import Angles, Pairing, Rotation, rotate_into
from blend.place.row_turn import FramedRows, LayerPlaces, RowTurn, framed_rows
from blend.place.unpack import DTYPES, unpack
from store.codec.decode import read_group
from store.codec.unpacked import unpacked
from store.reader import BlobReader
from store.record import Array, Dtype, LayerKV, PackedLayer, Record, narrow, widen
from tests.blend.test_unpack import CPU, layers, plain, same, stored
from tests.store.test_codec import DATA, LOSSY

FORMS: list[tuple[Pairing, int, int, int, int]] = [  # what turns, beside what does not; numbers before the context
    ("halves", 0, 9, 0, 0),
    ("halves", 0, 32, 0, 0),
    ("halves", 0, 32, 0, 3),
    ("halves", 0, 48, 0, 0),
    ("halves", 0, 64, 0, 0),
    ("halves", 16, 16, 32, 0),
    ("halves", 0, 16, 5, 0),
    ("neighbours", 0, 32, 0, 0),
    ("neighbours", 16, 16, 16, 0),
]
FAINT = {"partly_faint": 2.0**-118, "partly_fainter": 2.0**-126, "partly_empty": 0.0}
UNTURNED = RowTurn()
FILLED = 7.0


def placer(dtype: Dtype) -> PackedPlacer:
    found = packed_placer(DTYPES[dtype], CPU)
    assert isinstance(found, PackedPlacer)
    return found


def filled(layer: LayerKV | PackedLayer, room: int, *, dtype: Dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of a context that hold nothing yet."""
    keys, values = (torch.full((heads, room, dim), FILLED, dtype=DTYPES[dtype]) for heads, _, dim in layer.shapes)
    return keys, values


def tensors(
    draw: str, keys: tuple[int, int, int], values: tuple[int, int, int], *, dtype: Dtype
) -> tuple[Array, Array]:
    layer = plain(draw if draw in DATA else "normal", keys, values, dtype=dtype).layers[0]
    assert layer is not None
    if draw in DATA:
        return layer.keys, layer.values
    faint = np.float32(FAINT[draw])
    loud_channels, loud_tokens = np.ones(keys[2], np.float32), np.ones((values[1], 1), np.float32)
    loud_channels[::3] = loud_tokens[::3] = faint
    return (
        narrow(widen(layer.keys, dtype) * loud_channels, dtype),
        narrow(widen(layer.values, dtype) * loud_tokens, dtype),
    )


def moved(x: Tensor, apart: int) -> Tensor:
    """The same numbers, so many behind the beginning of their memory."""
    room = torch.empty(apart + x.numel(), dtype=x.dtype)
    return room[apart:].view(x.shape).copy_(x)


def bits(x: Tensor) -> Tensor:
    """So that -0.0 is not 0.0."""
    return x.contiguous().view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32)


@pytest.fixture(autouse=True, scope="module")
def nothing_left_to_learn() -> Iterator[None]:
    """A kernel that is made knows the types of all that comes: numba may learn them wrongly where two threads call."""
    kernels = [placer(dtype)._kernel for dtype in ("float32", "bfloat16")]
    asked = Mock(side_effect=AssertionError("numba looks for what fits these types"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(kernels[0]), "_search_new_conversions", asked)
        yield
        asked.assert_not_called()


def both_forms(reader: BlobReader) -> list[PackedLayer]:
    """The one layer as a disk has it, and as memory keeps it."""
    found = [read_group(reader, 0)[0], unpacked(reader.blob()).layers[0]]
    return [layer for layer in found if isinstance(layer, PackedLayer) and len(layer.framed) == 1]


def turned(x: Tensor, rotation: Rotation, angles: Angles) -> Tensor:
    """What `rotate_into` should make of it, as exact as float64 is."""
    out, x = x.double(), x.double()
    step = 2 if rotation.pairing == "neighbours" else 1
    apart = 1 if rotation.pairing == "neighbours" else rotation.pairs
    firsts = [rotation.start + step * pair for pair in range(rotation.pairs)]
    a, b = x[..., firsts], x[..., [first + apart for first in firsts]]
    cos, sin = angles.cos.double(), rotation.sign * angles.sin.double()
    out[..., firsts] = a * cos - b * sin
    out[..., [first + apart for first in firsts]] = b * cos + a * sin
    return out


@pytest.mark.parametrize("draw", DATA)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", LOSSY)
def test_it_equals_the_store_where_nothing_turns(spec: str, dtype: Dtype, draw: str) -> None:
    for tokens in (131, 1):
        reader = stored(plain(draw, (3, tokens, 16), (2, tokens, 10), dtype=dtype), spec)
        _, decoded = layers(reader)
        for layer, kept in product(both_forms(reader), {tokens, min(tokens, 70), 1}):
            out = filled(layer, 150, dtype=dtype)
            placer(dtype).place(LayerPlaces([out], framed_rows([(9, 9 + kept, layer)]), [(UNTURNED, UNTURNED)]))
            for got, wanted in zip(out, (decoded.keys, decoded.values), strict=True):
                assert same(got[:, 9 : 9 + kept], np.ascontiguousarray(wanted[:, :kept]))
                assert (got[:, :9] == FILLED).all() and (got[:, 9 + kept :] == FILLED).all()


@settings(max_examples=80, deadline=None)
@given(
    spec=st.sampled_from(LOSSY),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 20) | st.integers(120, 300), st.integers(1, 9)),
    rest=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    way=st.tuples(st.sampled_from(["halves", "neighbours"]), st.sampled_from([1, -1])),
)
def test_what_turns_is_off_by_its_rounding_alone(
    spec: str,
    dtype: Dtype,
    shape: tuple[int, int, int],
    rest: tuple[int, int],
    way: tuple[Pairing, int],
) -> None:
    heads, tokens, pairs = shape
    dim = rest[0] + 2 * pairs + rest[1]
    reader = stored(plain("normal", (heads, tokens, dim), (1, tokens, 4), dtype=dtype), spec)
    layer = both_forms(reader)[tokens % 2]
    rotation = Rotation(way[0], rest[0], pairs, way[1])
    several = torch.rand(tokens, pairs, generator=torch.Generator().manual_seed(tokens)) * 6
    angles = Angles(several.cos(), several.sin())
    out, values = filled(layer, tokens, dtype=dtype)
    turns = RowTurn(rotation, angles), UNTURNED
    placer(dtype).place(LayerPlaces([(out, values)], framed_rows([(0, tokens, layer)]), [turns]))
    keys, _ = unpack(layer, dtype=DTYPES[dtype], device=CPU)
    wanted = turned(keys, rotation, angles)
    room = torch.finfo(DTYPES[dtype]).eps * wanted.abs() / 2 + 4 * torch.finfo(torch.float32).eps * keys.abs().max()
    assert ((out.double() - wanted).abs() <= room).all()


@pytest.mark.parametrize("draw", [*DATA, *FAINT])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", LOSSY)
def test_it_is_what_torch_makes_of_it(spec: str, dtype: Dtype, draw: str) -> None:
    """To the bit, where nothing goes beyond the dtype by turning: sixteen numbers at a time, and one by one where heads
    are of other widths, a context lies across, or keys so large or small that a step may lose something of them."""
    for pairing, start, pairs, rest, apart in FORMS:
        keys, values = tensors(draw, (2, 131, start + 2 * pairs + rest), (1, 131, 48), dtype=dtype)
        reader = stored(Record(dtype, (LayerKV(keys, values),)), spec)
        several = torch.rand(131, pairs, generator=torch.Generator().manual_seed(pairs)) * 6
        angles, rotation = Angles(several.cos(), several.sin()), Rotation(pairing, start, pairs)
        for layer in both_forms(reader):
            out, beside = (moved(each, apart) for each in filled(layer, 131, dtype=dtype))
            turns = RowTurn(rotation, angles), UNTURNED
            placer(dtype).place(LayerPlaces([(out, beside)], framed_rows([(0, 131, layer)]), [turns]))
            unturned, wanted_values = unpack(layer, dtype=DTYPES[dtype], device=CPU)
            wanted = torch.empty_like(unturned)
            rotate_into(wanted, unturned, rotation=rotation, angles=angles)
            held = wanted.isfinite()
            assert torch.equal(bits(out)[held], bits(wanted)[held]) and not out[~held].isfinite().any()
            assert torch.equal(bits(beside), bits(wanted_values))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_layers_are_placed_together_each_by_its_own_turns(dtype: Dtype) -> None:
    shape, random = (2, 131, 64), torch.Generator().manual_seed(1)
    tables = [Angles(each.cos(), each.sin()) for each in torch.rand(2, 300, 32, generator=random) * 6]
    readers = [stored(plain(draw, shape, shape, dtype=dtype), "q4") for draw in list(DATA)[:4]]
    first, second = ((RowTurn(Rotation("halves", 0, 32), each), UNTURNED) for each in tables)
    turns = [first, first, second, (UNTURNED, UNTURNED)]
    layers = [both_forms(reader)[0] for reader in readers]
    rows, wanted = list[FramedRows](), list[tuple[Tensor, Tensor]]()
    for layer, both in zip(layers, turns, strict=True):
        rows.append(framed_rows([(2, 60, layer), (60, 191, layer)]))
        wanted.append(filled(layer, 300, dtype=dtype))
        placer(dtype).place(LayerPlaces([wanted[-1]], rows[-1], [both]))
    found = [(torch.full_like(keys, FILLED), torch.full_like(values, FILLED)) for keys, values in wanted]

    placer(dtype).place(LayerPlaces(found, rows[0]._replace(rows=np.concatenate([each.rows for each in rows])), turns))

    for ours, alone in zip(found, wanted, strict=True):
        assert all(torch.equal(bits(got), bits(one)) for got, one in zip(ours, alone, strict=True))


@pytest.mark.parametrize("spec", ["q4", "k8v2", "q2.9"])
def test_several_records_of_several_parts_stand_each_in_its_own_slots(spec: str) -> None:
    shape, rotation = (8, 1_001, 64), Rotation("halves", 0, 32)
    found = [stored(plain(draw, shape, shape), spec) for draw in ("normal", "unequal_channels")]
    kept = [read_group(found[0], 0)[0], unpacked(found[1].blob()).layers[0]]
    packed = [layer for layer in kept if isinstance(layer, PackedLayer)]
    assert [len(layer.framed) > 1 for layer in packed] == [True, True]
    several = torch.rand(2_100, 32, generator=torch.Generator().manual_seed(1)) * 6
    angles = Angles(several.cos(), several.sin())
    begins = [layer.framed[1].start for layer in packed]
    for cuts in ((1_001, 1_001), (begins[0], begins[1] + 70), (begins[0] - 1, begins[1] + 1), (1, 1_000)):
        out = filled(packed[0], 2_100, dtype="bfloat16")
        wanted = tuple(each.clone() for each in out)
        places = [(5, 5 + cuts[0], packed[0]), (1_030, 1_030 + cuts[1], packed[1])]
        placer("bfloat16").place(LayerPlaces([out], framed_rows(places), [(RowTurn(rotation, angles), UNTURNED)]))
        for start, stop, layer in places:
            keys, values = unpack(layer, dtype=torch.bfloat16, device=CPU)
            there = Angles(angles.cos[start:stop], angles.sin[start:stop])
            rotate_into(wanted[0][:, start:stop], keys[:, : stop - start], rotation=rotation, angles=there)
            wanted[1][:, start:stop] = values[:, : stop - start]
        assert torch.equal(bits(out[0]), bits(wanted[0])) and torch.equal(bits(out[1]), bits(wanted[1]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_step_lifts_beyond_the_dtype_becomes_its_largest_number(dtype: Dtype) -> None:
    limit = torch.finfo(DTYPES[dtype]).max
    numbers = torch.where(torch.arange(2 * 100 * 8).reshape(2, 100, 8) % 10 > 0, limit, limit * 0.94).to(DTYPES[dtype])
    array = numbers.view(torch.uint16).numpy() if dtype == "bfloat16" else numbers.numpy()
    packed, decoded = layers(stored(Record(dtype, (LayerKV(array, array),)), "q2"))
    keys, values = filled(packed, 100, dtype=dtype)
    placer(dtype).place(LayerPlaces([(keys, values)], framed_rows([(0, 100, packed)]), [(UNTURNED, UNTURNED)]))
    assert same(keys, decoded.keys) and same(values, decoded.values)


def test_what_no_kernel_places_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed_placer(torch.float16, CPU) is None
    monkeypatch.setattr(packed_placing, "SpanPlacer", None)
    assert packed_placer.__wrapped__(torch.bfloat16, torch.device("cuda")) is None


@pytest.mark.long
def test_a_cpu_with_no_instructions_of_its_own_does_the_same() -> None:
    some = "torch_makes_of_it and bfloat16 and (q4 or q2.9)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__, "-k", some]
    subprocess.run(command, env={**os.environ, "NUMBA_CPU_NAME": "generic"}, check=True, timeout=300)
