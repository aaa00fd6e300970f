"""How much memory a fuse and a decoding step take, beyond the keys and values that a prompt has to keep.

The model is so small that masks and scores would outweigh all else. What torch's allocator hands out is the same in
every run; what stays resident is more, as freed blocks leave holes.
"""

import json
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blend.adopt.load import LoadedModel
from blend.capture.captured_pass import CapturedPass, ChunkRows
from blend.engine.engine import EngineLimits, EngineRequest
from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import Prompt, TextSegment
from blend.fuse.record_loader import Readers
from blend.run import context as context_module
from blend.run.context import Context, LayerShape, Segment, span
from blend.run.decoder import Decoder
from blend.run.rows_cache import RowsCache
from tests.bench.model import Corpus, Shape, adopted, captured, fused, random_model
from tests.bench.prefill_memory import RESET, limit_bytes, peak_bytes
from tests.blend.asking import Asked, engine
from tests.blend.families import draw, ours

SMALL = Shape(layers=3, hidden=128, intermediate=256, heads=2, kv_heads=1, vocabulary=1000)
LONGEST = 16384
ALL_SEE_ALL = LONGEST * LONGEST  # bytes of the smallest mask of all rows for all tokens: 256 MiB
LONG = 8192  # tokens, for which torch's allocator tells apart what it handed out: a mask is 64 MiB
SLACK_BYTES = 24 << 20
RESIDENT_SLACK_BYTES = 160 << 20


@cache
def model(dtype: str) -> LoadedModel:
    return adopted(random_model(SMALL, dtype=dtype))


@cache
def corpus() -> Corpus:
    return captured(model("bfloat16"))


@pytest.fixture
def readers() -> Iterator[Readers]:
    with Readers(2) as readers:
        yield readers


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=20))
def test_contexts_never_share_memory_that_anyone_still_knows(steps: list[tuple[int, int]]) -> None:
    """Contexts come in four places. Of whichever was there some values are known on, until the next one goes."""
    held, left = dict[int, tuple[int, Context]](), dict[int, tuple[int, Tensor]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_module, "LARGE_BYTES", 1024)
        for number, (place, tokens) in enumerate(steps):
            if place in held:
                left[place] = held[place][0], held.pop(place)[1].values(0)[:, :1]
            made = Context([LayerShape(1, 64, 1, 32)], capacity=tokens, dtype=torch.float32, device=torch.device("cpu"))
            for room in (made.keys(0), made.values(0)):
                room.fill_(number)
            held[place] = number, made
            known = [*left.values(), *((of, room) for of, each in held.values() for room in each.part(0, slice(None)))]
            assert all((room == of).all() for of, room in known)


def test_memory_of_a_context_that_is_gone_is_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(tokens: int) -> int:
        made = Context([LayerShape(1, 64, 1, 64)], capacity=tokens, dtype=torch.float32, device=torch.device("cpu"))
        return made.keys(0).data_ptr()

    monkeypatch.setattr(context_module, "LARGE_BYTES", 1 << 20)
    context_module.SPARE.let_go()
    for largest in (4000, 9000):  # for which there is no room in what was left
        first = address(largest)
        kept = np.empty(largest * 128 * 4, np.uint8)  # which the allocator would have given that memory
        assert address(largest - 1000) == address(largest) == first != kept.ctypes.data


@pytest.mark.parametrize("policy", ["hybrid", "full"])
def test_a_fuse_takes_little_more_than_the_prompts_keys_and_values(
    policy: str, readers: Readers, tmp_path: Path
) -> None:
    small, prompt = model("bfloat16"), corpus().prompt(LONG)

    sizes = _allocated(
        lambda: fused(small, prompt, order=BlendOrder(policy, 0.15), readers=readers), tmp_path / "trace"
    )

    assert max(accumulate(sizes)) <= limit_bytes(len(prompt.ids) * small.decoder.token_bytes, SLACK_BYTES)


@pytest.mark.skipif(
    not RESET.exists() or torch.cuda.is_available(), reason="the peak of resident memory is read from Linux's /proc"
)
def test_a_fuse_keeps_little_more_resident() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:  # no other thread's memory, and no holes of other tests
        peak, limit, with_mask = alone.submit(_resident).result()

    assert peak <= limit < with_mask


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("requests", [1, 3])
def test_a_decoding_step_makes_no_copy_of_a_layers_keys(dtype: str, requests: int, tmp_path: Path) -> None:
    decoder = model(dtype).decoder
    contexts = [_filled(model(dtype)) for _ in range(requests)]
    last = span(LONGEST - 1, LONGEST, device=decoder.device)
    segments = [Segment(context, last, row) for row, context in enumerate(contexts)]

    sizes = _allocated(lambda: decoder.advance(segments, torch.arange(requests)), tmp_path / "trace")

    assert max(sizes) < contexts[0].keys(0).nbytes / 4


