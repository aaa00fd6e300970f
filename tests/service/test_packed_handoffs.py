"""Prompts that travel as codes: they come out as the numbers that travel otherwise, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from random import Random
from typing import ClassVar

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blend.fuse.record_loader import PlacedCodes
from blend.fuse.unpack import DTYPES, unpack
from blend.model.context import Context, LayerShape, Segment, places, span
from blend.model.rotation import Rotation
from service.handoffs.packed_layer import PlainRows, angles_body, packed_layer
from store.blob import StoredShape
from store.codec.frame import LayerForm, frame_layout, framed_layer, framed_part, write_layers
from store.codec.spec import KVBits
from store.record import Dtype, LayerKV, PackedLayer, narrow
from tests.service.played_decoder import PlayedDecoder
from tests.service.serving import Inside, good, in_process, put_in, settings_in
from vllm_kvweave import source
from vllm_kvweave.packed_layer import VERSION, RowsForm, unpacked
from vllm_kvweave.paged_cache import PagedLayer, WorkerPlace
from vllm_kvweave.pulled_parts import SLOW, PulledParts
from vllm_kvweave.source import Part, Pull, Source

NAMES = ("Halio", "Belio", "Corina", "Dorano", "Elmar", "Fenja")
LETTERS = [
    {"id": f"letter-{n}", "text": " ".join(f"{name} lives in K{n}{k}. {name} keeps a badger." for k in range(n + 2))}
    for n, name in enumerate(NAMES)
]
HEADS, DIM = 2, 8
Rows = dict[int, tuple[Tensor, Tensor]]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def inside(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("service"), dtype=request.param)) as inside:
        with inside.client() as client:
            put_in(client, LETTERS)
        yield inside


@pytest.fixture
def client(inside: Inside) -> Iterator[httpx.Client]:
    with inside.client() as client:
        yield client


def fuse(client: httpx.Client, policy: str) -> str:
    asked = {"question": "Which animal does Halio keep?", "top_k": 6, "blend": {"policy": policy}}
    return good(client.post("/v1/fuse", json=asked))["handle"]


class Counted(Pull):
    """A pull that counts what comes, spoils what it is told to, and finds the way as fast as it is told."""

    nbytes = 0
    packed = 0
    spoil = ""
    rate = property(lambda self: Counted.pace, lambda self, rate: Counted.rated.append(rate))  # type: ignore[assignment]
    pace = 0.0
    rated: ClassVar[list[float]] = []

    def layer(self, *args: object, **more: object) -> object:
        found = super().layer(*args, **more)  # type: ignore[arg-type]
        Counted.nbytes += len(found.body)
        Counted.packed += found.is_packed
        if found.is_packed and Counted.spoil == "sum":
            found.body[-1] ^= 1
        if found.is_packed and Counted.spoil == "head":
            found.body[5] ^= 1
        if found.is_packed and Counted.spoil == "end":
            del found.body[-1:]
        return found


def fetched(inside: Inside, handle: str, *, packed: int, part: Part | None = None) -> Rows:
    """All layers as a worker of vLLM gets them."""
    service = Source(inside.base_url, inside.key)
    Counted.nbytes = Counted.packed = 0
    with service.pull(handle, timeout_s=60) as pull:
        pull.__class__ = Counted
        form = pull.form()
        assert form.packed == VERSION
        part = part or Part(0, form.tokens - 1, 0, 1)
        place = WorkerPlace(part.rank, part.ranks, form.dtype, (16,), torch.device("cpu"), nullcontext)
        parts = PulledParts(pull, part, place=place, packed=packed)
        found: Rows = {}
        for each in form.layers:
            heads = max(1, each.key_heads // part.ranks)
            layer = PagedLayer(each.index, 0, heads, each.key_dim, each.value_dim, lambda rows: None)
            found[each.index] = parts.fetch(layer, each)()
        return found


def assert_equal(one: Rows, other: Rows) -> None:
    assert one.keys() == other.keys()
    for layer, pair in one.items():
        for mine, theirs in zip(pair, other[layer], strict=True):
            assert torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


@pytest.mark.parametrize("policy", ["full", "reuse", "hybrid"])
def test_codes_come_out_as_the_numbers_do_and_take_less(inside: Inside, client: httpx.Client, policy: str) -> None:
    handle = fuse(client, policy)
    plain = fetched(inside, handle, packed=0)
    as_numbers = Counted.nbytes
    assert_equal(fetched(inside, handle, packed=VERSION), plain)
    if policy == "full":
        assert (Counted.packed, Counted.nbytes) == (0, as_numbers)
    else:
        assert Counted.packed > 0 and Counted.nbytes < as_numbers


def test_codes_come_only_where_the_way_was_slow(
    inside: Inside, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = fuse(client, "reuse")
    monkeypatch.setattr(source, "LEAST_RATED", 1)
    monkeypatch.setattr(Counted, "pace", SLOW)
    Counted.rated.clear()
    layers = fetched(inside, handle, packed=VERSION)
    assert Counted.packed == 0 and len(Counted.rated) >= len(layers) and min(Counted.rated) > 0
    monkeypatch.setattr(Counted, "pace", SLOW - 1)
    Counted.rated.clear()
    fetched(inside, handle, packed=VERSION)
    assert Counted.packed == len(layers)
    assert len(Counted.rated) < len(layers)  # codes, which are waited for, say nothing of the way


@pytest.mark.parametrize("tokens", [(0, 1), (63, 64), (100, 180), (129, 300)])
@pytest.mark.parametrize("place", [(0, 1), (1, 2), (5, 8)])
def test_so_do_parts_of_them(
    inside: Inside, client: httpx.Client, tokens: tuple[int, int], place: tuple[int, int]
) -> None:
    handle = fuse(client, "hybrid")
    part = Part(*tokens, *place)
    assert_equal(fetched(inside, handle, packed=VERSION, part=part), fetched(inside, handle, packed=0, part=part))


@pytest.mark.parametrize("spoil", ["sum", "head", "end"])
def test_codes_that_give_other_numbers_here_are_not_used(inside: Inside, client: httpx.Client, spoil: str) -> None:
    handle = fuse(client, "reuse")
    plain = fetched(inside, handle, packed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Counted, "spoil", spoil)
        assert_equal(fetched(inside, handle, packed=VERSION), plain)
        assert Counted.packed > 0


ROTATIONS = [
    (None, None),
    (Rotation("halves", 0, 4), None),
    (Rotation("neighbours", 4, 2), Rotation("halves", 0, 2, -1)),  # a part of each head, and values too
]


@dataclass(frozen=True)
class Case:
    """How a layer's rows turn, what they are, and how their records are packed."""

    turns: tuple[Rotation | None, Rotation | None]
    dtype: Dtype
    bits: tuple[int, int]
    sizes: list[int]
    value_dim: int

    @property
    def tokens(self) -> int:
        return sum(self.sizes) + 9

    def context(self, draw: Random) -> tuple[PlayedDecoder, Context, list[PlacedCodes]]:
        """A prompt of these records with other rows around them, and some that were computed anew."""
        shape = LayerShape(HEADS, DIM, HEADS, self.value_dim)
        keys, values = self.turns
        decoder = PlayedDecoder([shape], keys, tokens=self.tokens, values=values, dtype=DTYPES[self.dtype])
        context = Context([shape], capacity=self.tokens, dtype=decoder.dtype, device=decoder.device)
        for rows in (context.keys(0), context.values(0)):
            rows.copy_(torch.randn(rows.shape) * 10.0 ** draw.randint(-3, 3))
        placed = list[PlacedCodes]()
        for number, size in enumerate(self.sizes):
            start = 3 + sum(self.sizes[:number])
            stored = packed_record(shape, size, dtype=self.dtype, bits=self.bits, seed=draw.randint(0, 9))
            free = unpack(stored, dtype=decoder.dtype, device=decoder.device)
            both = decoder.turned(0, start=start, keys=free[0], values=free[1])
            [place] = places([Segment(context, span(start, start + size, device=decoder.device), 0)])
            place.write(0, both[0], values=both[1])
            placed.append(PlacedCodes(0, start, start + size, stored))
        for _ in range(draw.randint(0, 20)):
            context.keys(0)[:, draw.randrange(self.tokens)] = 1.5
        return decoder, context, placed


