"""Fuses beside each other, reading beside computing, and every attention kernel."""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Barrier, Event
from typing import NamedTuple, Self

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # pyright: ignore[reportUnknownVariableType]

from blend.adopt import load
from blend.adopt.load import adopt
from blend.fuse import record_loader
from blend.fuse.fuse import BlendOrder, fuse
from blend.fuse.prompt import ChunkSegment, Prompt, TextSegment
from blend.fuse.record_loader import Readers, RecordLoader
from blend.place.placement import Numbers
from blend.place.torch_placement import TorchPlacement
from blend.run import attention
from blend.run.attention import DENSE, FLEX, NAME
from blend.run.context import Context
from store.blob import Blob, Terms
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import BlobReader, read
from store.record_source import BlobSource, HeldRecord
from store.rows import StoredRows, joined
from store.tiers.budget import TierBudget
from store.tiers.memory_store import MemoryCache
from tests.blend import dense
from tests.blend.families import DEVICE, draw, native, ours, put, words
from tests.blend.fusing import READERS, Case, chosen, close, fused, layout, packed, source

PREFIX, A, B, C, GAP, SUFFIX = draw(31, 9, 120, 75, 40, 5, 11)
MIXED = Case(PREFIX, PREFIX, "hthmh", (A, GAP, B, C, C), SUFFIX)


@pytest.mark.parametrize("name", ["llama", "gemma4", "llama4", "gpt-oss"])
def test_fuses_in_many_threads_do_not_interfere(name: str) -> None:
    model = ours(name)
    prompts = [Case(PREFIX, PREFIX, "hh", (A[: 40 + n], B), SUFFIX).prompt(model) for n in range(8)]
    alone = [fused(model, prompt, policy="hybrid", ratio=0.3, piece_rows=50) for prompt in prompts]

    with ThreadPoolExecutor(8) as threads:
        together = threads.map(
            lambda prompt: fused(model, prompt, policy="hybrid", ratio=0.3, piece_rows=50), prompts * 2
        )

    for one, other in zip(alone * 2, together, strict=True):
        assert close(other.logits, one.logits.cpu())
        assert other.report.stages[-1] == one.report.stages[-1]


class Gated(HeldRecord):
    """Delivers its last layer only when allowed."""

    def __init__(self, held: HeldRecord, allowed: Event) -> None:
        super().__init__(held._record, held.fingerprint)  # pyright: ignore[reportPrivateUsage]
        self._allowed = allowed

    def rows(self, layers: range, of: Sequence[Self], *, threads: int = 1) -> StoredRows:
        if 3 in layers:
            assert self._allowed.wait(60)
        return super().rows(layers, of)


def test_a_layer_is_computed_while_the_next_is_still_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_loader, "ON_DEVICE", 1)
    model, allowed, entered = ours("llama"), Event(), list[int]()
    placed = layout(model, Prompt(PREFIX, (ChunkSegment(A, Gated(source(model, PREFIX, A), allowed)),), SUFFIX))

    def between() -> None:
        entered.append(1)
        if len(entered) == 4:  # before the last layer: the other three ran without it
            allowed.set()

    found = fuse(
        model.decoder,
        placed,
        context=model.decoder.context(len(placed.ids)),
        order=BlendOrder("reuse", between=between),
        readers=READERS,
    )

    assert close(found.logits, dense.prefill(native("llama"), placed.ids)[-1])


class Paired(HeldRecord):
    """Delivers a layer only while another record is asked for one, too."""

    def __init__(self, held: HeldRecord, pair: Barrier) -> None:
        super().__init__(held._record, held.fingerprint)  # pyright: ignore[reportPrivateUsage]
        self._pair = pair

    def rows(self, layers: range, of: Sequence[Self], *, threads: int = 1) -> StoredRows:
        self._pair.wait(60)
        return super().rows(layers, of)


