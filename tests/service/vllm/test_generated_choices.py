"""What vLLM does and our own engine does not: several answers of one prompt, and structured outputs."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.service.serving import (
    good,
    wait_for,
)
from tests.service.vllm.conftest import QUESTION, REUSE, Pair, chatted


def test_several_answers_come_of_one_prompt(pair: Pair, own: httpx.Client) -> None:
    """Each is what the model goes on with behind its own first token; the prompt is handed over and counted once."""
    body = chatted(QUESTION, blend=REUSE, max_tokens=6, logprobs=True, temperature=1.0)
    for _ in range(2):  # the second one has the first one's beginning
        alone = good(pair.client.post("/v1/chat/completions", json=body))
    several = good(pair.client.post("/v1/chat/completions", json={**body, "n": 3}))
    assert [each["index"] for each in several["choices"]] == [0, 1, 2]
    assert several["choices"][0] == alone["choices"][0]
    assert len({each["logprobs"]["content"][0]["token"] for each in several["choices"]}) == 3
    assert several["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert several["usage"]["prompt_tokens_details"] == alone["usage"]["prompt_tokens_details"]
    told = [len(each["logprobs"]["content"]) + (each["finish_reason"] == "stop") for each in several["choices"]]
    assert several["usage"]["completion_tokens"] == sum(told)
    assert [body["n"] for body in pair.script.bodies] == [1, 1, 3]
    assert len(pair.inside.core.handoffs) == 0
    refused = own.post("/v1/chat/completions", json={**body, "n": 2})
    assert refused.status_code == 400 and "one answer for a request" in refused.text


def test_several_answers_are_streamed_each_to_its_own_end(pair: Pair) -> None:
    body = chatted(QUESTION, blend=REUSE, max_tokens=6, n=3)
    whole = good(pair.client.post("/v1/chat/completions", json=body))
    first = whole["choices"][0]["message"]["content"].strip()
    body |= {"stop": first[1:3]}  # ends one early, while the others go on
    whole = good(pair.client.post("/v1/chat/completions", json=body))
    assert whole["choices"][0]["message"]["content"].strip() == first[:1]
    texts, ends = dict.fromkeys(range(3), ""), dict[int, str]()
    with pair.client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    for choice in (each for line in lines for each in json.loads(line)["choices"]):
        assert choice["index"] not in ends, "nothing follows an answer's end"
        texts[choice["index"]] += choice["delta"].get("content") or ""
        if choice["finish_reason"]:
            ends[choice["index"]] = choice["finish_reason"]
    assert texts == {each["index"]: each["message"]["content"] for each in whole["choices"]}
    assert ends == {each["index"]: each["finish_reason"] for each in whole["choices"]}


def test_clients_that_leave_several_answers_free_all(pair: Pair) -> None:
    pair.script.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        pair.client.post("/v1/chat/completions", json=chatted(QUESTION, n=3, blend=REUSE, max_tokens=900), timeout=1.0)
    wait_for(lambda: len(pair.inside.core.handoffs) == 0, "the handle is gone")
    pair.script.gate.set()
    wait_for(lambda: pair.script.open == 0, "vLLM generates no more")


def test_structured_outputs_are_vllms_and_so_is_what_it_refuses(pair: Pair, own: httpx.Client) -> None:
    body = chatted(QUESTION, blend=REUSE, structured_outputs={"choice": ["pony", "badger"]})
    answer = good(pair.client.post("/v1/chat/completions", json=body))["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("badger", "stop")
    [sent] = pair.script.bodies
    assert sent["structured_outputs"] == {"choice": ["pony", "badger"]} and "kv_transfer_params" in sent
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["heron"]}}}
    for given, becomes in ((schema, {"enum": ["heron"]}), ({"type": "json_object"}, {"type": "object"})):
        good(pair.client.post("/v1/chat/completions", json=chatted(QUESTION, n=2, response_format=given)))
        assert pair.script.bodies[-1]["structured_outputs"] == {"json": becomes}
    wrong = pair.client.post("/v1/chat/completions", json=chatted(QUESTION, structured_outputs={"regex": "("}))
    assert wrong.status_code == 400 and "refuses the request: no such expression" in wrong.text
    good(pair.client.post("/v1/chat/completions", json=chatted(QUESTION)))  # it is still there for others
    assert not any("prompt" in each and each["max_tokens"] == 1 for each in pair.script.bodies), "not compared anew"
    alone = own.post("/v1/chat/completions", json=body)
    assert alone.status_code == 400 and "only vLLM obeys these" in alone.text
    for both in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a", "choice": ["a"]}}):
        assert pair.client.post("/v1/chat/completions", json={**body, **both}).status_code == 400


def test_what_only_vllm_does_waits_for_it(pair: Pair) -> None:
    pair.script.status = 500
    for more in ({"n": 2}, {"structured_outputs": {"regex": "a+"}}):
        assert pair.client.post("/v1/chat/completions", json=chatted(QUESTION, **more)).status_code == 503
