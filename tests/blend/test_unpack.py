"""Unpacking in torch against the store's own decoding, bit for bit."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blend.place.unpack import DTYPES, unpack, unpack_into, unpack_joined
from store.blob import Terms
from store.codec.decode import decode, read_group
from store.codec.encode import encode
from store.reader import BlobReader, read
from store.record import Array, Dtype, LayerKV, PackedLayer, Record
from tests.store import samples
from tests.store.test_codec import DATA, LOSSY, tensor

CPU = torch.device("cpu")

Shape = tuple[int, int, int]


def plain(draw: str, keys: Shape, values: Shape, *, dtype: Dtype = "bfloat16") -> Record:
    return Record(dtype, (LayerKV(tensor(DATA[draw], keys, dtype, 1), tensor(DATA[draw], values, dtype, 2)),))


def stored(record: Record, spec: str) -> BlobReader:
    return read(encode(record, samples.key(codec=spec), terms=Terms(0, precomputed=True)))


def layers(reader: BlobReader) -> tuple[PackedLayer, LayerKV]:
    """The one layer, packed and as the store decodes it."""
    packed, decoded = read_group(reader, 0)[0], decode(reader).layers[0]
    assert isinstance(packed, PackedLayer) and decoded is not None
    return packed, decoded


def same(got: Tensor, wanted: Array) -> bool:
    """Bit for bit, so that -0.0 is not 0.0."""
    numbers = got.cpu().contiguous()
    return got.shape == wanted.shape and numbers.view(torch.uint8).numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("draw", DATA)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", LOSSY)
def test_it_equals_the_store_for_any_numbers(spec: str, dtype: Dtype, draw: str) -> None:
    packed, decoded = layers(stored(plain(draw, (3, 131, 16), (2, 131, 10), dtype=dtype), spec))
    assert len(packed.tiles) > 1
    keys, values = unpack(packed, dtype=DTYPES[dtype], device=CPU)
    assert keys.dtype == values.dtype == DTYPES[dtype]
    assert same(keys, decoded.keys) and same(values, decoded.values)


@pytest.mark.parametrize("spec", LOSSY)
def test_what_a_step_lifts_beyond_the_dtype_becomes_its_largest_number(spec: str) -> None:
    numbers = np.where(np.arange(2 * 100 * 8).reshape(2, 100, 8) % 10, 65504, 62000).astype(np.float16)
    record = Record("float16", (LayerKV(numbers, -numbers),))
    packed, decoded = layers(stored(record, spec))
    keys, values = unpack(packed, dtype=torch.float16, device=CPU)
    assert same(keys, decoded.keys) and same(values, decoded.values)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_equals_the_store_on_a_gpu_too() -> None:
    for spec, dtype, draw in product(LOSSY, DTYPES, DATA):
        packed, decoded = layers(stored(plain(draw, (3, 131, 16), (2, 131, 10), dtype=dtype), spec))
        keys, values = unpack(packed, dtype=DTYPES[dtype], device=torch.device("cuda"))
        assert same(keys, decoded.keys) and same(values, decoded.values), (spec, dtype, draw)


@settings(max_examples=60, deadline=None)
@given(
    spec=st.sampled_from(LOSSY),
    tokens=st.integers(1, 20) | st.integers(120, 300),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dims=st.tuples(st.integers(1, 17), st.integers(1, 17)),
)
def test_it_equals_the_store_for_any_shape(
    spec: str, tokens: int, heads: tuple[int, int], dims: tuple[int, int]
) -> None:
    record = plain("normal", (heads[0], tokens, dims[0]), (heads[1], tokens, dims[1]))
    packed, decoded = layers(stored(record, spec))
    keys, values = unpack(packed, dtype=torch.bfloat16, device=CPU)
    assert same(keys, decoded.keys) and same(values, decoded.values)


@settings(max_examples=80, deadline=None)
@given(
    specs=st.lists(st.sampled_from([*LOSSY, "lossless"]), min_size=1, max_size=2),
    lengths=st.lists(st.integers(1, 9) | st.integers(1, 150), min_size=2, max_size=6),
    draw=st.sampled_from([*DATA]),
    dtype=st.sampled_from([*DTYPES]),
)
def test_records_that_are_unpacked_as_one_are_what_each_is_alone(
    specs: list[str], lengths: list[int], draw: str, dtype: Dtype
) -> None:
    records = [plain(draw, (2, tokens, 6), (3, tokens, 5), dtype=dtype) for tokens in lengths]
    found = [read_group(stored(each, specs[number % len(specs)]), 0)[0] for number, each in enumerate(records)]
    stored_layers = [each for each in found if each is not None]
    alone = [unpack(each, dtype=DTYPES[dtype], device=CPU) for each in stored_layers]
    keys, values = unpack_joined(stored_layers, dtype=DTYPES[dtype], device=CPU)
    for joined, parts in zip((keys, values), zip(*alone, strict=True), strict=True):
        assert joined.dtype == DTYPES[dtype]
        assert torch.equal(joined.contiguous().view(torch.uint8), torch.cat(parts, dim=1).view(torch.uint8))


@pytest.mark.parametrize("spec", ["q4", "q8"])
def test_a_layer_of_several_frames_and_of_more_than_is_decoded_together(spec: str) -> None:
    reader = stored(plain("normal", (8, 1250, 128), (8, 1250, 128)), spec)
    assert len(reader.head.frames) > 2
    packed, decoded = layers(reader)
    keys, values = unpack(packed, dtype=torch.bfloat16, device=CPU)
    assert same(keys, decoded.keys) and same(values, decoded.values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plain_layer_is_viewed_where_it_lies(dtype: Dtype) -> None:
    reader = stored(plain("normal", (3, 40, 16), (2, 40, 10), dtype=dtype), "lossless")
    layer = decode(reader).layers[0]
    assert layer is not None
    for array in (layer.keys, layer.values):
        array.flags.writeable = False
    keys, values = unpack(layer, dtype=DTYPES[dtype], device=CPU)
    assert keys.dtype == values.dtype == DTYPES[dtype]
    assert same(keys, layer.keys) and same(values, layer.values)
    assert keys.data_ptr() == layer.keys.ctypes.data and values.data_ptr() == layer.values.ctypes.data


@pytest.mark.parametrize("spec", ["lossless", "q2", "q4", "q6", "k2.3v2"])
def test_a_slice_of_a_buffer_is_filled_and_nothing_beside_it(spec: str) -> None:
    reader = stored(plain("normal", (3, 131, 16), (2, 131, 10)), spec)
    decoded = decode(reader).layers[0]
    layer = read_group(reader, 0)[0]
    assert decoded is not None and layer is not None
    keys = torch.full((3, 200, 16), 7, dtype=torch.bfloat16)
    values = torch.full((200, 10, 2), 7, dtype=torch.bfloat16).permute(2, 0, 1)  # heads innermost
    unpack_into(layer, keys=keys[:, 30:161], values=values[:, 30:161])
    for buffer, wanted in ((keys, decoded.keys), (values, decoded.values)):
        assert same(buffer[:, 30:161], wanted)
        assert bool((buffer[:, :30] == 7).all()) and bool((buffer[:, 161:] == 7).all())


@pytest.mark.parametrize("spec", ["lossless", "q4"])
@pytest.mark.parametrize("tokens", [39, 41])
def test_a_buffer_of_another_length_is_refused(spec: str, tokens: int) -> None:
    reader = stored(plain("normal", (2, 40, 16), (2, 40, 16)), spec)
    layer = read_group(reader, 0)[0]
    assert layer is not None
    keys, values = (torch.zeros(2, tokens, 16, dtype=torch.bfloat16) for _ in range(2))
    with pytest.raises(AssertionError, match="40"):
        unpack_into(layer, keys=keys, values=values)


def test_a_record_of_another_dtype_is_refused() -> None:
    layer = LayerKV(np.zeros((1, 2, 4), np.float32), np.zeros((1, 2, 4), np.float32))
    with pytest.raises(AssertionError, match=r"float32.*bfloat16"):
        unpack(layer, dtype=torch.bfloat16, device=CPU)
