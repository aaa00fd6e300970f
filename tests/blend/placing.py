"""The contract of placements: each writes the bits that the store's decoding and a rotation make."""

from collections.abc import Sequence
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from blend.kernels.kernels import gpu_place_kernel
from blend.place.placement import LayerPlaces, Placement, RowTurn
from blend.place.rotation import Angles, Pairing, Rotation, rotate_into
from blend.place.torch_placement import DTYPES
from service.model.pinned_memory import pinned_memory
from store.blob import Terms
from store.codec.decode import decode, read_rows
from store.codec.encode import encode
from store.codec.unpacked import Memory, allocate, unpacked
from store.reader import BlobReader, read
from store.record import Array, Dtype, LayerKV, Record, narrow, widen
from store.rows import FORM, IN_CODES, StoredRows, joined, plain_rows
from tests.store import samples
from tests.store.block_form import BLOCKS, blocks_written
from tests.store.test_codec import DATA, LOSSY, tensor

CPU, CARD = torch.device("cpu"), torch.device("cuda")
DEVICE = CARD if torch.cuda.is_available() else CPU
FILLED = 7.0
SPECS = ("lossless", *LOSSY)
UNTURNED = RowTurn()
DIM = 18  # of keys, all of which the first rotations turn
ROTATIONS = (
    None,
    Rotation("halves", 0, 9),
    Rotation("halves", 3, 5, -1),
    Rotation("neighbours", 0, 9),
    Rotation("neighbours", 4, 6, -1),
)
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

try:  # Triton's interpreter of 3.6 takes the kernel's masks, that of 3.9 does not
    from triton.runtime import interpreter

    IS_INTERPRETED = gpu_place_kernel is not None and isinstance(
        gpu_place_kernel.gpu_place_kernel, interpreter.InterpretedFunction
    )
except ImportError:
    interpreter, IS_INTERPRETED = None, False

Shape = tuple[int, int, int]
Places = Sequence[tuple[int, int, BlobReader | StoredRows]]


def plain(draw: str, keys: Shape, values: Shape, *, dtype: Dtype = "bfloat16") -> Record:
    """One layer; some draws have channels and tokens so faint that a step may lose something of them."""
    both = LayerKV(
        *(tensor(DATA[draw if draw in DATA else "normal"], each, dtype, n) for n, each in ((1, keys), (2, values)))
    )
    if draw not in FAINT:
        return Record(dtype, (both,))
    channels, tokens = np.ones(keys[2], np.float32), np.ones((values[1], 1), np.float32)
    channels[::3] = tokens[::3] = np.float32(FAINT[draw])

    def faint(array: Array, by: np.ndarray) -> Array:
        return narrow(widen(array, dtype) * by, dtype)

    return Record(dtype, (LayerKV(faint(both.keys, channels), faint(both.values, tokens)),))


def stored(record: Record, spec: str) -> BlobReader:
    return read(encode(record, samples.key(codec=spec), terms=Terms(0, precomputed=True)))


def as_if_pinned(nbytes: int) -> Memory:
    return Memory(allocate(nbytes).data, is_pinned=True)


def both_forms(reader: BlobReader) -> list[StoredRows]:
    """The one layer as a disk has it, and as memory keeps it."""
    near = unpacked(reader.blob(), pinned_memory if torch.cuda.is_available() else as_if_pinned).stored
    return [read_rows([reader], range(1)), near]


def decoded(reader: BlobReader) -> LayerKV:
    layer = decode(reader).layers[0]
    assert layer is not None
    return layer


def as_tensor(array: Array) -> Tensor:
    numbers = torch.from_numpy(np.ascontiguousarray(array))
    return numbers.view(torch.bfloat16) if numbers.dtype == torch.uint16 else numbers


def bits(x: Tensor) -> Tensor:
    """So that -0.0 is not 0.0. What turning lifts beyond float32 is no number of one kind on all devices."""
    finite = torch.where(x.isfinite(), x, torch.full_like(x, FILLED))
    return finite.contiguous().view(torch.uint8)


def angles(pairs: int, *, slots: int, device: torch.device = CPU) -> Angles:
    several = torch.rand(slots, pairs, generator=torch.Generator().manual_seed(pairs)) * 6
    return Angles(several.cos().to(device), several.sin().to(device))