def test_records_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("UNIT", "ON_DEVICE"):
        monkeypatch.setattr(record_loader, size, 1)
    model, pair = ours("llama"), Barrier(2)
    held = [source(model, PREFIX, ids) for ids in (A, B)]

    def prompt(sources: Sequence[HeldRecord]) -> Prompt:
        chunks = tuple(ChunkSegment(ids, each) for ids, each in zip((A, B), sources, strict=True))
        return Prompt(PREFIX, chunks, SUFFIX)

    found = fused(model, prompt([Paired(each, pair) for each in held]), policy="reuse")

    alone = fused(model, prompt(held), policy="reuse")
    assert torch.equal(found.logits, alone.logits)
    assert found.report.bytes == alone.report.bytes


@pytest.mark.parametrize("most", [1 << 23, 1])
def test_a_device_that_unpacks_frames_itself_gets_the_same_numbers(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ours("llama")
    specs, texts = ("q4", "q4", "lossless", "q2.9", "q8"), [A, B, C, A[:50], B[:7]]
    held = [source(model, PREFIX, ids) for ids in texts]
    monkeypatch.setattr(model.decoder, "_placement", TorchPlacement(model.decoder.dtype, DEVICE))

    def logits() -> torch.Tensor:
        chunks = [packed(each, spec) for each, spec in zip(held, specs, strict=True)]
        segments = [ChunkSegment(ids, each) for ids, each in zip(texts, chunks, strict=True)]
        prompt = Prompt(PREFIX, (*segments[:2], TextSegment(GAP), *segments[2:]), SUFFIX)
        return fused(model, prompt, policy="reuse").logits

    by_tiles = logits()
    monkeypatch.setattr(record_loader, "is_apart", lambda device: True)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(record_loader, "ON_DEVICE", most)
    assert torch.equal(logits(), by_tiles)


def test_layers_that_take_several_frames_are_read_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers as record by record, of chunks of which some have one frame for a layer."""
    monkeypatch.setattr("store.codec.encode.FRAME_BYTES", 1)
    texts, told, model = (B, (*A, *A, *A), C), list[bool](), ours("llama")
    chunks = [(ids, source(model, PREFIX, ids)) for ids in texts]
    rows = BlobSource.rows

    def logits() -> torch.Tensor:
        segments = tuple(ChunkSegment(ids, packed(held, "q4")) for ids, held in chunks)
        return fused(model, Prompt(PREFIX, segments, SUFFIX), policy="reuse").logits

    def noted(one: BlobSource, layers: range, of: Sequence[BlobSource], *, threads: int) -> StoredRows:
        found = rows(one, layers, of, threads=threads)
        told.append(found.rows.shape[1] > len(of) > 1)
        return found

    def alone(one: BlobSource, layers: range, of: Sequence[BlobSource], *, threads: int) -> StoredRows:
        return joined([rows(each, layers, [each], threads=threads) for each in of])

    monkeypatch.setattr(BlobSource, "rows", noted)
    together = logits()
    assert told == [True] * len(told) and told
    monkeypatch.setattr(BlobSource, "rows", alone)
    assert torch.equal(logits(), together)


class Placing(NamedTuple):
    """`near` of three records are in memory; `calls`: the layers that each call places."""

    is_apart: bool
    most: int
    near: int
    calls: list[list[int]]


IN_A_FRAME, ONE_BY_ONE, TOGETHER = [0, 1, 2, 3], [[0], [1], [2], [3]], [[0], [1], [2, 3]]
PLACINGS = {
    "a GPU": Placing(is_apart=True, most=1 << 26, near=3, calls=TOGETHER),
    "a GPU and long layers": Placing(is_apart=True, most=1, near=3, calls=ONE_BY_ONE),
    "a GPU and one that is read": Placing(is_apart=True, most=1 << 26, near=2, calls=sorted([*TOGETHER, IN_A_FRAME])),
    "a CPU": Placing(is_apart=False, most=1 << 26, near=3, calls=TOGETHER),
    "a CPU and long layers": Placing(is_apart=False, most=1, near=3, calls=ONE_BY_ONE),
    "a CPU and one that is read": Placing(is_apart=False, most=1 << 26, near=2, calls=sorted([*TOGETHER, IN_A_FRAME])),
}


@pytest.mark.parametrize("name", PLACINGS)
def test_what_is_in_memory_is_placed_by_its_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers as out of frames that are read, layer by layer."""
    is_apart, most, near, calls = PLACINGS[name]
    model, told, specs = ours("llama"), list[list[int]](), ("q4", "k4v8", "q2.9")
    cache, blobs = MemoryCache(TierBudget(lowest=False)), list[Blob]()
    for spec, ids in zip(specs, (A, B, C), strict=True):
        record = source(model, PREFIX, ids)._record  # pyright: ignore[reportPrivateUsage]
        blobs.append(encode(record, CacheKey("t", spec, "f", spec), terms=Terms(0, precomputed=True)))
        cache.put(blobs[-1])

    def logits(near: int, policy: str) -> torch.Tensor:
        found = [cache.open(blob.head.key) if number < near else read(blob) for number, blob in enumerate(blobs)]
        readers = [each for each in found if isinstance(each, BlobReader)]
        chunks = [BlobSource(each, model.fingerprint.behind(PREFIX)) for each in readers]
        assert [len(each.groups) == 4 for each in chunks] == [number < near for number in range(3)]
        segments = tuple(ChunkSegment(ids, each) for ids, each in zip((A, B, C), chunks, strict=True))
        return fused(model, Prompt(PREFIX, (TextSegment(GAP), *segments), SUFFIX), policy=policy, ratio=0.2).logits

    def placed(context: Context, layers: Sequence[int], *, stored: StoredRows, slots: Numbers) -> None:
        told.append([*layers])
        place(context, layers, stored=stored, slots=slots)

    place = model.decoder.place
    for limit in ("MOST", "ON_DEVICE"):
        monkeypatch.setattr(record_loader, limit, most)
    for policy in ("reuse", "hybrid"):
        wanted = logits(0, policy)
        with monkeypatch.context() as patch:
            patch.setattr(model.decoder, "place", placed)
            patch.setattr(record_loader, "is_apart", lambda device: is_apart)  # pyright: ignore[reportUnknownLambdaType]
            found = logits(near, policy)
        assert torch.equal(found, wanted) or (DEVICE.type == "cuda" and close(found, wanted.cpu()))  # recorded since
        if policy == "reuse":
            assert sorted(told) == calls


@pytest.mark.parametrize("is_apart", [True, False])
def test_records_come_by_their_layers_whichever_of_these_come_together(
    is_apart: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_loader, "is_apart", lambda device: is_apart)  # pyright: ignore[reportUnknownLambdaType]
    model, told, place = ours("llama"), list[list[int]](), RecordLoader._place  # pyright: ignore[reportPrivateUsage]

    def noted(loader: RecordLoader, unit: record_loader._Unit) -> None:  # pyright: ignore[reportPrivateUsage]
        told.append([*unit.layers])
        place(loader, unit)

    monkeypatch.setattr(RecordLoader, "_place", noted)
    plain = [source(model, PREFIX, ids) for ids in (A, B, C)]
    sources = (plain[0], packed(plain[1], "q4"), plain[2])
    segments = tuple(ChunkSegment(ids, each) for ids, each in zip((A, B, C), sources, strict=True))
    placed = layout(model, Prompt(PREFIX, segments, SUFFIX))
    with Readers(1) as readers:
        context = model.decoder.context(len(placed.ids))
        RecordLoader(
            model.decoder,
            context,
            wanted=dict.fromkeys(model.decoder.model_layers.keeping, placed.spans),
            readers=readers,
        ).wait(3)

    assert [layers for layers in told if len(layers) > 1] == [[0, 1, 2, 3], *[[2, 3]] * is_apart]
    assert [layers[0] for layers in told] == sorted(layers[0] for layers in told)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        *product(("llama", "qwen2", "deepseek-v3", "llama4"), (NAME, DENSE)),
        *product(("gemma2", "gpt-oss"), (DENSE,)),  # fused kernels have no soft cap and no sinks
        *product(("gemma2", "gpt-oss"), (FLEX,)),
        *(pytest.param(name, FLEX, marks=pytest.mark.long) for name in ("llama", "qwen2", "deepseek-v3", "llama4")),
    ],
)
def test_every_attention_kernel_that_is_accepted_is_exact(
    name: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == FLEX and DEVICE.type == "cuda":
        pytest.skip("on a GPU it takes heads of 16 numbers at least")
    monkeypatch.setattr(load, "kernels", lambda model: [kernel])  # pyright: ignore[reportUnknownLambdaType]
    model = adopt(put(copy.deepcopy(native(name))), words())
    prompt = MIXED.prompt(model)
    for policy in ("hybrid", "deviation"):
        found = fused(model, prompt, policy=policy, ratio=0.3, piece_rows=64)

        choice = chosen(model, prompt, policy=policy, ratio=0.3, found=found.report.stages)
        logits, recomputed = dense.blended(native(name), prompt.ids, MIXED.cached, choice=choice)
        assert list(found.report.stages[-1]) == recomputed
        assert close(found.logits, logits)


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss"])
def test_a_kernel_that_computes_something_else_is_not_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "kernels", lambda model: [NAME, DENSE])  # pyright: ignore[reportUnknownLambdaType]

    module = adopt(put(copy.deepcopy(native(name))), words()).decoder.model

    assert module.config._attn_implementation == DENSE  # pyright: ignore[reportPrivateUsage]


