"""kvweave's own endpoints while the real vLLM generates: what they say, many at once, and when vLLM is away."""

import json
import re
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.service.serving import Json, events_of, good, wait_for
from tests.vllm.conftest import COUNT, Pair, asked, question

pytestmark = pytest.mark.long
POLICIES = ("full", "reuse", "hybrid")


def streamed(client: httpx.Client, wanted: Json) -> tuple[str, float]:
    """An answer's text, and the seconds to its first token."""
    begun, first, text = time.perf_counter(), 0.0, ""
    with client.stream("POST", "/v1/query", json={**wanted, "stream": True}) as response:
        for name, event in events_of(response):
            if name == "token":
                first = first or time.perf_counter() - begun
                text += event["text"]
            assert name != "error", event
    assert name == "done"
    return text, first


def chunks(answer: Json) -> list[tuple[int, int, str | None]]:
    """What became of each chunk."""
    return [(each["tokens"], each["recomputed"], each["miss_reason"]) for each in answer["report"]["chunks"]]


def test_answers_are_those_of_kvweaves_own_engine(pair: Pair) -> None:
    apart: list[tuple[int, str, str, str]] = []
    for number in range(COUNT):
        for policy in POLICIES:
            own, generated = pair.own(number, policy), pair.generated(number, policy)
            assert chunks(generated) == chunks(own)
            assert generated["sources"] == own["sources"]
            if generated["answer"] != own["answer"]:
                apart.append((number, policy, own["answer"], generated["answer"]))
    print(f"{COUNT} questions by {POLICIES}; apart: {apart}")
    assert apart == []
    assert len(pair.inside.core.handoffs) == 0


def test_rules_over_tokens_give_what_our_own_engine_gives(pair: Pair) -> None:
    for number in range(min(COUNT, 8)):
        documents = question(number, "hybrid")["documents"]
        messages = [{"role": "user", "content": question(number, "hybrid")["question"]}]
        chat: Json = {"model": "default", "messages": messages, "documents": documents, "temperature": 0}
        chat |= {"max_tokens": 24, "blend": {"policy": "hybrid"}, "frequency_penalty": 1.5, "presence_penalty": -0.5}
        plain = good(pair.alone.post("/v1/chat/completions", json=chat))["choices"][0]["message"]["content"]
        first = pair.inside.core.model.prompt_builder.tokenizer.encode_text(plain.strip())[0]
        chat["logit_bias"] = {str(first): -100}
        own, generated = (good(each.post("/v1/chat/completions", json=chat)) for each in (pair.alone, pair.kvweave))
        assert generated["choices"] == own["choices"]
        assert own["choices"][0]["message"]["content"] != plain


def chat(number: int, policy: str, **more: object) -> Json:
    """The question as a chat with its passages."""
    asked = question(number, policy)
    messages = [{"role": "user", "content": asked["question"]}]
    body: Json = {"model": "default", "messages": messages, "documents": asked["documents"], "blend": asked["blend"]}
    return {**body, "max_tokens": 24, **more}


def test_several_answers_share_one_fused_prompt(pair: Pair) -> None:
    """Nearly greedy, all answers are the greedy one: that of the fused prompt, where plain reuse misleads."""
    misled = 0
    for number in range(min(COUNT, 20)):
        own = good(pair.alone.post("/v1/chat/completions", json=chat(number, "reuse", temperature=0)))
        exact = good(pair.kvweave.post("/v1/chat/completions", json=chat(number, "full", temperature=0)))
        several = chat(number, "reuse", temperature=1e-4, n=4, logprobs=True)
        found = good(pair.kvweave.post("/v1/chat/completions", json=several))
        texts = [each["message"]["content"] for each in found["choices"]]
        assert texts == [own["choices"][0]["message"]["content"]] * 4
        assert {each["finish_reason"] for each in found["choices"]} == {own["choices"][0]["finish_reason"]}
        assert found["usage"]["completion_tokens"] == 4 * own["usage"]["completion_tokens"]
        assert found["usage"]["prompt_tokens"] == own["usage"]["prompt_tokens"]
        assert {each["miss_reason"] for each in found["kvweave"]["report"]["chunks"]} == {None}
        misled += texts[0] != exact["choices"][0]["message"]["content"]
    assert misled, "what all of them go on with is what was fused"
    assert len(pair.inside.core.handoffs) == 0
    wild = chat(0, "hybrid", temperature=2.0, n=4, seed=5, stream=True, max_tokens=40)
    ends: list[int] = []
    with pair.kvweave.stream("POST", "/v1/chat/completions", json=wild) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                ends += [each["index"] for each in json.loads(line[6:])["choices"] if each["finish_reason"]]
    assert sorted(ends) == [0, 1, 2, 3]


