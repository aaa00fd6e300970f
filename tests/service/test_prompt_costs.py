"""What prompts are expected to take: measured once, corrected by what they took."""

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from blend.errors import PromptError
from blend.fuse.fuse import BlendOrder, FuseReport
from service.answers.blend_decision import BlendInputs, decide, tries
from service.answers.prompt_costs import Opening, PromptCosts
from service.app.operating_point import point_file
from service.model.kept_speeds import _curve, conditions, kept_speeds
from service.model.prompt_builder import PromptTokens, TokenRun
from service.model.served_model import ServedModel
from service.model.speeds import ModelSpeeds, PromptSizes
from store.errors import Miss, MissReason
from store.record import Tail
from store.record_source import BlobSource
from tests.service.demo_served import DOCUMENTS
from tests.service.overhearing import decisions_in
from tests.service.passages import QUESTIONS
from tests.service.serving import Inside, ask, in_process, settings_in, wait_for

SPEEDS = ModelSpeeds(
    prefill_s=0.01,
    row_s=0.001,
    pair_s=0.0,
    fuse_s=0.02,
    chunk_s=0.002,
    cached_s=0.0001,
    fresh=2.0,
    recomputed=0.05,
    byte_s=1e-8,
    again_s=0.0,
)
READS = replace(SPEEDS, fuse_s=1000.0, chunk_s=1000.0)  # where blending, and each record, takes a quarter of an hour


class FakeSource(BlobSource):
    """A record of so many tokens, out of a tier that reads as slowly as this."""

    def __init__(self, tokens: int, *, tier: str = "lmdb", read_s: float = 0.0, parts: int = 8) -> None:
        self.tokens, self.tail, self.tier = tokens, Tail(), tier
        self.nbytes = self.read = 1000 * tokens
        self.read_s = read_s
        self.parts = parts


def prompt_of(*lengths: int) -> PromptTokens:
    runs = [run for at, each in enumerate(lengths) for run in (TokenRun((0,)), TokenRun((1,) * each, at))]
    return PromptTokens((2,) * 4, tuple(runs[1:]), (3,) * 8)


def report_of(policy: str) -> FuseReport:
    return FuseReport(BlendOrder(policy, 0.0), 0, 0, 0, ((),), (), 0, {})


def done(source: BlobSource | Miss) -> Opening:
    future: Opening = Future()
    future.set_result(source)
    return future


def opened_by(
    costs: PromptCosts,
    prompt: PromptTokens,
    begin: Callable[[], list[Opening]],
    *,
    turn_s: float = 0.0,
    tried: bool = False,
) -> dict[int, BlobSource | Miss]:
    return asyncio.run(costs.begun(prompt, begin, turn_s=turn_s, tried=tried).opened())


def chosen(costs: PromptCosts, prompt: PromptTokens, opened: Mapping[int, BlobSource | Miss]) -> str:
    expected = costs.cost(prompt, opened).expected
    return decide(BlendInputs(BlendOrder("reuse", 0.0), True, 1.0, 0.99, expected)).order.policy


def test_long_prompts_of_long_chunks_blend_and_short_ones_are_read() -> None:
    costs = PromptCosts(SPEEDS)
    for lengths, policy in [((500, 500), "reuse"), ((5, 5), "full"), ((10,) * 5, "full")]:
        assert chosen(costs, prompt_of(*lengths), {at: FakeSource(each) for at, each in enumerate(lengths)}) == policy


def test_one_long_chunk_at_the_beginning_is_an_exact_prefix() -> None:
    costs = PromptCosts(replace(SPEEDS, fuse_s=0.5))
    opened = {0: FakeSource(500), 1: Miss(MissReason.ABSENT), 2: Miss(MissReason.ABSENT)}
    assert chosen(costs, prompt_of(500, 40, 40), opened) == "prefix"


def test_blobs_are_opened_where_an_exact_beginning_alone_pays() -> None:
    costs = PromptCosts(replace(SPEEDS, fuse_s=1000.0))
    prompt, sources = prompt_of(500, 40), [FakeSource(500), FakeSource(40)]
    opened = opened_by(costs, prompt, lambda: [done(each) for each in sources])
    assert chosen(costs, prompt, opened) == "prefix"
    assert opened_by(costs, prompt_of(40, 500), lambda: pytest.fail("opened")) == {}


