"""Records through blobs and back: exact, or within the bound that the spec states, whatever the numbers and shapes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.blob import Blob, StoredShape, Terms
from store.codec.decode import decode, read_rows
from store.codec.encode import FRAME_BYTES, encode
from store.codec.frame import written_form
from store.codec.spec import Spec
from store.errors import RecordError
from store.reader import read
from store.record import Dtype, LayerKV, Record, narrow, widen
from store.rows import NBYTES, TOKENS, StoredRows, data_of
from tests.store import samples
from tests.store.bounds import excess, key_bound, rounding, value_bound
from tests.store.formula import formula, parts_of, spans_of

LOSSY = ("q2", "q3", "q4", "q5", "q6", "q7", "q8", "k4v2", "k3v8@1-q2", "q2.9", "k1.5v4@1-k3v2.3")
SPECS = ("lossless", *LOSSY)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
TERMS = Terms(0, precomputed=True)
STEP_SPAN = 128  # a key's step is shared by fewer tokens than this

Draw = Callable[[np.random.Generator, tuple[int, int, int]], np.ndarray]


def cauchy(random: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    return random.standard_cauchy(shape) * 1e3


def to_the_brim(random: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """Infinities: they become the largest number of the dtype."""
    return random.choice([-np.inf, -1.0, 0.0, 1.0, np.inf], shape)


def unequal_channels(random: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    heads, _, dim = shape
    return random.standard_normal(shape) * np.exp2(random.integers(-30, 14, (heads, 1, dim)))


def faint(random: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    return random.standard_normal(shape) * 1e-38


def far_off(random: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """Channels that lie up to a thousand spreads from zero, as a bias puts them."""
    heads, _, dim = shape
    return random.standard_normal(shape) + random.choice([0, 10, -50, 1000], (heads, 1, dim))


def outliers(random: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """A few tokens and a few channels a hundred times as loud as the others."""
    heads, tokens, dim = shape
    loud = np.where(random.random((heads, tokens, 1)) < 0.05, 100, 1) * np.where(
        random.random((1, 1, dim)) < 0.1, 100, 1
    )
    return random.standard_normal(shape) * loud


DATA: dict[str, Draw] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "cauchy": cauchy,
    "to_the_brim": to_the_brim,
    "constant": lambda random, shape: np.full(shape, 3.14159),
    "zero": lambda random, shape: np.zeros(shape),
    "unequal_channels": unequal_channels,
    "faint": faint,
    "far_off": far_off,
    "outliers": outliers,
}


def tensor(draw: Draw, shape: tuple[int, int, int], dtype: Dtype, seed: int = 0) -> np.ndarray:
    with np.errstate(over="ignore"):
        wide = draw(np.random.default_rng(seed), shape).astype(np.float32)
    return narrow(wide, dtype)


def pack(plain: Record, spec: str) -> Blob:
    return encode(plain, samples.key(codec=spec), terms=TERMS)


def same(one: Record, other: Record) -> bool:
    """Bit for bit, so that -0.0 is not 0.0."""
    if one.dtype != other.dtype or len(one.layers) != len(other.layers):
        return False
    return all(alike(a, b) for a, b in zip(one.layers, other.layers, strict=True))


def alike(one: LayerKV | None, other: LayerKV | None) -> bool:
    if one is None or other is None:
        return one is other
    pairs = ((one.keys, other.keys), (one.values, other.values))
    return all(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def keeps_bound(spec: str, plain: Record, read_back: Record) -> bool:
    """For spans of at most `STEP_SPAN` tokens, in which the steps of a record this short lie."""
    assert plain.tokens < STEP_SPAN
    return all(
        alike(a, b)
        if a is None or b is None or bits is None
        else excess(a.keys, b.keys, plain.dtype, partial(key_bound, bits.keys)) <= 0
        and excess(a.values, b.values, plain.dtype, partial(value_bound, bits.values)) <= 0
        for a, b, bits in zip(plain.layers, read_back.layers, map(Spec.parse(spec).bits, count()), strict=False)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_lossless_returns_every_finite_number_bit_for_bit(dtype: Dtype) -> None:
    bits = np.arange(1 << 16, dtype=np.uint32)
    if dtype == "float32":
        numbers = np.concatenate([bits, bits << 16, (bits << 16) | 0xFFFF]).astype(np.uint32).view(np.float32)
        numbers = numbers[np.isfinite(numbers)]
    elif dtype == "float16":
        numbers = bits.astype(np.uint16).view(np.float16)
        numbers = numbers[np.isfinite(numbers)]
    else:
        numbers = bits[(bits & 0x7F80) != 0x7F80].astype(np.uint16)
    array = numbers[: numbers.size // 128 * 128].reshape(2, -1, 64)
    plain = Record(dtype, (LayerKV(array, array[::-1]),))
    assert same(decode(read(pack(plain, "lossless"))), plain)


@pytest.mark.parametrize("spec", LOSSY)
def test_the_bound_is_not_wide(spec: str) -> None:
    plain = Record("float32", (LayerKV(*[tensor(DATA["normal"], (2, 64, 64), "float32")] * 2),))
    layer, back = plain.layers[0], decode(read(pack(plain, spec))).layers[0]
    assert layer is not None and back is not None
    bits = Spec.parse(spec).bits(0)
    assert bits is not None
    assert np.abs(layer.keys - back.keys).max() > key_bound(bits.keys, layer.keys).max() / 2
    assert np.abs(layer.values - back.values).max() > value_bound(bits.values, layer.values).max() / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_channel_far_from_zero_keeps_what_it_tells_for_few_more_bits(dtype: Dtype) -> None:
    bits: dict[int, float] = {}
    for offset in (0, 10, 50, 1000):
        away = np.float32(offset) * np.random.default_rng(1).choice([-1, 1], (8, 1, 128)).astype(np.float32)
        keys = narrow((np.random.default_rng(0).standard_normal((8, 256, 128)) + away).astype(np.float32), dtype)
        plain = Record(dtype, (LayerKV(keys, tensor(DATA["normal"], (8, 256, 128), dtype, 2)),))
        blob = pack(plain, "q4")
        back = decode(read(blob)).layers[0]
        assert back is not None
        wide = widen(keys, dtype)
        held = rounding(wide, dtype).max() if dtype == "bfloat16" else 0.0
        assert np.sqrt(np.square(widen(back.keys, dtype) - wide).mean(axis=1)).max() <= 0.12 + held
        bits[offset] = 8 * blob.nbytes / (2 * keys.size)
    assert max(bits.values()) <= bits[0] + 0.15


@pytest.mark.parametrize("spec", LOSSY)
def test_zeros_stay_zeros_beside_loud_channels(spec: str) -> None:
    keys = tensor(cauchy, (2, 70, 8), "bfloat16")
    keys[:, :, 3] = 0
    back = decode(read(pack(Record("bfloat16", (LayerKV(keys, keys),)), spec))).layers[0]
    assert back is not None and not back.keys[:, :, 3].any()


def layers(dtype: Dtype, tokens: int) -> st.SearchStrategy[LayerKV | None]:
    side = st.tuples(st.integers(1, 4), st.just(tokens), st.integers(1, 80))
    data = st.sampled_from(sorted(DATA))
    return st.none() | st.builds(
        lambda keys, values, name, seed: LayerKV(
            tensor(DATA[name], keys, dtype, seed), tensor(DATA[name], values, dtype, seed + 1)
        ),
        side, side, data, st.integers(0, 1000),
    )  # fmt: skip


@st.composite
def records(draw: st.DrawFn, tokens: st.SearchStrategy[int]) -> Record:
    """Any shapes; at least one layer has a cache."""
    dtype, count = draw(st.sampled_from(DTYPES)), draw(tokens)
    found = draw(st.lists(layers(dtype, count), max_size=4))
    if not any(found):
        array = tensor(DATA["normal"], (1, count, 5), dtype)
        found.append(LayerKV(array, array))
    return Record(dtype, tuple(found))


@settings(max_examples=200, deadline=None)
@given(records(st.integers(1, 127)), st.sampled_from(LOSSY))
def test_a_record_of_any_shape_keeps_the_bound(plain: Record, spec: str) -> None:
    assert keeps_bound(spec, plain, decode(read(pack(plain, spec))))


@settings(max_examples=60, deadline=None)
@given(records(st.integers(1, 300)))
def test_a_record_of_any_shape_is_exact_when_lossless(plain: Record) -> None:
    assert same(decode(read(pack(plain, "lossless"))), plain)


@settings(max_examples=60, deadline=None)
@given(records(st.integers(128, 300)), st.sampled_from(LOSSY))
def test_a_longer_record_keeps_the_bound_span_by_span(plain: Record, spec: str) -> None:
    blob = pack(plain, spec)
    spans = [span for row in parts_of(samples.rows_of(read(blob))) for span in spans_of(row)]
    back = decode(read(blob))
    for start, tokens in set(spans):
        assert tokens < STEP_SPAN
        assert keeps_bound(spec, cut(plain, start, tokens), cut(back, start, tokens))


def cut(whole: Record, start: int, tokens: int) -> Record:
    rows = slice(start, start + tokens)
    return Record(
        whole.dtype,
        tuple(layer and LayerKV(layer.keys[:, rows], layer.values[:, rows]) for layer in whole.layers),
    )


@pytest.mark.parametrize("spec", SPECS)
def test_latent_attention_keeps_the_bound(spec: str) -> None:
    draw = DATA["unequal_channels"]
    latent = LayerKV(tensor(draw, (1, 100, 512), "bfloat16"), tensor(draw, (1, 100, 64), "bfloat16"))
    plain = Record("bfloat16", (latent, latent))
    assert keeps_bound(spec, plain, decode(read(pack(plain, spec))))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("pattern", ["-x", "x-", "--x--", "x-x", "X-", "-X", "X-X-", "-X-x", "XX--"])
def test_a_layer_without_a_cache_stays_where_it_was(pattern: str, spec: str) -> None:
    """A capital is a layer that is too large for one frame."""
    small, large = (tensor(DATA["normal"], (heads, 640, 64), "bfloat16") for heads in (1, 16))
    given = {"-": None, "x": LayerKV(small, small), "X": LayerKV(large, large)}
    back = decode(read(pack(Record("bfloat16", tuple(given[letter] for letter in pattern)), spec)))
    shapes = [layer and layer.keys.shape for layer in back.layers]
    assert shapes == [layer and layer.keys.shape for layer in (given[letter] for letter in pattern)]


@pytest.mark.parametrize("spec", ["lossless", "q4"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_by_layer(bad: float, dtype: Dtype, spec: str) -> None:
    for layer in range(3):
        for side, name in enumerate(("keys", "values")):
            for place in (0, 7, -1):
                arrays = [[tensor(DATA["normal"], (2, 5, 4), dtype) for _ in range(2)] for _ in range(3)]
                spoilt = np.float32(bad).view(np.uint32) >> 16 if dtype == "bfloat16" else bad
                arrays[layer][side].reshape(-1)[place] = spoilt
                with pytest.raises(RecordError, match=f"layer {layer} {name}"):
                    pack(Record(dtype, tuple(LayerKV(*pair) for pair in arrays)), spec)


@pytest.mark.parametrize(
    ("dtype", "keys", "values"),
    [
        ("float32", np.zeros((1, 2, 3), np.float64), np.zeros((1, 2, 3), np.float32)),
        ("bfloat16", np.zeros((1, 2, 3), np.uint16), np.zeros((1, 2, 3), np.float16)),
        ("float16", np.zeros((1, 2, 3), np.uint16), np.zeros((1, 2, 3), np.float16)),
        ("float32", np.zeros((2, 3), np.float32), np.zeros((1, 2, 3), np.float32)),
        ("float32", np.zeros((1, 1, 2, 3), np.float32), np.zeros((1, 2, 3), np.float32)),
        ("float32", np.zeros((1, 2, 3), np.float32), np.zeros((1, 4, 3), np.float32)),
        ("float32", np.zeros((1, 0, 3), np.float32), np.zeros((1, 0, 3), np.float32)),
        ("float32", np.zeros((0, 2, 3), np.float32), np.zeros((1, 2, 3), np.float32)),
        ("float64", np.zeros((1, 2, 3), np.float64), np.zeros((1, 2, 3), np.float64)),
    ],
)
def test_another_shape_or_dtype_is_refused(dtype: Dtype, keys: np.ndarray, values: np.ndarray) -> None:
    with pytest.raises(RecordError, match=r"layer 0|dtype must be"):
        Record(dtype, (LayerKV(keys, values),))


def test_a_record_without_a_layer_is_refused() -> None:
    with pytest.raises(RecordError, match="at least one layer"):
        Record("float32", (None, None))


def told(stored: StoredRows) -> list[tuple[bytes, list[int]]]:
    """What parts say, to be compared."""
    return [(data_of(row).tobytes(), row[NBYTES:].tolist()) for row in parts_of(stored)]


@pytest.mark.parametrize("spec", SPECS)
def test_a_group_decodes_alone_to_its_part_of_the_whole(spec: str) -> None:
    blob = pack(samples.record(layers=9, tokens=333, heads=4, dim=64), spec)
    groups = range(len(blob.head.groups))
    assert len(groups) > 1
    whole, reader = read_rows([read(blob)], range(9)), read(blob)
    for layers in reversed(reader.groups):
        alone = whole._replace(rows=whole.rows[layers.start : layers.stop])
        assert told(read_rows([reader], layers)) == told(alone)
    assert sum(map(len, reader.groups)) == 9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", LOSSY)
def test_codes_and_scales_stand_for_the_plain_numbers_bit_for_bit(spec: str, dtype: Dtype) -> None:
    blob = pack(samples.record(layers=4, tokens=301, heads=3, dim=21, dtype=dtype), spec)
    stored = samples.rows_of(read(blob))
    for rows, numbers in zip(stored.rows, decode(read(blob)).layers, strict=True):
        parts = rows[rows[:, TOKENS] > 0]
        assert (len(parts) == 0) == (numbers is None)
        if numbers is not None:
            found = [formula(row, (3, 21, 3, 21), stored.sizes) for row in parts]
            keys, values = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
            assert alike(LayerKV(narrow(keys, dtype), narrow(values, dtype)), numbers)
            starts, lengths = zip(*[span for row in parts for span in spans_of(row)], strict=True)
            assert [*starts] == tiled([*lengths])


def tiled(lengths: list[int]) -> list[int]:
    return [sum(lengths[:count]) for count in range(len(lengths))]


def test_every_scale_is_exact_in_bfloat16() -> None:
    sizes = samples.rows_of(read(samples.blob())).sizes
    assert len(sizes) > 4000 and not (sizes.view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_record_always_makes_the_same_bytes(spec: str) -> None:
    plain = samples.record(layers=5, tokens=200)
    alone = bytes(pack(plain, spec))
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: bytes(pack(plain, spec)), range(16))) == {alone}
        blobs = list(pool.map(lambda seed: bytes(pack(samples.record(seed), spec)), range(32)))
    assert blobs == [bytes(pack(samples.record(seed), spec)) for seed in range(32)]


def eight_billion(tokens: int, layers: int = 2) -> Record:
    """The shape of an 8B model's layers, each channel with a scale of its own."""
    return samples.record(layers=layers, tokens=tokens, heads=8, dim=128)


@pytest.mark.parametrize("spec", LOSSY)
def test_a_frame_of_a_chunk_takes_about_what_was_planned(spec: str) -> None:
    blob = pack(eight_billion(256), spec)
    assert max(frame.nbytes for frame in blob.head.frames) <= 1.05 * FRAME_BYTES


@pytest.mark.parametrize("spec", SPECS)
def test_no_frame_of_a_long_chunk_is_over_one_mebibyte(spec: str) -> None:
    blob = pack(eight_billion(5000, layers=1), spec)
    assert max(frame.nbytes for frame in blob.head.frames) <= 1 << 20
    assert sum(layer.keys.shape[1] for layer in decode(read(blob)).layers if layer) == 5000


@pytest.mark.parametrize("spec", SPECS)
def test_a_short_chunk_costs_at_most_five_percent_more_per_token(spec: str) -> None:
    short, long = (pack(eight_billion(tokens), spec).nbytes / tokens for tokens in (64, 512))
    assert short <= 1.05 * long


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
    assert pack(plain, spec).head.body_bytes <= 1.045 * sum(map(entropy_bytes, pieces))
