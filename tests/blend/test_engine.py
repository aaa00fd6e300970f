"""The engine against transformers, and against itself one request at a time."""

import copy
import dataclasses
from collections.abc import Sequence

import pytest
import torch

from blend.adopt.load import adopt
from blend.engine.engine import EngineLimits, EngineRequest, Ready, Token
from blend.engine.sampling import Sampling
from blend.errors import BlendError, Busy, NotFinite, PromptError
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import ChunkSegment, Prompt, TextSegment
from store.errors import Miss, StoreError
from store.rows import StoredRows
from tests.blend import dense
from tests.blend.asking import Asked, Broken, Held, engine
from tests.blend.families import FAMILIES, HYBRIDS, OTHERS, VOCABULARY, draw, native, ours, words
from tests.blend.fusing import Case, close, fused, layout, source

PREFIX, A, B, C, GAP, SUFFIX, LONG = draw(5, 9, 40, 33, 21, 5, 11, 1500)
MIXED = Case(PREFIX, PREFIX, "hthmh", (A, GAP, B, C, C), SUFFIX)
PLAIN = Prompt(PREFIX, (TextSegment(A),), SUFFIX)
GREEDY = Sampling(max_tokens=16, ignore_eos=True)


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS, *HYBRIDS])
def test_sixteen_greedy_tokens_are_those_of_transformers(name: str) -> None:
    prompt = MIXED.prompt(ours(name))
    with engine(ours(name)) as to:
        full = Asked(to, EngineRequest(prompt, GREEDY, BlendOrder("full"))).wait()
        all_again = Asked(to, EngineRequest(prompt, GREEDY, BlendOrder(ratio=1.0))).wait()

    assert dense.is_greedy(native(name), prompt.ids, full.ids, tie=1e-4)
    assert dense.is_greedy(native(name), prompt.ids, all_again.ids, tie=1e-4)
    assert full.done.reason == "length"
    assert full.done.generated == 16


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS, "qwen3.5", "lfm2", "falcon-h1"])
def test_eight_requests_at_once_answer_as_one_after_the_other(name: str) -> None:
    cached = MIXED.prompt(ours(name))
    questions = draw(6, *range(3, 11))
    requests = [
        EngineRequest(
            dataclasses.replace(cached, suffix=question),
            dataclasses.replace(GREEDY, max_tokens=4 + number),
            BlendOrder(("heads" if name in HYBRIDS else "hybrid", "full", "reuse", "heads")[number % 4], 0.3),
        )
        for number, question in enumerate(questions)
    ]
    with engine(ours(name)) as to:
        alone = [Asked(to, request).wait() for request in requests]
        together = [asked.wait() for asked in [Asked(to, request) for request in requests]]

    for one, other in zip(alone, together, strict=True):
        assert other.ids == one.ids
        assert other.ready.report.stages[-1] == one.ready.report.stages[-1]


def test_a_request_joins_and_leaves_at_any_step() -> None:
    model = ours("llama")
    first, second = (
        EngineRequest(PLAIN, GREEDY),
        EngineRequest(MIXED.prompt(model), dataclasses.replace(GREEDY, max_tokens=4)),
    )
    with engine(model) as to:
        alone = [Asked(to, each).wait().ids for each in (first, second)]
        for step in (0, 1, 5, 11):
            running = Asked(to, first)
            while len(running.ids) < step:
                running.next()
            joining = Asked(to, second)
            assert [running.wait().ids, joining.wait().ids] == alone


def test_a_seed_gives_the_same_tokens_in_any_company() -> None:
    drawn = EngineRequest(PLAIN, Sampling(max_tokens=12, temperature=1.0, top_p=0.9, top_k=40, seed=7, ignore_eos=True))
    with engine(ours("qwen2")) as to:
        alone = Asked(to, drawn).wait()
        crowd = [
            Asked(to, dataclasses.replace(drawn, sampling=dataclasses.replace(drawn.sampling, seed=seed)))
            for seed in (1, 7, 2, 3)
        ]
        ids = [asked.wait().ids for asked in crowd]

    assert ids[1] == alone.ids
    assert ids[0] != alone.ids