def test_a_chunk_that_is_too_short_or_comes_too_late_is_read_as_text() -> None:
    costs = PromptCosts(SPEEDS)
    short = costs.cost(prompt_of(500, 500, 1), {at: FakeSource(each) for at, each in enumerate((500, 500, 1))})
    assert short.unused == {2}
    slow = FakeSource(500, tier="s3", read_s=60.0)
    costs.learn(short, report_of("reuse"), took_s=short.plain.blend_s, sources=[slow])
    late = costs.cost(prompt_of(500, 500, 500), {0: FakeSource(500), 1: FakeSource(500), 2: slow})
    assert late.unused == {2}


def test_a_tier_that_reads_again_is_found_out_without_being_asked_each_time() -> None:
    costs = PromptCosts(SPEEDS)
    prompt, opened = prompt_of(500, 500), {0: FakeSource(500, tier="s3"), 1: FakeSource(500, tier="s3")}
    cost = costs.cost(prompt, opened)
    hung = FakeSource(500, tier="s3", read_s=20.0)
    costs.learn(cost, report_of("reuse"), took_s=20.0, sources=[hung])
    reads = 0
    while chosen(costs, prompt, opened) == "full":
        reads += 1
        costs.learn(costs.cost(prompt, opened), report_of("full"), took_s=1.03, sources=[*opened.values()])
        assert reads < 1000
    assert reads > 10


def known(costs: PromptCosts, tier: str, *, read_s: float) -> None:
    """A tier that takes so long for 500 tokens, as prompts that found the same have taught."""
    prompt, source = prompt_of(500), FakeSource(500, tier=tier, read_s=read_s)
    for _ in range(40):
        costs.learn(costs.cost(prompt, {0: source}), report_of("full"), took_s=0.5, sources=[source])


@pytest.mark.parametrize("read_s", [0.05, 0.4])
def test_computing_waits_for_the_first_part_of_each_record_and_the_rest_comes_meanwhile(read_s: float) -> None:
    costs, prompt = PromptCosts(SPEEDS), prompt_of(500, 500)
    known(costs, "s3", read_s=read_s)
    near = costs.cost(prompt, {at: FakeSource(500) for at in range(2)}).plain
    for parts in (1, 2, 8):
        cost = costs.cost(prompt, {at: FakeSource(500, tier="s3", parts=parts) for at in range(2)}).plain
        blend_s, late_s = near.blend_s, 2 * read_s
        assert cost.blend_s == pytest.approx(max(blend_s, late_s) + min(blend_s, late_s) / parts, rel=0.05)
        assert cost.prefix_s == pytest.approx(max(near.prefix_s, read_s) + min(near.prefix_s, read_s) / parts, rel=0.05)


def test_one_read_that_takes_long_makes_no_slow_tier() -> None:
    costs, prompt = PromptCosts(SPEEDS), prompt_of(500, 500)
    opened = {at: FakeSource(500, tier="s3") for at in range(2)}
    hiccup = FakeSource(500, tier="s3", read_s=1.0)
    cost = costs.cost(prompt, opened)
    costs.learn(cost, report_of("reuse"), took_s=1.0, sources=[hiccup, FakeSource(500, tier="s3", read_s=0.005)])
    assert chosen(costs, prompt, opened) == "reuse"
    for _ in range(10):
        costs.learn(cost, report_of("reuse"), took_s=1.0, sources=[hiccup])
    assert chosen(costs, prompt, opened) == "full"


def test_what_an_exact_beginning_takes_longer_out_of_one_tier_is_not_expected_of_another() -> None:
    costs, prompt = PromptCosts(SPEEDS), prompt_of(500, 500)
    known(costs, "s3", read_s=0.1)
    near, far = ({at: FakeSource(500, tier=tier) for at in range(2)} for tier in ("ram", "s3"))
    before = costs.cost(prompt, near).expected
    for _ in range(10):
        costs.learn(costs.cost(prompt, far), report_of("prefix"), took_s=3.0, sources=[])
    assert costs.cost(prompt, near).expected == before
    assert costs.cost(prompt, far).expected.prefix_s > 1.5 * before.prefix_s


