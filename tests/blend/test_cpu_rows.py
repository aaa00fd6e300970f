"""Decoding steps on a CPU whose rows are written and attended by one call."""

import ctypes
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numba import cfunc, int64, void  # pyright: ignore[reportMissingTypeStubs]

from blend.adopt.load import adopt
from blend.kernels import cpu_rows_kernels
from blend.kernels.attend_call import AttendCall
from blend.run import cpu_rows
from blend.run.context import Context, LayerShape, Segment, span
from blend.run.cpu_rows import CpuRows, CpuRowTables, cpu_row_tables
from tests.blend.families import FAMILIES, OTHERS, build, draw, words

CPU = torch.device("cpu")
SHAPES = [  # of a layer, and query heads
    (LayerShape(2, 32, 2, 32), 2),
    (LayerShape(1, 24, 1, 42), 5),
    (LayerShape(3, 128, 3, 64), 12),
]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def attention(dtype: torch.dtype) -> CpuRowTables:
    found = cpu_row_tables(dtype, CPU)
    assert found is not None
    return found


def drawn(shape: LayerShape, dtype: torch.dtype, lengths: list[int]) -> list[Segment]:
    """A row behind so many slots of a context each; what no row sees is not a number."""
    random, segments = torch.Generator().manual_seed(sum(lengths)), list[Segment]()
    for row, length in enumerate(lengths):
        context = Context([shape], capacity=length + 3, dtype=dtype, device=CPU)
        for each in (context.keys(0), context.values(0)):
            each.copy_(torch.randn(each.shape, generator=random))
            each[:, length + 1 :] = torch.nan
        segments.append(Segment(context, span(length, length + 1, device=CPU), row))
    return segments


