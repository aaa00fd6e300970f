"""Capture against a native prefill, and its bits against its companions."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config

from blend.adopt.load import LoadedModel, adopt
from blend.capture import capture as module
from blend.capture.capture import FEW_ROWS, ROWS, TOGETHER, CaptureHooks, bucket, capture, plan
from blend.errors import NotFinite, PromptError
from blend.run.context import Context
from store.record import Record, widen
from store.rows import plain_rows
from tests.blend import dense
from tests.blend.families import BASE, DEVICE, build, draw, native, ours, put, words
from tests.blend.fusing import off

PREFIX = draw(8, 10)[0]
LENGTHS = (1, 31, 32, 33, 64, 100, 300, 512, 513, 700)


@pytest.fixture(scope="module")
def bfloat16() -> LoadedModel:
    config = Qwen3Config(**{**BASE, "hidden_size": 64, "head_dim": 16})
    return adopt(put(build(config).bfloat16()), words())


NOTHING_BEFORE = (0,) * len(LENGTHS)
BEFORE = (0, 1, 40, 31, 96, 7, 64, 0, 33, 600)  # the last fills a whole pass, in which no token of the chunk is


@pytest.mark.parametrize("before", [NOTHING_BEFORE, BEFORE], ids=["alone", "in context"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek-v3", "qwen3.5", "falcon-h1"])
def test_a_record_is_what_a_native_prefill_computes_behind_the_same_ids(name: str, before: tuple[int, ...]) -> None:
    """At its own place: placing what was lifted must give the native keys back."""
    decoder, chunks = ours(name).decoder, draw(9, *LENGTHS)
    own = [draw(90 + number, count)[0] for number, count in enumerate(before)]

    records = capture(decoder, PREFIX, chunks=chunks, before=own)
    for ids, behind, record in zip(chunks, own, records, strict=True):
        start = len(PREFIX) + len(behind)
        context, slots = decoder.context(start + len(ids)), slice(start, start + len(ids))
        expected = dense.chunk_kv(native(name), dense.Cached(start, (*PREFIX, *behind), ids))
        for layer in decoder.model_layers.keeping:
            stored, right = record.layers[layer], expected[layer]
            assert stored is not None and right is not None
            decoder.place(
                context, [layer], stored=plain_rows([stored]), slots=np.array([(slots.start, slots.stop)], np.int64)
            )
            assert off(context.keys(layer)[:, slots], right[0]) < 2e-4
            assert off(context.values(layer)[:, slots], right[1]) < 2e-4


def same(one: Record, other: Record) -> bool:
    return all(
        np.array_equal(a.keys, b.keys) and np.array_equal(a.values, b.values)
        for a, b in zip(one.layers, other.layers, strict=True)
        if a is not None and b is not None
    )


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "qwen3.5", "lfm2"])
def test_the_bits_of_a_record_do_not_depend_on_its_companions(kind: str, bfloat16: LoadedModel) -> None:
    decoder = (bfloat16 if kind == "bfloat16" else ours("llama" if kind == "float32" else kind)).decoder
    chunks = draw(10, *LENGTHS, 60, 50, 40, 64, 33)
    before = draw(11, *((37 * number) % 97 for number in range(len(chunks))))
    together = capture(decoder, PREFIX, chunks=chunks, before=before)
    backwards = capture(decoder, PREFIX, chunks=chunks[::-1], before=before[::-1])[::-1]

    for ids, own, one, other in zip(chunks, before, together, backwards, strict=True):
        assert same(one, other)
        assert same(one, capture(decoder, PREFIX, chunks=[ids], before=[own])[0])


@pytest.mark.parametrize("room", [float("inf"), 900, 1])
@pytest.mark.parametrize("rows", [512, 4096])
def test_the_rows_of_a_pass_follow_from_its_chunks_size_alone(rows: int, room: float) -> None:
    chunks = draw(11, *(1 + (37 * number) % 600 for number in range(80)))
    planned = list(plan(chunks, rows=rows, room=room))
    assert sorted(number for each in planned for number in each.numbers) == list(range(80))
    for each in planned:
        assert {bucket(len(chunks[number]), rows=rows) for number in each.numbers} == {each.size}
        assert each.rows == min(rows // each.size, TOGETHER) * each.size
        assert len(each.numbers) * each.size <= each.rows
        assert len(each.numbers) == 1 or (len(each.numbers) + 1) * each.size <= room


def test_a_capture_takes_the_memory_of_its_chunks_and_of_one_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROWS, DEVICE.type, 4096)
    decoder, prefix, held = ours("llama").decoder, draw(16, 1000)[0], [0]
    made, context = list[int](), decoder.context

    def counted(capacity: int) -> Context:
        made.append(capacity)
        return context(capacity)

    monkeypatch.setattr(decoder, "context", counted)
    [alone] = capture(decoder, prefix, chunks=draw(17, 20), hooks=CaptureHooks(hold=held.append))
    assert (sum(made), max(held)) == (1024 + 32 + 32, 1024 + 32 + 32), "the prefix, the chunk, a place for dummies"
    hooks = CaptureHooks(hold=held.append, room=1024 + 96)
    few = capture(decoder, prefix, chunks=draw(17, 20, 20, 20, 20), hooks=hooks)
    assert same(few[0], alone) and max(held) <= 1024 + 96


def test_others_may_compute_between_the_layers_of_a_capture() -> None:
    calls: list[int] = []
    chunks = draw(12, 40, 700)
    passes = 1 + 1 + -(-700 // ROWS.get(DEVICE.type, FEW_ROWS))  # the prefix, the short chunk, the long one

    capture(ours("llama").decoder, PREFIX, chunks=chunks, hooks=CaptureHooks(between=lambda: calls.append(1)))

    assert len(calls) == 4 * passes + len(chunks)  # and before each chunk takes memory


def test_what_cannot_be_captured_says_so() -> None:
    decoder = ours("llama").decoder
    with pytest.raises(PromptError, match="chunk 1 has no tokens"):
        capture(decoder, PREFIX, chunks=[(5,), ()])
    with pytest.raises(PromptError, match="4090 tokens behind 10 others, the model's window is 4096: cut it"):
        capture(decoder, PREFIX, chunks=draw(13, 4090))
    for strange in (999, -1, 2**63):
        with pytest.raises(PromptError, match=f"token id {strange} "):
            capture(decoder, PREFIX, chunks=[(5, strange)])


def test_numbers_that_are_not_finite_are_never_stored() -> None:
    model = adopt(put(build(Qwen3Config(**BASE))), words())
    with torch.no_grad():
        next(p for name, p in model.decoder.model.named_parameters() if "layers.2.self_attn.v_proj" in name)[0] = np.inf
    with pytest.raises(NotFinite, match="layer 2"):
        capture(model.decoder, PREFIX, chunks=draw(14, 20))


def test_a_record_has_the_models_dtype_and_the_captures_version(bfloat16: LoadedModel) -> None:
    [own] = capture(bfloat16.decoder, PREFIX, chunks=draw(15, 90))
    assert own.dtype == "bfloat16"
    assert widen(own.layers[0].keys, "bfloat16").any()  # type: ignore[union-attr]
    assert bfloat16.fingerprint.capture == module.VERSION
