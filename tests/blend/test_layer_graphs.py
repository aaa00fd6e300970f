"""Layers that are recorded and replayed: what their kernels compute, and that a decoder which records does the same.

The kernels run on a GPU, or in Triton's interpreter (`make test-as-gpu`).
"""

import copy
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from blend.adopt.load import PASSES, LoadedModel, adopt
from blend.run import recordings
from blend.run.context import Context, LayerShape, PrefixedContext, Segment, scattered, span
from blend.run.decoder import Decoder
from blend.run.gpu_rows import GpuRowTables
from blend.run.layer_graphs import LayerGraphs
from blend.run.recordings import CudaRecorder, size_of
from tests.blend.families import DEVICE, VOCABULARY, draw, native, ours, put, words
from tests.blend.fusing import ASK, Case, close, fused

triton = pytest.importorskip("triton")
if not (torch.cuda.is_available() or triton.knobs.runtime.interpret):
    pytest.skip("neither a GPU nor Triton's interpreter", allow_module_level=True)

from blend.kernels import gpu_rows_kernels as attend_module  # noqa: E402
from blend.kernels.gpu_rows_kernels import Attention, DeviceRefuses, GpuTables, attend_rows, write_rows  # noqa: E402

BLOCK = 4
NEAR = 1e-4 if DEVICE.type == "cpu" else 2e-3


def again(work: Callable[[], None]) -> Callable[[], None]:
    """A recording that is none."""
    return work


def recorder() -> recordings.Recorder:
    return CudaRecorder(DEVICE) if DEVICE.type == "cuda" else again


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    if DEVICE.type == "cpu":
        monkeypatch.setattr(attend_module, "PROGRAMS", 4)
        monkeypatch.setattr(recordings, "TOGETHER", 4)


def tables(contexts: Sequence[Context], rows: Sequence[tuple[int, int]], *, room: int) -> GpuTables:
    """Of rows (context, slot), those of each context together, and of some that are nobody's."""
    blocks: list[tuple[int, int]] = []
    for row, (owner, _) in enumerate(rows):
        if blocks and rows[blocks[-1][0]][0] == owner and blocks[-1][1] < BLOCK:
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + 1)
        else:
            blocks.append((row, 1))
    padded = [*rows, *[(0, -1)] * (room - len(rows))]
    addresses = torch.from_numpy(torch.stack([torch.from_numpy(each.addresses) for each in contexts]).numpy())
    return GpuTables(
        torch.tensor([slot for _, slot in padded], device=DEVICE),
        torch.tensor([owner for owner, _ in padded], device=DEVICE),
        torch.tensor([*blocks, (0, 0)], device=DEVICE),
        addresses.flatten().to(DEVICE),
        addresses[0].numel(),
    )