@pytest.mark.parametrize("factor", [0.4, 0.6, 1.7, 3.0])
def test_expectations_that_are_off_by_more_than_a_third_correct_themselves(factor: float) -> None:
    costs, prompt = PromptCosts(SPEEDS), prompt_of(300, 300)
    opened = {0: FakeSource(300), 1: FakeSource(300)}
    took_s = factor * costs.cost(prompt, opened).plain.blend_s
    for _ in range(8):
        costs.learn(costs.cost(prompt, opened), report_of("reuse"), took_s=took_s, sources=[])
    found = costs.cost(prompt, opened)
    assert found.expected.blend_s == pytest.approx(took_s, rel=1 / 8)
    assert found.expected.full_s == found.plain.full_s


def test_what_took_longer_beside_other_requests_says_nothing_of_the_way_it_was_computed() -> None:
    """Reading would have taken longer as well, and was not measured: blending looked dear by that alone."""
    costs, prompt = PromptCosts(SPEEDS), prompt_of(300, 300)
    opened = {0: FakeSource(300, tier="s3", read_s=0.1), 1: FakeSource(300)}
    cost = costs.cost(prompt, opened)
    for _ in range(8):
        took_s = 3 * cost.plain.blend_s
        costs.learn(cost, report_of("reuse"), took_s=took_s, sources=[*opened.values()], alone=False)
    near = {at: FakeSource(300) for at in range(2)}
    assert costs.cost(prompt, near).expected.by_way == pytest.approx(costs.cost(prompt, near).plain.by_way)
    assert costs.cost(prompt, opened).expected.blend_s > cost.expected.blend_s  # but that records came late is known


@pytest.mark.parametrize(("blends", "reads"), [(1.2, 1.0), (1.6, 1.0), (4.2, 3.0)])
def test_a_service_that_measured_wrongly_learns_that_blending_is_sooner(blends: float, reads: float) -> None:
    """It takes half of reading, and was thought to take so many times as long as reading takes, as was reading."""
    prompt, drawn = prompt_of(40, 280, 280), random.Random(3)  # the exact beginning alone does not pay
    full_s = SPEEDS.full_s(PromptSizes(prompt.tokens))
    thought = replace(SPEEDS, prefill_s=reads * 0.01, row_s=reads * 0.001, fresh=1.0, chunk_s=0.0, cached_s=0.0)
    costs = PromptCosts(replace(thought, fuse_s=blends * full_s - reads * 0.001 * (prompt.tokens - 600)))
    taken = Counter[str]()
    for number in range(2000):
        inputs = BlendInputs(BlendOrder("reuse", 0.0), True, 1.0, drawn.random())
        begin = [done(FakeSource(40)), done(FakeSource(280)), done(FakeSource(280))]
        opened = opened_by(costs, prompt, begin.copy, tried=tries(inputs))
        cost = costs.cost(prompt, opened)
        policy = decide(replace(inputs, expected=cost.expected)).order.policy
        taken[policy] += number >= 1000
        costs.learn(cost, report_of(policy), took_s=full_s / 2 if policy == "reuse" else full_s, sources=[])
    assert taken["reuse"] > 900, costs._drifts


def test_blobs_that_do_not_come_are_waited_for_once_and_given_up_for_long_afterwards() -> None:
    costs, prompt = PromptCosts(SPEEDS), prompt_of(100, 100)
    stuck: list[Opening] = [done(FakeSource(100)), Future()]
    assert opened_by(costs, prompt, lambda: stuck)[1] == Miss(MissReason.SOONER)
    stuck[1].set_result(FakeSource(100))  # long after
    costs._open_s = 30.0
    begun = 0

    def begin() -> list[Opening]:
        nonlocal begun
        begun += 1
        return [done(FakeSource(100)), done(FakeSource(100))]

    assert [opened_by(costs, prompt, begin) for _ in range(100)] == [{}] * 100 and not begun
    found = next(each for each in (opened_by(costs, prompt, begin) for _ in range(1000)) if each)
    assert len(found) == 2 and begun == 1