def test_streams_go_on_while_a_long_prompt_is_fused() -> None:
    endless = EngineRequest(PLAIN, Sampling(max_tokens=2000, ignore_eos=True))
    with engine(ours("llama"), EngineLimits(piece_rows=64)) as to:
        running = Asked(to, endless)
        running.next()
        long = Asked(to, EngineRequest(Prompt(PREFIX, (TextSegment(LONG),), SUFFIX), GREEDY, BlendOrder("full")))
        long.wait()
        running.ticket.cancel()
        running.wait()

    assert long.ready.report.seconds["others"] > 0
    assert long.ready.report.seconds["others"] < 0.9 * long.done.seconds
    assert running.done.reason == "cancelled"


def test_cancelling_frees_the_place_at_the_next_step() -> None:
    room = ours("llama").decoder.token_bytes * 2500
    endless = EngineRequest(PLAIN, Sampling(max_tokens=2000, ignore_eos=True))
    with engine(ours("llama"), EngineLimits(kv_bytes=room)) as to:
        running = Asked(to, endless)
        running.next()
        waiting = Asked(to, endless)
        gone = Asked(to, endless)
        gone.ticket.cancel()
        running.ticket.cancel()
        assert isinstance(waiting.next(), Ready)
        waiting.ticket.cancel()
        waiting.wait()
        gone.wait()
        running.wait()
        after = Asked(to, EngineRequest(PLAIN, GREEDY)).wait()

    assert [asked.done.reason for asked in (running, waiting, gone, after)] == [*["cancelled"] * 3, "length"]
    assert running.done.generated < 2000
    assert gone.events == [gone.done]


def test_a_client_that_leaves_during_its_fuse_ends_it() -> None:
    held = Held()
    with engine(ours("llama"), EngineLimits(piece_rows=16)) as to:
        first = Asked(to, EngineRequest(PLAIN, Sampling(max_tokens=1, processor=held)))
        assert held.reached.wait(60)
        leaving = Asked(to, EngineRequest(Prompt(PREFIX, (TextSegment(LONG),), SUFFIX), GREEDY))
        leaving.ticket.cancel()
        held.release.set()
        first.wait()
        leaving.wait()

    assert leaving.done.reason == "cancelled"
    assert leaving.done.generated == 0


def test_a_full_queue_says_busy_and_takes_nothing() -> None:
    held = Held()
    with engine(ours("llama"), EngineLimits(waiting=2)) as to:
        blocking = Asked(to, EngineRequest(PLAIN, Sampling(max_tokens=1, processor=held)))
        assert held.reached.wait(60)
        queued = [Asked(to, EngineRequest(PLAIN, GREEDY)) for _ in range(2)]
        with pytest.raises(Busy, match="2 requests are waiting"):
            Asked(to, EngineRequest(PLAIN, GREEDY))
        held.release.set()
        for asked in [blocking, *queued]:
            asked.wait()
        assert Asked(to, EngineRequest(PLAIN, GREEDY)).wait().done.reason == "length"


def test_requests_go_before_captures_that_have_no_share() -> None:
    held, order = Held(), list[str]()
    with engine(ours("llama"), EngineLimits(capture_share=0)) as to:
        blocking = Asked(to, EngineRequest(PLAIN, Sampling(max_tokens=1, processor=held)))
        assert held.reached.wait(60)
        records = to.capture(PREFIX, [A])
        records.add_done_callback(lambda _: order.append("capture"))
        asked = Asked(
            to, EngineRequest(PLAIN, dataclasses.replace(GREEDY, processor=lambda ids, logits: note(order, logits)))
        )
        held.release.set()
        blocking.wait()
        asked.wait()
        assert records.result(60)[0].tokens == len(A)

    assert order == [*["token"] * 16, "capture"]


def test_a_request_passes_a_capture_that_is_under_way() -> None:
    many = draw(17, *[500] * 60)
    with engine(ours("llama")) as to:
        records = to.capture(PREFIX, many)
        asked = Asked(to, EngineRequest(PLAIN, GREEDY)).wait()
        under_way = not records.done()
        alone = Asked(to, EngineRequest(PLAIN, GREEDY)).wait()

        assert under_way
        assert asked.ids == alone.ids
        assert [record.tokens for record in records.result(60)] == [500] * 60


def note(order: list[str], logits: torch.Tensor) -> torch.Tensor:
    order.append("token")
    return logits


def test_what_does_not_fit_waits_and_what_never_fits_is_refused() -> None:
    model = ours("llama")
    room = model.decoder.token_bytes * (len(PLAIN.ids) + 16)
    with engine(model, EngineLimits(kv_bytes=room)) as to:
        asked = [Asked(to, EngineRequest(PLAIN, GREEDY)) for _ in range(3)]
        assert len({tuple(each.wait().ids) for each in asked}) == 1
        with pytest.raises(PromptError, match="lower max_tokens"):
            to.submit(EngineRequest(PLAIN, Sampling(max_tokens=17)), print)