def test_a_lift_takes_what_it_lifts_and_a_few_layers_at_a_time(tmp_path: Path) -> None:
    decoder, rows = model("bfloat16").decoder, ChunkRows(tuple(map(range, (256, 200, 1, *[256] * 5))), 256, 0, 32)
    context, found = _filled(model("bfloat16"), 8 * 256), list[CapturedPass]()
    layer_bytes = context.keys(0).nbytes + context.values(0).nbytes
    decoder.prepare(1024)

    sizes = _allocated(lambda: found.append(CapturedPass(decoder, context, rows=rows)), tmp_path / "trace")

    assert found[0].nbytes == sum(rows.counts) * decoder.token_bytes <= sum(sizes)
    assert max(accumulate(sizes)) - sum(sizes) < 3 * layer_bytes  # float32, of keys that turn and of those turned


def test_a_copy_of_a_layers_keys_would_be_noticed(tmp_path: Path) -> None:
    keys = _filled(model("bfloat16")).keys(0)

    assert _allocated(keys.clone, tmp_path / "trace")[0] == keys.nbytes


def _resident() -> tuple[int, int, int]:
    """What a fuse adds at its peak, what it may add at most, and what one mask of all rows would add."""
    small, prompt = model("bfloat16"), corpus().prompt(LONGEST)
    limit = limit_bytes(len(prompt.ids) * small.decoder.token_bytes, RESIDENT_SLACK_BYTES)
    with Readers(2) as readers:
        peak = peak_bytes(lambda: fused(small, prompt, order=BlendOrder("hybrid", 0.15), readers=readers))
    return peak, limit, peak_bytes(lambda: torch.ones(ALL_SEE_ALL, dtype=torch.bool))


def _filled(small: LoadedModel, tokens: int = LONGEST) -> Context:
    context = small.decoder.context(tokens)
    for layer in context.layers:
        context.keys(layer).normal_()
        context.values(layer).normal_()
    return context


def _allocated(work: Callable[[], object], trace: Path) -> list[int]:
    """Bytes that torch's allocator hands out meanwhile, inside kernels and in other threads too; negative: freed."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    profile.export_chrome_trace(str(trace))
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "[memory]"]
    return [event["args"]["Bytes"] for event in sorted(events, key=lambda event: event["ts"])]


def test_requests_and_a_capture_share_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (prefix, text, suffix) = ours("llama"), draw(5, 9, 40, 11)
    plain = EngineRequest(Prompt(prefix, (TextSegment(text),), suffix), Sampling(max_tokens=16, ignore_eos=True))
    room, live, most = 400, dict[int, int](), [0]
    context = model.decoder.context

    def counted(made: Context) -> Context:
        live[id(made)] = made.capacity
        weakref.finalize(made, live.pop, id(made))
        most.append(sum(live.values()))
        return made

    monkeypatch.setattr(model.decoder, "context", lambda capacity: counted(context(capacity)))
    limits = EngineLimits(kv_bytes=room * model.decoder.token_bytes, prefix_bytes=0)
    with engine(model, limits) as to:
        records = to.capture(prefix, draw(21, *(40 + number for number in range(20))))
        asked = [Asked(to, plain) for _ in range(12)]
        assert len({tuple(each.wait().ids) for each in asked}) == 1
        assert len(records.result(60)) == 20
    assert max(most) <= room


@pytest.mark.parametrize("name", ["llama", "qwen3.5", "falcon-h1"])
@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_step_without_memory_is_tried_again_where_no_state_went_on(
    name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, run_all, (prefix, text, suffix) = ours(name), Decoder._run_all, draw(5, 9, 40, 11)
    sampling = Sampling(max_tokens=16, ignore_eos=True)
    asked = [EngineRequest(Prompt(prefix, (), each), sampling, BlendOrder("reuse")) for each in (text, suffix)]

    def fail_once(decoder: Decoder, rows: RowsCache, ids: Tensor) -> Tensor | None:
        logits = run_all(decoder, rows, ids) if len(rows.segments) == 1 or when == "behind" else None
        if len(rows.segments) > 1:
            monkeypatch.undo()
            raise RuntimeError("out of memory")
        return logits

    with engine(model) as to:
        alone = [Asked(to, each).wait().ids for each in asked]
        monkeypatch.setattr(Decoder, "_run_all", fail_once)
        together = [each.wait() for each in [Asked(to, each) for each in asked]]
        assert Decoder._run_all is run_all
        if model.decoder.model_layers.states and when == "behind":
            assert [str(each.error) for each in together] == ["out of memory"] * 2
            together = [Asked(to, each).wait() for each in asked]
    assert [each.ids for each in together] == alone