CASES = st.builds(
    Case,
    st.sampled_from(
        [
            (None, None),
            (Rotation("halves", 0, 4), None),
            (Rotation("neighbours", 4, 2), None),  # a part of each head
            (Rotation("neighbours", 3, 2, -1), Rotation("halves", 0, 2, -1)),
        ]
    ),
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.tuples(st.integers(2, 8), st.integers(2, 8)),
    st.lists(st.integers(1, 300), min_size=1, max_size=3),
    st.sampled_from([8, 5]),
)


@settings(deadline=None, max_examples=60)
@given(CASES, st.randoms(use_true_random=False))
def test_whatever_turns_however_it_is_packed_comes_out_alike(case: Case, draw: Random) -> None:
    decoder, context, placed = case.context(draw)
    start = draw.randrange(case.tokens)
    stop, first = draw.randint(start + 1, case.tokens), draw.randrange(HEADS)
    mine = slice(first, HEADS if draw.random() < 0.5 else first + 1)
    keys, values = (each[mine, start:stop].transpose(0, 1).contiguous() for each in context.seen(0, case.tokens))
    body = packed_layer(placed, decoder, layer=0, rows=PlainRows(start, keys, values, mine, mine))
    if body is None:
        return
    numbers = torch.tensor(np.frombuffer(angles_body(decoder, 0, start=start, stop=stop), np.float32))
    angles = numbers.reshape(2, stop - start, -1 if len(numbers) else 0)
    form = RowsForm(start, stop, keys.shape[1], DIM, case.value_dim)

    def found(body: bytes) -> tuple[Tensor, Tensor]:
        there = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        return unpacked(there, form, dtype=decoder.dtype, angles=lambda table: angles)

    assert_equal({0: found(body)}, {0: (keys, values)})
    for wrong in (body[:-1], body + b"0"):
        with pytest.raises(ValueError, match=r"shorter than|other numbers"):
            found(wrong)


def packed_record(shape: LayerShape, tokens: int, *, dtype: Dtype, bits: tuple[int, int], seed: int) -> PackedLayer:
    random, form = np.random.default_rng(seed), StoredShape(*asdict(shape).values())
    sizes = (shape.key_heads, tokens, shape.key_dim), (shape.value_heads, tokens, shape.value_dim)
    keys, values = (narrow(random.standard_normal(size, np.float32) + 3, dtype) for size in sizes)
    laid = LayerForm(KVBits(*bits), form, dtype)
    raw = np.frombuffer(b"".join(write_layers([LayerKV(keys, values)], laid)), np.uint8)
    return framed_layer([framed_part(raw, frame_layout(laid, tokens), start=0)], form)
