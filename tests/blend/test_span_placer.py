"""Codes placed by the kernel for GPUs, in Triton's interpreter or on a card, against `unpack` and `rotate_into`."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blend.place.rotation import Angles, Pairing, Rotation, rotate_into
from blend.place.row_turn import LayerPlaces, RowTurn, framed_rows
from blend.place.unpack import DTYPES, unpack
from service.model.pinned_memory import pinned_memory
from store.codec.decode import read_group
from store.codec.unpacked import Memory, MemoryForm, allocate, unpacked
from store.reader import BlobReader
from store.record import Dtype, LayerKV, PackedLayer, Record
from tests.blend.test_unpack import CPU, layers, plain, stored
from tests.store.test_codec import DATA, LOSSY

triton = pytest.importorskip("triton", reason="triton is not installed")
interpreter = pytest.importorskip("triton.runtime.interpreter")
place_spans = pytest.importorskip("blend.kernels.place_spans")
span_placer = pytest.importorskip("blend.place.span_placer")

IS_INTERPRETED = isinstance(place_spans.place_spans, interpreter.InterpretedFunction)
CARD = torch.device("cuda")
FILLED = 7.0
ROTATIONS = (
    None,
    Rotation("halves", 0, 9),
    Rotation("halves", 3, 5, -1),
    Rotation("neighbours", 0, 9),
    Rotation("neighbours", 4, 6, -1),
)
DIM = 18  # of keys, all of which the first rotations turn

Places = Sequence[tuple[int, int, PackedLayer]]

interpreted = pytest.mark.skipif(  # 3.9's takes no masks of this kernel
    not IS_INTERPRETED,
    reason="TRITON_INTERPRET is not set, or the interpreter is not that of Triton 3.6",
)
on_a_card = pytest.mark.skipif(IS_INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def rounding_as_cards_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cuts bfloat16 off where a card rounds, and what is tiny; one token takes it as long as many."""
    convert, tl = interpreter._convert_float, interpreter.tl

    def converted(numbers: np.ndarray, source: object, to: object, mode: object) -> np.ndarray:
        held = torch.from_numpy(np.ascontiguousarray(numbers))
        if (source, to) == (tl.float32, tl.bfloat16):
            return held.bfloat16().view(torch.uint16).numpy()
        if (source, to) == (tl.bfloat16, tl.float32):
            return held.view(torch.bfloat16).float().numpy()
        return convert(numbers, source, to, mode)

    monkeypatch.setattr(interpreter, "_convert_float", converted)
    if IS_INTERPRETED:
        monkeypatch.setattr(span_placer, "_TOGETHER", 64)


def angles(pairs: int, *, slots: int, device: torch.device = CPU) -> Angles:
    several = torch.rand(slots, pairs, generator=torch.Generator().manual_seed(pairs)) * 6
    return Angles(several.cos().to(device), several.sin().to(device))


def as_if_pinned(nbytes: int) -> Memory:
    return Memory(allocate(nbytes).data, is_pinned=True)


def both_forms(reader: BlobReader) -> list[PackedLayer]:
    """The one layer as a disk has it, and as memory keeps it that a GPU reads itself."""
    kept = unpacked(reader.blob(), MemoryForm(allocate=pinned_memory if torch.cuda.is_available() else as_if_pinned))
    found = read_group(reader, 0)[0], kept.layers[0]
    return [layer for layer in found if isinstance(layer, PackedLayer) and layer.framed]


def check(
    places: Places, rotations: tuple[Rotation | None, Rotation | None], *, dtype: Dtype, device: torch.device
) -> None:
    """What is placed is what torch makes of it, bit for bit, and nothing else is touched."""
    slots = max(stop for _, stop, _ in places) + 3
    turned = [None if each is None else angles(each.pairs, slots=slots, device=device) for each in rotations]
    shapes = [(heads, slots, dim) for heads, _, dim in places[0][2].shapes]
    placed, wanted = ([torch.full(shape, FILLED, dtype=DTYPES[dtype], device=device) for shape in shapes] for _ in "12")
    keys, values = (
        RowTurn() if rotation is None or found is None else RowTurn(rotation, found)
        for rotation, found in zip(rotations, turned, strict=True)
    )
    span_placer.SpanPlacer(DTYPES[dtype], device).place(
        LayerPlaces([(placed[0], placed[1])], framed_rows(places), [(keys, values)])
    )
    for start, stop, layer in places:
        for out, x, turn in zip(wanted, unpack(layer, dtype=DTYPES[dtype], device=device), (keys, values), strict=True):
            there = turn.angles.at(slice(start, stop)) if turn.pairs else turn.angles
            rotate_into(out[:, start:stop], x[:, : stop - start], rotation=turn.rotation, angles=there)
    for got, out in zip(placed, wanted, strict=True):
        assert torch.equal(bits(got), bits(out))