def test_where_flex_attention_does_not_compile_the_models_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> torch.Tensor:
        raise RuntimeError("no kernel of this shape")

    monkeypatch.setattr(load, "kernels", lambda model: [FLEX, DENSE])  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(attention, "attend_with_flex", fails)
    module = adopt(put(copy.deepcopy(native("gemma2"))), words()).decoder.model
    assert module.config._attn_implementation == DENSE  # pyright: ignore[reportPrivateUsage]


def test_rows_that_adjoin_behind_others_are_one_call_where_a_kernel_knows_what_they_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = adopt(put(copy.deepcopy(native("qwen2"))), words())
    case = Case(PREFIX, PREFIX, "hm", (A, B), SUFFIX)
    in_blocks = fused(model, case.prompt(model), policy="reuse", piece_rows=50)
    called: list[tuple[int, int]] = []

    def bias(rows: int, keys: int) -> object:
        called.append((rows, keys))
        return causal_lower_right(rows, keys)

    monkeypatch.setattr(attention, "causal_lower_right", bias)
    monkeypatch.setattr(attention, "_is_one_call", lambda segment, query: segment.slots.adjoining)  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
    assert close(fused(model, case.prompt(model), policy="reuse", piece_rows=50).logits, in_blocks.logits)
    assert any(1 < rows < keys for rows, keys in called)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_sees_too_much_or_too_little_of_what_is_before_is_not_taken(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def knows() -> bool:
        attention._knows_lower_right.cache_clear()  # pyright: ignore[reportPrivateUsage]
        return attention._knows_lower_right(64, dtype, device=torch.device("cpu"))  # pyright: ignore[reportPrivateUsage]

    assert knows()
    monkeypatch.setattr(attention, "causal_lower_right", causal_upper_left)
    assert not knows()
    for wrong in (-1, 1, 40):
        sight = torch.ones(3, 40, dtype=torch.bool).tril(37 + wrong)
        monkeypatch.setattr(attention, "causal_lower_right", lambda rows, keys, sight=sight: sight)  # pyright: ignore[reportUnknownLambdaType]
        assert not knows()
