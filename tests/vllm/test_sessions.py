"""Turns of one conversation, with and without a session: the same answers, and what vLLM fetches and computes."""

import json
import statistics
import time

import pytest

from tests.service.serving import Json
from tests.vllm.conftest import Pair, cases

pytestmark = pytest.mark.long
CONVERSATIONS, TURNS, PASSAGES = 4, 5, 12
COUNTERS: tuple[str, ...] = ("prompt_tokens_total", "prefix_cache_hits_total", "external_prefix_cache_hits_total")


def counted(pair: Pair) -> dict[str, float]:
    """Tokens since vLLM's start: of prompts, found in its cache, and fetched."""
    found = dict.fromkeys(COUNTERS, 0.0)
    for line in pair.vllm.get("/metrics").text.splitlines():
        name = line.partition("{")[0].removeprefix("vllm:")
        if name in found:
            found[name] += float(line.rpartition(" ")[2])
    return found


def turn(pair: Pair, body: Json) -> tuple[str, float]:
    """An answer's text, and the seconds until its first token."""
    begun, first, text = time.perf_counter(), 0.0, ""
    with pair.kvweave.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        for line in response.iter_lines():
            for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
                if choice["delta"].get("content"):
                    first = first or time.perf_counter() - begun
                    text += choice["delta"]["content"]
    return text, first


def conversation(pair: Pair, number: int, session: str) -> list[tuple[str, float, dict[str, float]]]:
    """Its turns: texts, first tokens and what vLLM counted. The passages stand in the first message."""
    texts = [each.text for case in cases()[number : number + PASSAGES] for each in case.passages][:PASSAGES]
    messages: list[Json] = []
    found: list[tuple[str, float, dict[str, float]]] = []
    for at in range(TURNS):
        question = cases()[number + at].question
        messages.append({"role": "user", "content": "\n\n".join([*(texts if at == 0 else []), question])})
        body = {"model": "default", "messages": messages, "blend": {"policy": "reuse"}, "max_tokens": 8}
        before = counted(pair)
        text, first = turn(pair, {**body, "temperature": 0, **({"session": session} if session else {})})
        after = counted(pair)
        found.append((text, first, {name: after[name] - before[name] for name in COUNTERS}))
        messages.append({"role": "assistant", "content": text.strip() or "unknown"})
    return found


def test_a_session_spares_its_later_turns_the_way_of_their_history(pair: Pair) -> None:
    turns: dict[str, list[tuple[float, dict[str, float]]]] = {"without": [], "with": []}
    for number in range(CONVERSATIONS):
        conversation(pair, number, "")  # the chunks are in memory from now on, for both
        plain, shared = conversation(pair, number, ""), conversation(pair, number, f"s{number}")
        assert [text for text, *_ in shared] == [text for text, *_ in plain]
        for name, told in (("without", plain), ("with", shared)):
            turns[name] += [(first, counts) for _, first, counts in told[1:]]
    fetched = dict[str, float]()
    for name, told in turns.items():
        prompt, cached, fetched[name] = (sum(counts[each] for _, counts in told) / len(told) for each in COUNTERS)
        first = 1000 * statistics.median(seconds for seconds, _ in told)
        computed = prompt - cached - fetched[name]
        print(
            f"{name} session: {prompt:.0f} tokens, {cached:.0f} in vLLM's cache, {fetched[name]:.0f} fetched, "
            f"{computed:.1f} computed by vLLM; first token {first:.0f} ms"
        )
    assert fetched["with"] < fetched["without"] / 2