def test_prompts_that_cannot_be_are_refused_with_the_remedy() -> None:
    with engine(ours("llama")) as to:
        with pytest.raises(PromptError, match="question is empty"):
            to.submit(EngineRequest(Prompt(PREFIX, (TextSegment(A),), ())), print)
        with pytest.raises(PromptError, match="window 4096: leave out chunks"):
            to.submit(EngineRequest(Prompt(PREFIX, (ChunkSegment(LONG * 3),), SUFFIX)), print)
        with pytest.raises(PromptError, match="window 4096: shorten the question"):
            to.submit(EngineRequest(Prompt(PREFIX, (ChunkSegment(LONG),), SUFFIX * 4096)), print)
        with pytest.raises(PromptError, match="unknown policy 'best'"):
            to.submit(EngineRequest(PLAIN, order=BlendOrder("best")), print)
        for ratio in (-0.1, 1.5, float("nan")):
            with pytest.raises(PromptError, match="ratio must be in"):
                to.submit(EngineRequest(PLAIN, order=BlendOrder(ratio=ratio)), print)
        with pytest.raises(PromptError, match="token id 128"):
            to.submit(EngineRequest(Prompt((VOCABULARY,), (), SUFFIX)), print)


def test_a_prompt_as_long_as_the_window_gets_one_token() -> None:
    window = ours("llama").decoder.window
    prompt = Prompt((), (TextSegment(tuple(LONG * 3)[: window - 5]),), SUFFIX[:5])
    with engine(ours("llama")) as to:
        assert Asked(to, EngineRequest(prompt, GREEDY)).wait().done.generated == 1


def test_a_processor_that_fails_ends_its_own_request_only() -> None:
    with engine(ours("llama")) as to:
        alone = Asked(to, EngineRequest(PLAIN, GREEDY)).wait()
        running = Asked(to, EngineRequest(PLAIN, GREEDY))
        failing = Asked(to, EngineRequest(PLAIN, dataclasses.replace(GREEDY, processor=Broken()))).wait()

        assert running.wait().ids == alone.ids
        assert isinstance(failing.error, BlendError)


def test_a_listener_that_fails_ends_its_own_request_only() -> None:
    told: list[object] = []

    def listen(event: object) -> None:
        told.append(event)
        raise RuntimeError("gone")

    with engine(ours("llama")) as to:
        alone = Asked(to, EngineRequest(PLAIN, GREEDY)).wait()
        running = Asked(to, EngineRequest(PLAIN, GREEDY))
        to.submit(EngineRequest(PLAIN, GREEDY), listen)
        assert running.wait().ids == alone.ids
        assert Asked(to, EngineRequest(PLAIN, GREEDY)).wait().ids == alone.ids

    assert len(told) == 1


def test_numbers_that_are_not_finite_end_a_request_and_not_the_engine() -> None:
    model = adopt(copy.deepcopy(native("llama")), words())
    weight = next(parameter for name, parameter in model.decoder.model.named_parameters() if "layers.3.mlp" in name)
    kept = weight.detach().clone()
    with engine(model) as to:
        with torch.no_grad():
            weight[0, 0] = float("nan")
        assert isinstance(Asked(to, EngineRequest(PLAIN, GREEDY)).wait().error, NotFinite)
        with torch.no_grad():
            weight.copy_(kept)
        assert Asked(to, EngineRequest(PLAIN, GREEDY)).wait().done.generated == 16


def told(misses: Sequence[tuple[int, Miss]]) -> list[tuple[int, str]]:
    """As a report says it."""
    return [(number, str(miss)) for number, miss in misses]


class Spoiled:
    """A source whose record fails at one layer."""

    def __init__(self, source: object, at: int) -> None:
        self._source = source
        self._at = at

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def rows(self, layers: range, of: Sequence["Spoiled"], *, threads: int = 1) -> StoredRows:
        if self._at in layers:
            raise StoreError("digest of frame 1 differs")
        return self._source.rows(layers, [each._source for each in of])  # type: ignore[attr-defined]