def filled(layer: LayerKV, room: int, *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Keys and values of a context that hold nothing yet."""
    keys, values = (
        torch.full((each.shape[0], room, each.shape[2]), FILLED, dtype=as_tensor(each).dtype, device=device)
        for each in (layer.keys, layer.values)
    )
    return keys, values


def moved(x: Tensor, apart: int) -> Tensor:
    """The same numbers, so many behind the beginning of their memory."""
    room = torch.empty(apart + x.numel(), dtype=x.dtype, device=x.device)
    return room[apart:].view(x.shape).copy_(x)


def placed_by_hand(
    out: tuple[Tensor, Tensor], layer: LayerKV, where: tuple[int, int], turns: tuple[RowTurn, RowTurn]
) -> None:
    """What a placement should do with one record."""
    start, stop = where
    for each, array, turn in zip(out, (layer.keys, layer.values), turns, strict=True):
        x = as_tensor(array)[:, : stop - start].to(each.device)
        there = turn.angles.at(slice(start, stop)) if turn.pairs else turn.angles
        rotate_into(each[:, start:stop], x, rotation=turn.rotation, angles=there)


class Contract:
    """All that holds of every placement."""

    specs: ClassVar[Sequence[str]] = SPECS
    dtypes: ClassVar[Sequence[Dtype]] = tuple(DTYPES)
    draws: ClassVar[Sequence[str]] = (*DATA, *FAINT)
    forms: ClassVar = FORMS
    device = DEVICE

    @staticmethod
    def placement(dtype: torch.dtype, device: torch.device) -> Placement:
        raise NotImplementedError

    def check(
        self,
        records: Sequence[tuple[StoredRows, LayerKV, tuple[int, int]]],
        rotations: tuple[Rotation | None, Rotation | None],
        *,
        apart: int = 0,
    ) -> None:
        """What is placed is what is made by hand, bit for bit, and nothing else is touched."""
        slots = max(stop for _, _, (_, stop) in records) + 3
        keys, values = (
            UNTURNED if each is None else RowTurn(each, angles(each.pairs, slots=slots, device=self.device))
            for each in rotations
        )
        wanted = filled(records[0][1], slots, device=self.device)
        out = moved(wanted[0], apart), moved(wanted[1], apart)
        places = np.array([where for _, _, where in records], np.int64)
        layers = LayerPlaces([out], joined([rows for rows, _, _ in records]), places, [(keys, values)])
        self.placement(out[0].dtype, self.device).place(layers)
        for _, layer, where in records:
            placed_by_hand(wanted, layer, where, (keys, values))
        for got, each in zip(out, wanted, strict=True):
            assert torch.equal(bits(got), bits(each))

    @pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
    def test_any_numbers_are_placed(self, spec: str, dtype: Dtype, draw: str) -> None:
        for tokens, rotation in ((131, ROTATIONS[1]), (1, None)):
            reader = stored(plain(draw, (1, tokens, DIM), (1, tokens, 10), dtype=dtype), spec)
            rows = both_forms(reader)[(len(draw) + tokens) % 2]  # over all draws each form of each
            self.check([(rows, decoded(reader), (9, 9 + tokens))], (rotation, None))

    def test_every_codec_is_placed_with_every_rotation(self, spec: str) -> None:
        for number, rotation in enumerate(ROTATIONS):
            dtype = self.dtypes[number % len(self.dtypes)]
            reader = stored(plain("unequal_channels", (1, 131, DIM), (1, 131, 5), dtype=dtype), spec)
            self.check([(both_forms(reader)[number % 2], decoded(reader), (1, 132))], (rotation, None))

    def test_heads_of_any_width_are_placed_wherever_a_context_begins(self, spec: str, dtype: Dtype) -> None:
        for pairing, start, pairs, rest, apart in self.forms:
            reader = stored(plain("normal", (2, 131, start + 2 * pairs + rest), (1, 131, 48), dtype=dtype), spec)
            for rows in both_forms(reader):
                self.check([(rows, decoded(reader), (0, 131))], (Rotation(pairing, start, pairs), None), apart=apart)

    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        specs=st.lists(st.sampled_from(SPECS), min_size=1, max_size=3),
        parts=st.lists(st.tuples(st.integers(1, 140), st.integers(1, 140), st.booleans()), min_size=1, max_size=3),
        heads=st.tuples(st.integers(1, 2), st.integers(1, 2)),
        rests=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 40)),
        way=st.tuples(st.sampled_from(["halves", "neighbours"]), st.integers(0, 4), st.sampled_from([1, -1])),
    )
    def test_records_of_any_codecs_and_shapes_stand_each_in_its_own_slots(
        self,
        specs: list[str],
        parts: list[tuple[int, int, bool]],
        heads: tuple[int, int],
        rests: tuple[int, int, int],
        way: tuple[Pairing, int, int],
    ) -> None:
        pairing, pairs, sign = way
        dim, slot = max(1, rests[0] + 2 * pairs + rests[1]), 0
        records = list[tuple[StoredRows, LayerKV, tuple[int, int]]]()
        for number, (tokens, kept, is_turned) in enumerate(parts):
            reader = stored(
                plain("normal", (heads[0], tokens, dim), (heads[1], tokens, rests[2])), specs[number % len(specs)]
            )
            records.append((both_forms(reader)[is_turned], decoded(reader), (slot + 1, slot + 1 + min(kept, tokens))))
            slot = records[-1][2][1]
        values = Rotation(pairing, 0, rests[2] // 2) if rests[2] > 30 else None
        self.check(records, (Rotation(pairing, rests[0], pairs, sign) if pairs else None, values))

    @pytest.mark.parametrize("several", ["q4", "k2.9v4", "lossless"])
    def test_a_record_of_several_frames_is_placed_up_to_any_token(
        self, several: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("store.codec.encode.FRAME_BYTES", 16 << 10)
        reader = stored(plain("normal", (1, 401, 64), (1, 401, 200)), several)  # so wide that two programs share a row
        assert len(reader.head.frames) > 1
        begin, layer = reader.head.frames[1].start, decoded(reader)
        for kept in (begin - 1, begin + 70):
            self.check([(both_forms(reader)[0], layer, (3, 3 + kept))], (None, None))

    def test_what_a_step_lifts_beyond_the_dtype_becomes_its_largest_number(self, dtype: Dtype) -> None:
        limit = torch.finfo(DTYPES[dtype]).max
        numbers = torch.where(torch.arange(2 * 100 * 8).reshape(2, 100, 8) % 10 > 0, limit, limit * 0.94)
        numbers = numbers.to(DTYPES[dtype])
        array = numbers.view(torch.uint16).numpy() if dtype == "bfloat16" else numbers.numpy()
        reader = stored(Record(dtype, (LayerKV(array, array),)), "q2")
        self.check([(both_forms(reader)[0], decoded(reader), (0, 100))], (None, None))

    def test_plain_arrays_are_placed(self, dtype: Dtype) -> None:
        record = plain("normal", (2, 70, DIM), (1, 70, 10), dtype=dtype)
        assert record.layers[0] is not None
        self.check([(plain_rows(record.layers), record.layers[0], (2, 60))], (ROTATIONS[1], None))

    @pytest.mark.parametrize("is_near", [0, 1])
    def test_a_form_that_no_kernel_takes_is_placed_as_its_reader_reads_it(
        self, is_near: int, dtype: Dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = stored(plain("normal", (2, 70, DIM), (1, 70, 10), dtype=dtype), "q4")
        records = [(both_forms(known)[is_near], decoded(known), (1, 60))]
        with blocks_written(monkeypatch):
            reader = stored(plain("normal", (2, 131, DIM), (1, 131, 10), dtype=dtype), "q4")
            records.append((both_forms(reader)[is_near], decoded(reader), (61, 192)))
            assert {*records[0][0].rows[..., FORM].flat, *records[1][0].rows[..., FORM].flat} == {IN_CODES, BLOCKS}
            self.check(records, (ROTATIONS[1], None))

    def test_layers_are_placed_together_each_by_its_own_turns(self) -> None:
        """Some parts are in memory that a device reads itself, some are not, some are plain, some bring no tokens."""
        specs = ("q4", "lossless", "q4")
        readers = [
            stored(plain("normal", (2, n, DIM), (1, n, 10)), spec) for n, spec in zip((70, 131, 9), specs, strict=True)
        ]
        forms = [both_forms(each) for each in readers]
        slots = np.array([(1, 60), (60, 60), (61, 192)], np.int64)
        out, rows, turns = list[tuple[Tensor, Tensor]](), list[StoredRows](), list[tuple[RowTurn, RowTurn]]()
        wanted = list[tuple[Tensor, Tensor]]()
        for rotation, (first, second) in zip(ROTATIONS, product((0, 1), repeat=2), strict=False):
            turn = (
                UNTURNED
                if rotation is None
                else RowTurn(rotation, angles(rotation.pairs, slots=220, device=self.device))
            )
            rows.append(joined([forms[0][first], forms[2][0], forms[1][second]]))
            turns.append((turn, UNTURNED))
            out.append(filled(decoded(readers[0]), 220, device=self.device))
            wanted.append(filled(decoded(readers[0]), 220, device=self.device))
            placed_by_hand(wanted[-1], decoded(readers[0]), (1, 60), turns[-1])
            placed_by_hand(wanted[-1], decoded(readers[1]), (61, 192), turns[-1])
        together = rows[0]._replace(rows=np.concatenate([each.rows for each in rows]), memory=rows)
        self.placement(torch.bfloat16, self.device).place(LayerPlaces(out, together, slots, turns))
        for got, each in zip(out, wanted, strict=True):
            assert torch.equal(bits(got[0]), bits(each[0])) and torch.equal(bits(got[1]), bits(each[1]))


class OfAnyStrides(Contract):
    """What holds of the placements that a GPU has."""

    def test_a_context_of_any_strides_is_filled(self) -> None:
        reader = stored(plain("normal", (2, 70, 8), (2, 70, 8)), "q4")
        out = [torch.full((80, 2, 8), FILLED, dtype=torch.bfloat16, device=self.device).transpose(0, 1) for _ in "12"]
        wanted = filled(decoded(reader), 80, device=self.device)
        places = LayerPlaces([(out[0], out[1])], both_forms(reader)[1], np.array([(4, 74)]), [(UNTURNED, UNTURNED)])
        self.placement(torch.bfloat16, self.device).place(places)
        placed_by_hand(wanted, decoded(reader), (4, 74), (UNTURNED, UNTURNED))
        assert all(torch.equal(bits(got), bits(each)) for got, each in zip(out, wanted, strict=True))


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