def test_what_a_call_says_stays_as_it_is_while_one_thread_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other threads make meanwhile would take its memory, were it free again."""
    torch.set_num_threads(1)
    tables, call, told = attention(torch.float32), AttendCall(*range(1, 1 + len(AttendCall._fields))), list[int]()

    def read(address: int) -> None:
        others = [np.zeros(len(call), np.int64) for _ in range(8)]
        told.extend((ctypes.c_int64 * len(call)).from_address(address))
        assert not any(map(np.any, others))

    monkeypatch.setattr(tables, "_in_one_thread", read)
    tables.attend(call)
    assert told == [*call]


def test_nothing_is_divided_for_each_key() -> None:
    """In the code that is kept, which is not inlined as where it is compiled: a division took most of its time."""
    told = cfunc(void(int64))(cpu_rows_kernels._attend_long).inspect_llvm()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]
    found = re.findall(
        r'^define [^@]*@"?[^"(]*cpu_rows_kernels\d+(_\w+?)B[^\n]*\n(.*?)^}', told, re.MULTILINE | re.DOTALL
    )
    bodies = {name: body for name, body in found if name in {"_score", "_to_weights", "_add", "_largest"}}
    assert {"_score", "_to_weights", "_add"} <= {*bodies}
    assert not [name for name, body in bodies.items() if re.search(r"\b[su](div|rem) ", body)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "heads"), SHAPES)
@pytest.mark.parametrize("window", [10_000, 70, 1])
@pytest.mark.parametrize("loud", [1.0, 40.0])
def test_rows_see_what_a_computation_in_double_precision_sees(
    shape: LayerShape, heads: int, window: int, loud: float, dtype: torch.dtype
) -> None:
    segments = drawn(shape, dtype, [0, 1, 5, 62, 63, 64, 65, 127, 300])
    rows = attention(dtype).rows(segments)
    assert rows is not None and rows.most == 301
    query = torch.randn(1, heads, len(segments), shape.key_dim, generator=torch.Generator().manual_seed(7)).to(dtype)
    query *= loud
    found = rows.attend(0, query, window=window, scale=0.3)
    assert found.dtype == dtype and found.shape == (1, len(segments), heads, shape.value_dim)
    for row, each in enumerate(segments):
        first = max(0, each.visible - window)
        keys, values = (x[:, first:].double() for x in each.context.seen(0, each.visible))
        asked = query[0, :, row].double().view(shape.key_heads, -1, shape.key_dim)
        wanted = (asked @ keys.transpose(1, 2) * 0.3).softmax(-1) @ values
        off = (found[0, row].double() - wanted.reshape(heads, -1)).abs().max()
        assert off < (1e-2 if dtype == torch.bfloat16 else 3e-6 * loud)
        alone = attention(dtype).rows([Segment(each.context, each.slots, 0)])
        assert alone is not None
        assert torch.equal(alone.attend(0, query[:, :, row : row + 1], window=window, scale=0.3)[0, 0], found[0, row])
    for threads in (2, 3, 40):
        torch.set_num_threads(threads)
        assert torch.equal(rows.attend(0, query, window=window, scale=0.3), found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_written_to_their_slots_alone(dtype: torch.dtype) -> None:
    shape = LayerShape(3, 16, 3, 32)
    segments = drawn(shape, dtype, [4, 0, 90])
    contexts = [each.context for each in segments if isinstance(each.context, Context)]
    rows, before = attention(dtype).rows(segments), [each.first(each.capacity) for each in contexts]
    assert rows is not None
    keys, values = torch.randn(3, 3, 16).to(dtype), torch.randn(3, 3, 32).to(dtype)
    rows.write(0, keys, values=values)
    for row, (each, old) in enumerate(zip(segments, before, strict=True)):
        old.keys(0)[:, each.slots.last], old.values(0)[:, each.slots.last] = keys[:, row], values[:, row]
        for now, wanted in ((each.context.keys(0), old.keys(0)), (each.context.values(0), old.values(0))):
            assert torch.equal(now.nan_to_num(7), wanted.nan_to_num(7))


def test_what_is_not_one_row_of_a_context_of_its_own_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, shape = attention(torch.float32), LayerShape(2, 16, 2, 16)
    [one] = drawn(shape, torch.float32, [9])
    assert kernels.rows([one]) is not None
    assert kernels.rows([one, Segment(one.context, span(3, 5, device=CPU), 1)]) is None
    assert kernels.rows(drawn(LayerShape(2, 16, 1, 16), torch.float32, [9])) is None
    torch.set_num_threads(2)
    assert kernels.rows([one]) is not None
    monkeypatch.setattr(cpu_rows, "_team", lambda: None)  # pyright: ignore[reportUnknownLambdaType]
    assert kernels.rows([one]) is None
    assert cpu_row_tables(torch.float16, CPU) is None


@pytest.mark.parametrize(
    "name", ["llama", "mistral-window", "gemma3", "gemma4", "qwen3", "cohere2", "olmo3", "nanochat"]
)
def test_a_step_makes_the_logits_that_it_makes_request_by_request(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**FAMILIES, **OTHERS}[name]()
    config.update({"head_dim": 16})
    model = adopt(build(config), words())
    decoder, calls, attend = model.decoder, list[int](), CpuRows.attend

    def noted(rows: CpuRows, layer: int, query: torch.Tensor, *, window: int, scale: float) -> torch.Tensor:
        calls.append(layer)
        return attend(rows, layer, query, window=window, scale=scale)

    def logits() -> list[torch.Tensor]:
        """Of three steps for three prompts, side by side."""
        texts = draw(5, 70, 9, 41)
        contexts = [decoder.context(len(ids) + 4) for ids in texts]
        with torch.inference_mode():
            for ids, context in zip(texts, contexts, strict=True):
                decoder.prefill(context, span(0, len(ids), device=CPU), ids=torch.tensor([*ids]))
            steps = range(3)
            rows = [
                [(context, len(ids) + step, 9 + step) for ids, context in zip(texts, contexts, strict=True)]
                for step in steps
            ]
            return [each for step in steps for each in decoder.decode(rows[step])]

    monkeypatch.setattr(CpuRows, "attend", noted)
    together = logits()
    assert len(calls) == 3 * decoder.model.config.num_hidden_layers
    monkeypatch.setattr(decoder, "_row_tables", None)
    alone = logits()
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)