@pytest.mark.parametrize("layer", range(4))
def test_a_record_that_fails_at_a_layer_becomes_text(layer: int) -> None:
    model = ours("llama")
    good, bad = source(model, PREFIX, A), Spoiled(source(model, PREFIX, B), layer)
    with_bad = Prompt(PREFIX, (ChunkSegment(C), ChunkSegment(A, good), ChunkSegment(B, bad)), SUFFIX)  # type: ignore[arg-type]
    as_text = Prompt(PREFIX, (ChunkSegment(C), ChunkSegment(A, good), ChunkSegment(B)), SUFFIX)

    found = fused(model, with_bad, policy="reuse")

    assert close(found.logits, fused(model, as_text, policy="reuse").logits)
    assert told(found.report.misses) == [(0, "absent"), (2, "corrupt: digest of frame 1 differs")]
    assert found.report.reused == len(A)


def test_a_medium_that_fails_in_any_way_is_a_miss() -> None:
    model = ours("llama")

    class Away(Spoiled):
        def rows(self, layers: range, of: Sequence[Spoiled], *, threads: int = 1) -> StoredRows:
            raise ConnectionResetError("gone")

    prompt = Prompt(PREFIX, (ChunkSegment(A, Away(source(model, PREFIX, A), 0)),), SUFFIX)  # type: ignore[arg-type]
    found = fused(model, prompt, policy="hybrid", ratio=0.2)

    assert close(found.logits, dense.prefill(native("llama"), prompt.ids)[-1])
    assert told(found.report.misses) == [(0, "corrupt: gone")]


def test_a_record_with_numbers_that_are_not_finite_is_a_miss() -> None:
    model, record = ours("llama"), source(ours("llama"), PREFIX, A)
    next(filter(None, record._record.layers[2:])).values[0, 3, 1] = float("nan")  # pyright: ignore[reportPrivateUsage]
    prompt = Prompt(PREFIX, (ChunkSegment(A, record), ChunkSegment(B, source(model, PREFIX, B))), SUFFIX)
    found = fused(model, prompt, policy="reuse")

    assert close(found.logits, dense.prefill(native("llama"), prompt.ids)[-1])
    assert told(found.report.misses) == [(0, "corrupt: not finite"), (1, "corrupt: not finite")]


@pytest.mark.parametrize("field", ["weights", "tokenizer", "rope", "dtype", "capture"])
def test_a_record_of_another_fingerprint_is_a_miss_that_names_the_field(field: str) -> None:
    model = ours("llama")
    record = source(model, PREFIX, A)
    record.fingerprint = dataclasses.replace(record.fingerprint, **{field: "other"})
    prompt = Prompt(PREFIX, (ChunkSegment(A, record),), SUFFIX)

    assert told(layout(model, prompt).misses) == [(0, field)]
    assert close(fused(model, prompt, policy="reuse").logits, dense.prefill(native("llama"), prompt.ids)[-1])


@pytest.mark.parametrize("ids", [A[:-1], (*A[:-1], A[-1] + 1)], ids=["fewer", "as many others"])
def test_a_record_of_other_tokens_is_a_miss(ids: tuple[int, ...]) -> None:
    prompt = Prompt(PREFIX, (ChunkSegment(ids, source(ours("llama"), PREFIX, A)),), SUFFIX)

    assert told(layout(ours("llama"), prompt).misses) == [(0, "tokens")]


def test_logprobs_are_the_models_own() -> None:
    with engine(ours("llama")) as to:
        asked = Asked(to, EngineRequest(PLAIN, Sampling(max_tokens=3, logprobs=5, ignore_eos=True))).wait()
    tokens = [event for event in asked.events if isinstance(event, Token)]
    for place, token in enumerate(tokens):
        logits = dense.prefill(native("llama"), [*PLAIN.ids, *asked.ids[:place]])[-1]
        expected = torch.log_softmax(logits, -1).topk(5)
        assert [id_ for id_, _ in token.top] == expected.indices.tolist()
        assert [each for _, each in token.top] == pytest.approx(expected.values.tolist(), abs=1e-4)
        assert token.logprob == pytest.approx(float(expected.values[0]), abs=1e-4)


def test_closing_finishes_what_runs_and_takes_nothing_more() -> None:
    with engine(ours("llama")) as to:
        asked = [Asked(to, EngineRequest(PLAIN, GREEDY)) for _ in range(3)]
        to.close()
        assert [each.wait().done.generated for each in asked] == [16] * 3
        with pytest.raises(Busy, match="closing"):
            to.submit(EngineRequest(PLAIN), print)