@pytest.mark.parametrize(("splits", "window"), [(1, 1000), (4, 1000), (1, 70), (4, 3)])
@pytest.mark.parametrize(
    ("shape", "heads"), [(LayerShape(2, 8, 2, 8), 8), (LayerShape(1, 20, 1, 10), 3), (LayerShape(3, 64, 3, 80), 3)]
)
def test_rows_of_several_contexts_see_what_dense_attention_sees(
    shape: LayerShape, heads: int, splits: int, window: int
) -> None:
    drawn = torch.Generator().manual_seed(0)
    contexts = [Context([shape], capacity=150, dtype=torch.float32, device=DEVICE) for _ in range(3)]
    for each in contexts:
        for part in (each.keys(0), each.values(0)):
            part.copy_(torch.randn(part.shape, generator=drawn))
    rows = [(0, 0), (0, 3), (0, 70), (0, 71), (0, 149), (1, 130), (2, 5), (2, 64)]
    keys, values, query = (
        torch.randn(12, count, dim, generator=drawn).to(DEVICE).transpose(0, 1)
        for count, dim in (
            (shape.key_heads, shape.key_dim),
            (shape.value_heads, shape.value_dim),
            (heads, shape.key_dim),
        )
    )
    told = tables(contexts, rows, room=12)
    write_rows(keys, values, tables=told)
    for row, (owner, slot) in enumerate(rows):
        assert torch.equal(contexts[owner].keys(0)[:, slot], keys[:, row])
        assert torch.equal(contexts[owner].values(0)[:, slot], values[:, row])
    form = Attention(shape.key_heads, shape.value_dim, 0.3, BLOCK, splits, window)
    out = attend_rows(query, form, tables=told)
    for row, (owner, slot) in enumerate(rows):
        seen = [
            each[:, max(0, slot + 1 - window) : slot + 1].double().repeat_interleave(heads // shape.key_heads, 0)
            for each in (contexts[owner].keys(0), contexts[owner].values(0))
        ]
        weights = (0.3 * (seen[0] @ query[:, row, :, None].double())).softmax(1)
        assert torch.allclose(out[row].double(), (weights * seen[1]).sum(1), atol=NEAR)
    assert not out[len(rows) :].any()


def passes(decoder: Decoder) -> list[Tensor]:
    """Logits of a prefill, of scattered rows, and of a step of three contexts; and the keys and values they wrote."""
    ids = torch.arange(12, device=DEVICE) * 7 % (VOCABULARY - 3) + 3
    context = decoder.context(14)
    whole, _ = decoder.prefill(context, span(0, 12, device=DEVICE), ids=ids)
    rows = scattered([1, 3, 5, 6, 8, 10, 11], device=DEVICE)
    some, _ = decoder.prefill(context, rows, ids=ids[rows.index])
    others = [context.first(10), context.first(8)]
    short, _ = decoder.prefill(others[1], span(4, 8, device=DEVICE), ids=ids[4:8])
    step = decoder.decode([(context, 12, 5), (others[0], 9, 6), (others[1], 7, 7)])
    assert whole is not None and some is not None and short is not None
    return [whole, some, short, *step, *context.seen(1, 13), *context.seen(3, 13)]


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    """Other tests have the same one, and do not record."""
    loaded = ours(request.param)
    loaded.decoder.record_layers(None)
    yield loaded
    loaded.decoder.record_layers(None)


@pytest.mark.parametrize(
    ("model", "recorded"),
    [
        ("gemma3", 4),  # windows, and layers without
        ("llama4", 0),  # asks for positions, and sees chunks
        pytest.param("llama", 4, marks=pytest.mark.long),
        pytest.param("mistral-window", 4, marks=pytest.mark.long),
        pytest.param("smollm3", 4, marks=pytest.mark.long),
    ],
    indirect=["model"],
)
def test_a_decoder_that_records_computes_the_same(
    model: LoadedModel, recorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEVICE.type == "cpu":  # the prompt has several blocks, whose keys are whole; few rows have theirs in two parts
        monkeypatch.setattr(attend_module, "TILE", 16)
    made: list[Callable[[], None]] = []

    def note(work: Callable[[], None]) -> Callable[[], None]:
        made.append(work)
        return recorder()(work)

    wanted = passes(model.decoder)
    assert model.decoder.record_layers(lambda: note)
    for _ in range(PASSES):
        for one, other in zip(passes(model.decoder), wanted, strict=True):
            assert torch.allclose(one, other, atol=NEAR * float(other.abs().max()))
    whole = 1 if recorded else 0
    assert model.decoder.is_recorded == bool(recorded)
    assert len(made) == 2 * recorded + whole  # two sizes of prompts, one of steps


@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("policy", [pytest.param(ASK, marks=pytest.mark.long), "ask/layers=1+2/check=2/times=3"])
def test_a_decoder_that_records_chooses_the_same_tokens(model: LoadedModel, policy: str) -> None:
    prefix, one, gap, other, question = draw(5, 5, 20, 3, 12, 8)
    prompt = Case(prefix, (), "hth", (one, gap, other), question).prompt(model)
    wanted = fused(model, prompt, policy=policy, ratio=0.2)
    assert model.decoder.record_layers(recorder)
    for _ in range(PASSES if DEVICE.type == "cuda" else 2):  # the second of as many rows is recorded
        found = fused(model, prompt, policy=policy, ratio=0.2)
        assert found.report.stages == wanted.report.stages and close(found.logits, wanted.logits)
    assert model.decoder.is_recorded


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_what_cannot_be_recorded_runs_and_nothing_is_from_then_on(model: LoadedModel) -> None:
    wanted = passes(model.decoder)
    calls: list[int] = []

    def failing(work: Callable[[], None]) -> Callable[[], None]:
        calls.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    assert model.decoder.record_layers(lambda: failing)
    for _ in range(3):
        for one, other in zip(passes(model.decoder), wanted, strict=True):
            assert torch.allclose(one, other, atol=NEAR * float(other.abs().max()))
    assert not model.decoder.is_recorded and len(calls) == 2  # the first layer of a prompt, and a step


@pytest.mark.parametrize("model", ["gemma4"], indirect=True)
def test_layers_that_read_the_keys_of_others_are_not_recorded(model: LoadedModel) -> None:
    assert not model.decoder.record_layers(recorder)


def test_who_comes_while_a_pass_is_under_way_and_chunks_behind_a_prefix_go_without() -> None:
    shape = LayerShape(2, 8, 2, 8)
    context = Context([shape], capacity=40, dtype=torch.float32, device=DEVICE)
    tables = GpuRowTables([shape], heads=4, device=DEVICE)
    graphs = LayerGraphs(tables, recorder(), layers=frozenset({0}), most=40)
    segments = [Segment(context, span(0, 8, device=DEVICE), 0)]
    with graphs.replaying(segments) as replay:
        assert replay is None  # the first of as many rows
    with graphs.replaying(segments) as first, graphs.replaying(segments) as other:
        assert first is not None and other is None
    chunk = PrefixedContext(context, 4, own=context, part=slice(20, 28))
    with graphs.replaying([Segment(chunk, span(4, 12, device=DEVICE), 0)]) as replay:
        assert replay is None
    with graphs.replaying(segments) as last:
        assert last is not None


def test_sizes_waste_little() -> None:
    for rows in range(1, recordings.MOST + 1):
        size = size_of(rows)
        assert (rows <= size <= max(64, 1.25 * rows)) and size_of(size) == size
    assert len({size_of(rows) for rows in range(1, recordings.MOST + 1)}) < 32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_records_a_model_as_it_is_loaded() -> None:
    loaded = adopt(put(copy.deepcopy(native("llama"))), words())
    assert loaded.decoder.is_recorded


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 16), (3, 3, 10)])
def test_scattered_rows_are_told_apart_by_their_slots(heads: int, kv_heads: int, dim: int) -> None:
    drawn = torch.Generator().manual_seed(0)
    slots = scattered([0, 1, 7, 40, 63, 64, 65, 99], device=DEVICE)
    shape = LayerShape(kv_heads, dim, kv_heads, dim)
    context = Context([shape], capacity=120, dtype=torch.float32, device=DEVICE)
    for each in (context.keys(0), context.values(0)):
        each.copy_(torch.randn(each.shape, generator=drawn))
    query = torch.randn(1, len(slots), heads, dim, generator=drawn).to(DEVICE).transpose(1, 2)
    table = GpuRowTables([shape], heads=heads, device=DEVICE).rows([Segment(context, slots, 0)])
    assert table is not None and table.most == 100
    ours = table.attend(0, query, window=100, scale=0.2)
    keys, values = context.seen(0, 100)
    mask = torch.arange(100, device=DEVICE) <= slots.index[:, None]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query, keys[None], values[None], attn_mask=mask, scale=0.2, enable_gqa=True
    )
    assert ours is not None and torch.allclose(ours, wanted.transpose(1, 2), atol=NEAR)