def test_blobs_that_come_before_the_turn_of_their_prompt_are_never_late() -> None:
    costs, prompt, source = PromptCosts(SPEEDS), prompt_of(100, 100), FakeSource(100)
    costs._open_s = 30.0
    assert opened_by(costs, prompt, lambda: [done(source)], turn_s=20.0) == {}
    assert opened_by(costs, prompt, lambda: [done(source)], turn_s=30.0) == {0: source}
    assert opened_by(costs, prompt_of(5, 5), lambda: pytest.fail("opened"), turn_s=30.0) == {}


def test_one_blob_that_comes_very_late_keeps_no_later_prompt_from_its_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, prompt, now = PromptCosts(SPEEDS), prompt_of(100, 100), 0.0
    monkeypatch.setattr("service.answers.prompt_costs.perf_counter", lambda: now)
    late: list[Opening] = [Future()]
    assert opened_by(costs, prompt, lambda: late)[0] == Miss(MissReason.SOONER)
    now = 3600.0
    late[0].set_result(FakeSource(100))
    assert len(opened_by(costs, prompt, lambda: [done(FakeSource(100))])) == 1


@pytest.mark.parametrize("fuse_s", [0.02, 1000.0], ids=["blending pays", "an exact beginning pays"])
def test_a_store_whose_records_come_too_late_is_left_alone_but_looked_at_now_and_then(fuse_s: float) -> None:
    costs, prompt = PromptCosts(replace(SPEEDS, fuse_s=fuse_s)), prompt_of(500, 500)
    slow: dict[int, BlobSource | Miss] = {at: FakeSource(500, tier="s3", read_s=60.0) for at in range(2)}
    costs.learn(
        costs.cost(prompt, slow), report_of("reuse"), took_s=120.0, sources=[FakeSource(500, read_s=60.0, tier="s3")]
    )
    begun = 0

    def begin() -> list[Opening]:
        nonlocal begun
        begun += 1
        return [done(each) for each in slow.values()]

    for _ in range(3 + 160):
        costs.cost(prompt, opened_by(costs, prompt, begin))
    assert 3 <= begun <= 3 + 160 // 3 + 1
    slow.update({at: FakeSource(500) for at in range(2)})
    before = begun
    for _ in range(40):
        costs.cost(prompt, opened_by(costs, prompt, begin))
    assert begun > before + 20


@pytest.mark.parametrize(("fuse_s", "late_s", "opened"), [(0.02, 0.48, 20), (1.0, 60.0, 9)], ids=["pays", "too late"])
def test_records_are_late_by_what_was_learned_not_by_what_was_measured(
    fuse_s: float, late_s: float, opened: int
) -> None:
    """Blending takes a third of what was measured: once so much that late records would not pay, once never."""
    costs, prompt = PromptCosts(replace(SPEEDS, fuse_s=fuse_s)), prompt_of(500, 500)
    near = {at: FakeSource(500) for at in range(2)}
    late = {at: FakeSource(500, tier="s3", read_s=late_s) for at in range(2)}
    costs.learn(costs.cost(prompt, late), report_of("full"), took_s=1.0, sources=[late[0]])
    for records in (near, late) if opened == 20 else (near,):
        for _ in range(12):
            cost = costs.cost(prompt, records)
            costs.learn(cost, report_of("reuse"), took_s=cost.plain.blend_s / 3, sources=[])
    begun = 0
    for _ in range(20):
        found = opened_by(costs, prompt, lambda: [done(each) for each in late.values()])
        costs.cost(prompt, found)
        begun += bool(found)
    assert begun == opened


