"""vLLM goes on with fused prompts as kvweave itself does, and nobody else is served from them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.access.principal import Role
from tests.service.serving import Json, good, put_in, wait_for
from tests.vllm.conftest import ANSWER, COUNT, Pair, loaded, question, text_of

pytestmark = pytest.mark.long
EXAMPLE = Path(__file__).parents[2] / "clients/vllm-kvweave/examples/openai_client.py"
POLICIES = ("full", "reuse", "hybrid")


def test_vllm_says_what_kvweave_says_by_every_policy(pair: Pair) -> None:
    """Exact requests on the same ids come between, and get the exact answer each time."""
    different = dict.fromkeys(POLICIES, 0)
    apart: list[tuple[int, str, str, str]] = []
    for number in range(COUNT):
        exact = ""
        for policy in POLICIES:
            own, fused = pair.own(number, policy)["answer"], pair.fuse(number, policy)
            if policy == "full":
                exact = pair.exact(fused)
            completion = pair.complete(fused)
            assert loaded(completion) == len(fused["ids"]) - 1
            said = text_of(completion)
            apart += [(number, policy, own, said)] if said.strip() != own.strip() else []
            different[policy] += said != exact
            assert pair.exact(fused) == exact
    wait_for(lambda: len(pair.inside.core.handoffs) == 0, "all handles are released")
    print(f"{COUNT} questions; answers other than the exact one: {different}; other than kvweave's: {apart}")
    assert apart == []
    assert different["full"] == 0
    assert different["reuse"] > COUNT / 10, "plain reuse answers otherwise: what vLLM goes on with is what was fused"


def deceived(pair: Pair) -> tuple[Json, Json, str]:
    """A question where plain reuse misleads, put in place twice, and its exact answer."""
    for number in range(COUNT):
        fused = pair.fuse(number, "reuse")
        exact = pair.exact(fused)
        if text_of(pair.complete(fused)) != exact:
            return pair.fuse(number, "reuse"), pair.fuse(number, "reuse"), exact
    raise AssertionError("no question is answered otherwise by plain reuse")


def test_only_the_salt_leads_to_what_was_fused(pair: Pair) -> None:
    one, other, exact = deceived(pair)
    misled = text_of(pair.complete(one))
    assert misled != exact
    for salt in (None, "", "guessed", other["salt"], one["salt"][:-1]):
        wanted = {"cache_salt": salt or None, "kv_transfer_params": None}
        completion = pair.complete(one, **wanted)
        assert text_of(completion) == exact
    unsalted = pair.complete(other, cache_salt=None)
    assert (text_of(unsalted), loaded(unsalted)) == (exact, 0), "a handle without a salt is not taken over"
    assert pair.exact(one) == exact


def test_a_session_keeps_its_history_in_vllm_for_nobody_else(pair: Pair) -> None:
    number = next(
        each for each in range(COUNT) if text_of(pair.complete(fused := pair.fuse(each, "reuse"))) != pair.exact(fused)
    )
    stranger = {"Authorization": f"Bearer {pair.inside.core.control.create_key('default', Role.ADMIN)[1]}"}

    def turn(session: str, policy: str = "reuse", headers: dict[str, str] | None = None) -> tuple[str, int, Json]:
        body = {**question(number, policy), "session": session}
        fused = good(pair.kvweave.post("/v1/fuse", json=body, headers=headers))
        completion = pair.complete(fused)
        return text_of(completion), len(fused["ids"]) - 1 - loaded(completion), fused

    misled, kept, fused = turn("mine")
    exact = pair.exact(fused)
    assert kept == 0 and misled != exact
    again, kept, _ = turn("mine")
    assert again == misled and kept > 0, "vLLM has the beginning still"
    others = [turn("other"), turn("mine", headers=stranger), turn("mine", "full")]
    assert [kept for _, kept, _ in others] == [0, 0, 0]
    assert [text for text, *_ in others] == [misled, misled, exact]
    asked = {**question(number, "full"), "session": "mine", "sampling": {"max_tokens": ANSWER}}
    assert good(pair.kvweave.post("/v1/query", json=asked))["answer"].strip() == exact.strip()
    assert pair.exact(fused) == exact


def test_what_is_wrong_is_computed_by_vllm(pair: Pair) -> None:
    one, other, exact = deceived(pair)
    params = one["kv_transfer_params"]["kvweave"]
    foreign = next(each for number in (0, 1) if (each := pair.fuse(number, "full"))["ids"] != one["ids"])
    wrong = [
        {**params, "handle": "nothing"},
        {**params, "digest": "0" * 64},
        {**params, "tokens": params["tokens"] - 1},
        {**params, "handle": foreign["handle"]},
        {"handle": params["handle"]},
    ]
    for number, each in enumerate(wrong):
        completion = pair.complete(one, kv_transfer_params={"kvweave": each}, cache_salt=f"wrong {number}")
        assert (text_of(completion), loaded(completion)) == (exact, 0)
    assert pair.kvweave.delete(f"/v1/handoffs/{other['handle']}").status_code == 204
    completion = pair.complete(other)
    assert (text_of(completion), loaded(completion)) == (exact, 0), "a released handle"


def test_n_and_prompt_logprobs_have_right_answers(pair: Pair) -> None:
    one, other, exact = deceived(pair)
    two = pair.complete(one, n=2, temperature=0.7, seed=3)
    assert len(two["choices"]) == 2
    completion = pair.complete(other, prompt_logprobs=1)
    assert (text_of(completion), loaded(completion)) == (exact, 0), "vLLM skips every cache then"


def test_many_at_once_lose_nothing(pair: Pair) -> None:
    handoffs = pair.inside.core.handoffs
    held = len(handoffs)
    wanted = [(number, policy) for number in range(min(COUNT, 8)) for policy in POLICIES]
    alone = [pair.own(*each)["answer"].strip() for each in wanted]
    fused = [pair.fuse(*each) for each in wanted]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(pair.complete, fused))
    assert [text_of(each).strip() for each in together] == alone
    assert [loaded(each) for each in together] == [len(each["ids"]) - 1 for each in fused]
    assert set(pair.running().values()) == {0.0}
    wait_for(lambda: len(handoffs) <= held, "all handles are released")


def test_the_example_answers(pair: Pair) -> None:
    environment = {
        **os.environ,
        "KVWEAVE_BASE_URL": pair.inside.base_url,
        "KVWEAVE_API_KEY": pair.inside.key,
        "VLLM_BASE_URL": f"{pair.server.base_url}/v1",
    }
    put_in(pair.kvweave, [{"id": "letter", "title": "Letter 40", "text": "Halio lives in K7. Halio keeps a badger."}])
    command = [sys.executable, str(EXAMPLE), "Which animal does Halio keep?"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.startswith("badger") and "Letter 40" in ended.stdout