def test_rows_that_adjoin_in_one_context_or_lie_in_several_have_no_table() -> None:
    shape = LayerShape(2, 8, 2, 8)
    tables = GpuRowTables([shape], heads=4, device=DEVICE)
    context = Context([shape], capacity=40, dtype=torch.float32, device=DEVICE)
    chunk = PrefixedContext(context, 4, own=context, part=slice(20, 28))
    slots = span(4, 6, device=DEVICE)
    assert tables.rows([Segment(context, slots, 0)]) is None
    assert tables.rows([Segment(context, slots, 0), Segment(chunk, slots, 2)]) is None
    assert tables.rows([Segment(context, slots, 0), Segment(context, span(9, 10, device=DEVICE), 2)]) is not None


@pytest.mark.parametrize("model", ["gemma3", "gemma4", "llama4"], indirect=True)
@pytest.mark.parametrize("device", ["takes", "refuses"])
def test_passes_by_a_table_that_nothing_records_compute_the_same(
    model: LoadedModel, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, calls, attend = model.decoder, list[int](), attend_module.attend_rows
    wanted = passes(decoder)

    def noted(query: Tensor, form: Attention, *, tables: GpuTables) -> Tensor:
        calls.append(query.shape[1])
        if device == "refuses":
            raise DeviceRefuses("out of resources")
        return attend(query, form, tables=tables)

    monkeypatch.setattr(attend_module, "attend_rows", noted)
    monkeypatch.setattr(decoder, "_row_tables", decoder._gpu_tables())  # pyright: ignore[reportPrivateUsage]
    for one, other in zip(passes(decoder), wanted, strict=True):
        assert torch.allclose(one, other, atol=NEAR * float(other.abs().max()))
    assert {*calls} >= ({7} if device == "refuses" else {7, 3})  # scattered rows, and a step