def bits(x: Tensor) -> Tensor:
    """So that -0.0 is not 0.0. What turning lifts beyond float32 is no number of one kind on all devices."""
    return torch.where(x.isnan(), torch.zeros_like(x), x).contiguous().view(torch.uint8)


@interpreted
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("draw", ["normal", "to_the_brim", "zero", "faint", "far_off"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", ["q3", "k3v8@1-q2", "k1.5v4@1-k3v2.3"])
def test_any_numbers_are_placed(spec: str, dtype: Dtype, draw: str) -> None:
    layer = both_forms(stored(plain(draw, (2, 75, DIM), (1, 75, 10), dtype=dtype), spec))[1]
    check([(2, 77, layer)], (ROTATIONS[1], None), dtype=dtype, device=CPU)


@interpreted
@pytest.mark.parametrize("spec", LOSSY)
def test_every_codec_is_placed_with_every_rotation(spec: str) -> None:
    dtypes: list[Dtype] = [*DTYPES]
    for number, rotation in enumerate(ROTATIONS):
        dtype = dtypes[number % 3]
        reader = stored(plain("unequal_channels", (1, 131, DIM), (1, 131, 5), dtype=dtype), spec)
        check([(1, 132, both_forms(reader)[number % 2])], (rotation, None), dtype=dtype, device=CPU)


@interpreted
@settings(max_examples=12, deadline=None)
@given(
    specs=st.lists(st.sampled_from(LOSSY), min_size=1, max_size=3),
    parts=st.lists(st.tuples(st.integers(1, 140), st.integers(1, 140), st.booleans()), min_size=1, max_size=3),
    heads=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    rests=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 40)),
    way=st.tuples(st.sampled_from(["halves", "neighbours"]), st.integers(0, 4), st.sampled_from([1, -1])),
)
def test_records_of_any_codecs_and_shapes_stand_each_in_its_own_slots(
    specs: list[str],
    parts: list[tuple[int, int, bool]],
    heads: tuple[int, int],
    rests: tuple[int, int, int],
    way: tuple[Pairing, int, int],
) -> None:
    pairing, pairs, sign = way
    dim = max(1, rests[0] + 2 * pairs + rests[1])
    places, slot = list[tuple[int, int, PackedLayer]](), 0
    for number, (tokens, kept, is_turned) in enumerate(parts):
        record = plain("normal", (heads[0], tokens, dim), (heads[1], tokens, rests[2]))
        layer = both_forms(stored(record, specs[number % len(specs)]))[is_turned]
        places.append((slot + 1, slot + 1 + min(kept, tokens), layer))
        slot = places[-1][1]
    values = Rotation(pairing, 0, rests[2] // 2) if rests[2] > 30 else None
    keys = Rotation(pairing, rests[0], pairs, sign) if pairs else None
    check(places, (keys, values), dtype="bfloat16", device=CPU)


@interpreted
def test_a_record_of_several_frames_is_placed_up_to_any_token() -> None:
    layer = both_forms(stored(plain("normal", (1, 1_201, 64), (1, 1_201, 512)), "k2.9v4"))[0]
    assert len(layer.framed) > 1
    begin = layer.framed[1].start
    for kept in (begin - 1, begin + 70):
        check([(3, 3 + kept, layer)], (None, None), dtype="bfloat16", device=CPU)


@interpreted
@pytest.mark.parametrize("together", [8, 128])
def test_a_trellis_goes_on_from_where_the_tokens_before_ended(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_placer, "_TOGETHER", together)
    layer = both_forms(stored(plain("normal", (1, 203, 6), (1, 203, 6)), "q2.9"))[1]
    check([(0, 203, layer)], (None, None), dtype="bfloat16", device=CPU)


@interpreted
def test_what_a_step_lifts_beyond_the_dtype_becomes_its_largest_number() -> None:
    numbers = np.where(np.arange(2 * 100 * 8).reshape(2, 100, 8) % 10, 65504, 62000).astype(np.float16)
    layer, _ = layers(stored(Record("float16", (LayerKV(numbers, -numbers),)), "q2"))
    check([(0, 100, layer)], (None, None), dtype="float16", device=CPU)


@interpreted
@pytest.mark.parametrize("is_compiled", [True, False])
def test_frames_come_together_with_numba_and_without(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    if not is_compiled:
        monkeypatch.setattr(span_placer, "gathered", None)
    readers = [stored(plain("normal", (1, tokens, DIM), (1, tokens, 10)), "q4") for tokens in (9, 140, 1)]
    places = [(start, start + 9, both_forms(each)[0]) for start, each in zip((0, 12, 21), readers, strict=True)]
    places[2] = (21, 22, places[2][2])
    check(places, (None, None), dtype="bfloat16", device=CPU)


@interpreted
def test_layers_are_placed_together_each_by_its_own_turns() -> None:
    """Some of the parts are in memory that the device reads itself, some are not, and some bring no tokens."""
    readers = [stored(plain("normal", (2, tokens, DIM), (1, tokens, 10)), "q4") for tokens in (70, 131)]
    records = [both_forms(each) for each in readers]
    alone, every = list[LayerPlaces](), list[Places]()
    for rotation, (first, second) in zip(ROTATIONS, product((0, 1), repeat=2), strict=False):
        out = tuple(torch.full((heads, 220, dim), FILLED, dtype=torch.bfloat16) for heads, dim in ((2, DIM), (1, 10)))
        turn = RowTurn() if rotation is None else RowTurn(rotation, angles(rotation.pairs, slots=220))
        places = [(1, 60, records[0][first]), (60, 60, records[0][0]), (61, 192, records[1][second])]
        alone.append(LayerPlaces([(out[0], out[1])], framed_rows(places), [(turn, RowTurn())]))
        every.append(places)
    joined = alone[0].stored._replace(rows=np.concatenate([each.stored.rows for each in alone]))
    together = [(keys.clone(), values.clone()) for each in alone for keys, values in each.out]
    placer = span_placer.SpanPlacer(torch.bfloat16, CPU)
    placer.place(LayerPlaces(together, joined, [turns for each in alone for turns in each.turns]))
    for one, out, places in zip(alone, together, every, strict=True):
        check(places, (one.turns[0][0].rotation, None), dtype="bfloat16", device=CPU)
        placer.place(one)
        assert all(torch.equal(bits(got), bits(wanted)) for got, wanted in zip(out, one.out[0], strict=True))


@interpreted
def test_a_context_of_any_strides_is_filled() -> None:
    layer = both_forms(stored(plain("normal", (2, 70, 8), (2, 70, 8)), "q4"))[1]
    keys, values = (torch.full((80, 2, 8), FILLED, dtype=torch.bfloat16).transpose(0, 1) for _ in "12")
    span_placer.SpanPlacer(torch.bfloat16, CPU).place(
        LayerPlaces([(keys, values)], framed_rows([(4, 74, layer)]), [(RowTurn(), RowTurn())])
    )
    for got, wanted in zip((keys, values), unpack(layer, dtype=torch.bfloat16, device=CPU), strict=True):
        assert torch.equal(bits(got[:, 4:74]), bits(wanted))
        assert bool((got[:, :4] == FILLED).all()) and bool((got[:, 74:] == FILLED).all())


@on_a_card
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", LOSSY)
def test_a_card_places_what_torch_makes_of_it(spec: str, dtype: Dtype) -> None:
    for draw in DATA:
        reader = stored(plain(draw, (2, 131, DIM), (1, 131, 10), dtype=dtype), spec)
        for layer, rotation in product(both_forms(reader), ROTATIONS):
            check([(5, 96, layer), (100, 231, layer)], (rotation, None), dtype=dtype, device=CARD)


@on_a_card
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("spec", ["q4", "q2.9"])
def test_a_card_places_a_long_prompt(spec: str, dtype: Dtype) -> None:
    reader = stored(plain("normal", (8, 256, 128), (8, 256, 128), dtype=dtype), spec)
    for layer in both_forms(reader):
        places = [(256 * chunk, 256 * chunk + 256, layer) for chunk in range(32)]
        check(places, (Rotation("halves", 0, 64), None), dtype=dtype, device=CARD)
