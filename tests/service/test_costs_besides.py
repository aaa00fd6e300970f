"""What expectations of time make of a prompt besides: where records take longer to come than to be used, more of their
tokens are computed anew; what is kept of a conversation costs nothing, whichever way is taken. And who is asked where
nothing came in time.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from blend.fuse.fuse import BlendOrder
from service.answers.blend_decision import Expected, decide
from service.answers.prompt_costs import Opening, PromptCost, PromptCosts
from service.model.speeds import HIDDEN, PromptSizes
from store.errors import Miss, MissReason
from tests.service.demo_served import DOCUMENTS
from tests.service.overhearing import decisions_in
from tests.service.passages import QUESTIONS
from tests.service.serving import Inside, Json, ask, good, in_process, settings_in, wait_for
from tests.service.test_prompt_costs import SPEEDS, FakeSource, done, opened_by, prompt_of


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    settings = settings_in(tmp_path_factory.mktemp("hidden"), reuse="sooner")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.model.kept_speeds.measured", lambda model: SPEEDS)
        with in_process(settings, documents=DOCUMENTS) as served:
            yield served


@pytest.mark.parametrize("hidden", [0.0, HIDDEN])
def test_what_loading_hides_is_computed_and_the_answer_and_the_log_say_so(
    inside: Inside, hidden: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    expected = Expected(9.0, 9.0, 1.0)
    cost = PromptCost(expected, expected, frozenset(), 8, "s3", hidden)
    monkeypatch.setattr(PromptCosts, "cost", lambda *given, **more: cost)
    monkeypatch.setattr(inside.core.pipeline, "_costs", PromptCosts(SPEEDS))
    with inside.client() as client:
        said = ask(client, QUESTIONS[0])
    report, usage = said["report"], said["usage"]
    cached = usage["recomputed_tokens"] + usage["reused_tokens"]
    assert report["ratio"] == (hidden or inside.core.model.order.ratio)
    assert any("hidden by loading" in each for each in report["notes"]) == (hidden > 0)
    assert (usage["recomputed_tokens"] > cached / 4) == (hidden > 0)

    wait_for(lambda: decisions_in(caplog), "the request is logged, behind its answer")
    assert decide(decisions_in(caplog)[0]).order == BlendOrder(report["policy"], report["ratio"])


@pytest.mark.parametrize("byte_s", [1e-8, 1e-6, 1e-5, 1e-4, 1e-3])
def test_the_ratio_that_loading_hides_is_the_largest_that_computes_no_longer(byte_s: float) -> None:
    speeds = replace(SPEEDS, row_s=10.0, again_s=2e-3, pair_s=1e-6)
    costs, prompt = PromptCosts(speeds), prompt_of(500, 500)
    costs._byte_s["s3"] = byte_s
    opened = {at: FakeSource(500, tier="s3") for at in range(2)}
    cost = costs.cost(prompt, opened)
    sizes, reading_s = PromptSizes(prompt.tokens, 1000, 2), (byte_s - speeds.byte_s) * 1000 * 1000

    def computing_s(ratio: float) -> float:
        """As it is counted for the operating point, and for each token more by itself."""
        pairs = speeds.pair_s * (ratio - speeds.recomputed) * 1000 * prompt.tokens
        return speeds.blend_s(sizes) + (ratio - speeds.recomputed) * 1000 * speeds.again_s + pairs

    assert cost.hidden == 0 or speeds.recomputed < cost.hidden <= HIDDEN
    assert (cost.hidden > 0) == (reading_s > computing_s(speeds.recomputed))
    if cost.hidden:
        assert computing_s(cost.hidden) <= reading_s * (1 + 1e-9)
        assert cost.hidden == HIDDEN or computing_s(cost.hidden * 1.01) > reading_s
        assert cost.plain.blend_s == pytest.approx(reading_s + computing_s(cost.hidden) / 8)


def test_what_is_kept_of_a_conversation_costs_no_way_anything() -> None:
    costs, opened = PromptCosts(SPEEDS), {at: FakeSource(40) for at in range(2)}
    prompt = replace(prompt_of(40, 40), prefix=(2,) * 800)
    alone, after = costs.cost(prompt, opened), costs.cost(prompt, opened, kept=800)
    for way, seconds in alone.plain.by_way.items():
        rows = (SPEEDS.fresh if way == "blend" else 1) * 800 * SPEEDS.row_s
        assert after.plain.by_way[way] == pytest.approx(seconds - rows)


@pytest.mark.parametrize("full_s", [0.1, 9.0])
def test_a_conversation_goes_on_whichever_way_is_sooner(
    inside: Inside, full_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, known = Expected(full_s, 9.0, 1.0), list[int]()

    def cost(costs: PromptCosts, *given: object, kept: int) -> PromptCost:
        known.append(kept)
        return PromptCost(expected, expected, frozenset(), 8, "lmdb")

    monkeypatch.setattr(PromptCosts, "cost", cost)
    monkeypatch.setattr(inside.core.pipeline, "_costs", PromptCosts(SPEEDS))
    said: list[Json] = [{"role": "system", "content": f"Read for {full_s} s."}]  # of which nothing is kept yet
    with inside.client() as client:
        for question in QUESTIONS[:3]:
            said.append({"role": "user", "content": question})
            body = {"messages": said, "max_tokens": 3, "temperature": 0, "collection": "default"}
            answer = good(client.post("/v1/chat/completions", json={**body, "model": "default"}))
            said.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    assert answer["kvweave"]["report"]["policy"] == ("full" if full_s < 1 else inside.core.model.order.policy)
    assert known[0] < known[1] < known[2]
    if full_s < 1:
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == known[2]


def test_a_store_that_opens_nothing_in_time_is_tried_now_and_then_and_trusted_again_at_once() -> None:
    costs, prompt, begun = PromptCosts(SPEEDS), prompt_of(100, 100), 0
    opening: Callable[[], Opening] = Future

    def begin() -> list[Opening]:
        nonlocal begun
        begun += 1
        return [opening(), opening()]

    def asked() -> bool:
        opened = opened_by(costs, prompt, begin)
        costs.cost(prompt, opened)
        return any(each != Miss(MissReason.SOONER) for each in opened.values())

    assert not any(asked() for _ in range(3 + 40))
    assert 3 + 40 // 4 <= begun <= 3 + 40 // 3 + 1
    opening = lambda: done(FakeSource(100))  # noqa: E731 - the store that is quick again
    found = [asked() for _ in range(20)]
    assert sum(found) >= 17 and all(found[4:])


def test_a_session_whose_turns_are_read_goes_on_as_full_prefill_would(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known text stands where it begins. Nobody asked for full prefill: it was sooner for the first turn."""
    expected = Expected(0.1, 9.0, 1.0)
    monkeypatch.setattr(
        PromptCosts, "cost", lambda *given, **more: PromptCost(expected, expected, frozenset(), 8, "lmdb")
    )
    monkeypatch.setattr(inside.core.pipeline, "_costs", PromptCosts(SPEEDS))
    texts = "\n\n".join(str(each["text"]) for each in DOCUMENTS)
    said: list[Json] = [{"role": "user", "content": f"{texts}\n\nRead this."}]
    computed = list[int]()
    with inside.client() as client:
        for question in QUESTIONS[:3]:
            said.append({"role": "user", "content": question})
            body = {"model": "default", "messages": said, "max_tokens": 3, "temperature": 0}
            answer = good(client.post("/v1/chat/completions", json={**body, "session": "s"}))
            plain = good(
                client.post("/v1/chat/completions", json={**body, "blend": {"policy": "full"}, "session": "s"})
            )
            usage = answer["usage"]
            assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert (answer["choices"], answer["kvweave"]["report"]["policy"]) == (plain["choices"], "full")
            computed.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
            said.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            assert (answer["kvweave"]["report"]["expected_ms"] == {}) == (len(computed) > 1)  # nothing was weighed
        said.append({"role": "user", "content": str(DOCUMENTS[0]["text"])})
        brought = good(client.post("/v1/chat/completions", json={**body, "messages": said, "session": "s"}))
    assert max(computed[1:]) < 50 < computed[0]
    assert brought["kvweave"]["report"]["expected_ms"], "what a new passage costs is weighed again"