@pytest.mark.parametrize("parts", [(0.01, 1e-4, 1e-8), (0.0, 2e-3, 0.0), (0.5, 1e-5, 0.0), (0.0, 0.0, 1e-7)])
def test_a_curve_is_found_again_out_of_its_points(parts: tuple[float, float, float]) -> None:
    rng = random.Random(3)
    points = [(n, (parts[0] + parts[1] * n + parts[2] * n * n)) for n in (64, 128, 256, 512, 1024)]
    for n, seconds in points:
        a, b, c = _curve([(m, s * rng.uniform(0.97, 1.03)) for m, s in points])
        assert min(a, b, c) >= 0 and a + b * n + c * n * n == pytest.approx(seconds, rel=0.1)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A service that takes what is sooner, where blending never is."""
    settings = settings_in(tmp_path_factory.mktemp("sooner"), reuse="sooner")
    with in_process(settings, documents=DOCUMENTS) as served:
        served.core.pipeline._costs = PromptCosts(READS)
        yield served


def test_an_answer_says_that_it_was_read_what_was_expected_and_the_log_why(
    inside: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with inside.client() as client:
        read = ask(client, QUESTIONS[0])
        full = ask(client, QUESTIONS[0], blend={"policy": "full"})
    report = read["report"]
    assert (read["answer"], report["policy"], report["reason"]) == (full["answer"], "full", "read: sooner here")
    assert {chunk["miss_reason"] for chunk in report["chunks"]} == {"read: sooner here"}
    assert report["expected_ms"]["blend"] > report["expected_ms"]["full"] > 0
    assert (full["report"]["reason"], full["report"]["expected_ms"]) == (None, {})

    wait_for(lambda: len(decisions_in(caplog)) == 2, "both requests are logged, each behind its answer")
    assert [decide(each).reason for each in decisions_in(caplog)] == [MissReason.SOONER, None]


def test_a_request_that_names_its_policy_gets_it(inside: Inside) -> None:
    with inside.client() as client:
        report = ask(client, QUESTIONS[0], blend={"policy": "reuse"})["report"]
    assert report["policy"] == "reuse" and {chunk["miss_reason"] for chunk in report["chunks"]} == {None}


def test_records_are_on_their_way_before_the_prompt_waits_for_its_turn_and_go_when_they_are_placed(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    engine, begin, let_go = inside.core.model.engine, BlobSource.begin, BlobSource.let_go
    submit = engine.submit
    monkeypatch.setattr(BlobSource, "begin", lambda source: (told.append("begin"), begin(source)))
    monkeypatch.setattr(BlobSource, "let_go", lambda source: (told.append("let go"), let_go(source)))
    monkeypatch.setattr(engine, "submit", lambda *each: (told.append("submit"), submit(*each))[1])
    with inside.client() as client:
        ask(client, QUESTIONS[0])  # is read
        assert told == ["submit"]
        blended = ask(client, QUESTIONS[0], blend={"policy": "reuse"})
    chunks = len(blended["report"]["chunks"])
    assert told[1:] == ["begin"] * chunks + ["submit"] + ["let go"] * chunks


def test_speeds_are_measured_once_and_again_where_anything_is_different(
    inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = inside.core.model
    kept = point_file(inside.core.settings, model.fingerprint.weights).with_suffix(".speeds.json")
    assert model.speeds is not None and json.loads(kept.read_text()).pop("conditions") == conditions(
        model, torch.device("cpu")
    )
    long, short = (model.speeds.full_s(PromptSizes(tokens)) for tokens in (1000, 100))
    assert min(asdict(model.speeds).values()) >= 0 and long > short
    sizes = PromptSizes(1000, 900, 4)
    assert model.speeds.blend_s(replace(sizes, chunks=90)) >= model.speeds.blend_s(sizes)
    file, measured = tmp_path / "model.speeds.json", list[ServedModel]()
    monkeypatch.setattr("service.model.kept_speeds.measured", lambda each: measured.append(each) or SPEEDS)
    for number, text in enumerate(
        ("", "{", "[]", '{"conditions": "other"}', json.dumps({"conditions": "mine", "row_s": 1})), start=1
    ):
        file.write_text(text)
        found = _kept(model, file)
        assert found is not None and _kept(model, file) == found == SPEEDS
        assert measured == [model] * number


def test_a_budget_that_holds_no_prompt_to_measure_stops_no_start(
    inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(model: ServedModel) -> ModelSpeeds:
        raise PromptError("the budget is spent")

    monkeypatch.setattr("service.model.kept_speeds.measured", measured)
    assert _kept(inside.core.model, tmp_path / "model.speeds.json") is None and not [*tmp_path.iterdir()]


def _kept(model: ServedModel, file: Path) -> ModelSpeeds | None:
    return kept_speeds(model, file, conditions="mine")