STRUCTURED = {
    "choice": (["a heron", "a yak"], "a heron|a yak"),
    "regex": ("K[0-9]{2}", "K[0-9]{2}"),
    "json": ({"enum": ["heron", "yak"]}, '"(heron|yak)"'),  # where white space is free, the tiny model writes it alone
    "grammar": ('root ::= "so " ("be" | "it")', "so (be|it)"),
}


@pytest.mark.parametrize("kind", STRUCTURED)
def test_structured_outputs_are_obeyed(pair: Pair, kind: str) -> None:
    given, pattern = STRUCTURED[kind]
    for n in (1, 2):
        wanted = chat(0, "hybrid", structured_outputs={kind: given}, n=n, temperature=0.5, max_tokens=200)
        answer = good(pair.kvweave.post("/v1/chat/completions", json=wanted))
        for each in answer["choices"]:
            assert re.fullmatch(pattern, each["message"]["content"].strip(), re.DOTALL), each
    assert len(pair.inside.core.handoffs) == 0


def test_what_vllm_refuses_is_the_requests_own_fault(pair: Pair) -> None:
    wrong = [
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"grammar": "root ::= nothing"}},
        {"structured_outputs": {"json": {"type": "nonsense"}}},
        {"n": 2, "temperature": 0},
    ]
    for more in wrong:
        answer = pair.kvweave.post("/v1/chat/completions", json=chat(0, "reuse", **more))
        print(more, answer.status_code, answer.text)
        assert answer.status_code == 400 and "the generator refuses" in answer.text
        assert pair.kvweave.post("/v1/chat/completions", json=chat(0, "reuse")).status_code == 200
    assert len(pair.inside.core.handoffs) == 0


def test_many_streams_at_once_lose_none(pair: Pair) -> None:
    wanted = [(number % min(COUNT, 40), POLICIES[number % 3]) for number in range(500)]
    alone = {each: pair.own(*each)["answer"] for each in {*wanted}}
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda each: streamed(pair.kvweave, asked(*each)), wanted))
    assert [text for text, _ in found] == [alone[each] for each in wanted]
    wait_for(lambda: len(pair.inside.core.handoffs) == 0, "all handles are gone")
    wait_for(lambda: set(pair.running().values()) == {0.0}, "vLLM holds nothing")
    seconds = sorted(first for _, first in found)
    print(f"500 at 16 at once: first token p50 {statistics.median(seconds):.3f} s, p95 {seconds[474]:.3f} s")


def test_clients_that_leave_free_all(pair: Pair) -> None:
    for policy in POLICIES:
        wanted = {**asked(0, policy), "sampling": {"max_tokens": 2000, "temperature": 1.9}, "stream": True}
        with pair.kvweave.stream("POST", "/v1/query", json=wanted) as response:
            next(events_of(response))
    wait_for(lambda: len(pair.inside.core.handoffs) == 0, "all handles are gone")
    wait_for(lambda: set(pair.running().values()) == {0.0}, "vLLM holds nothing")


def test_a_vllm_that_dies_and_comes_back_loses_no_answer_but_those_it_had(pair: Pair) -> None:
    pair.server.stop(signal.SIGKILL)
    answer = pair.kvweave.post("/v1/query", json=asked(0, "hybrid"))
    assert answer.status_code == 503 and "the generator cannot be used" in answer.json()["detail"]
    assert answer.headers["retry-after"]
    assert len(pair.inside.core.handoffs) == 0
    pair.server.start()
    wait_for(lambda: pair.kvweave.post("/v1/query", json=asked(0, "full")).is_success, "vLLM agrees again")
    assert pair.generated(0, "hybrid")["answer"] == pair.own(0, "hybrid")["answer"]
