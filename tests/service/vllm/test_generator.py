"""A service whose answers vLLM generates: what it is asked, what comes back, and what becomes of everything wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from blend.engine.engine import EngineRequest, Event, Ticket
from blend.fuse.record_loader import DamagedRecord, RecordLoader
from service.access.principal import Role
from service.settings import GeneratorAddress
from service.vllm.handoff_receiver import HandoffReceiver
from service.vllm.vllm_engine import VllmEngine
from tests.service.serving import (
    Json,
    ask,
    events_of,
    good,
    put_in,
    wait_for,
)
from tests.service.vllm.conftest import LETTERS, QUESTION, REUSE, Pair, chatted, paired
from tests.service.vllm.scripted_vllm import VllmScript

LAST = 11  # layer of the built-in model


def same(answer: Json) -> Json:
    """What does not depend on who generates."""
    chunks = [{**each, "bytes": 0} for each in answer["report"]["chunks"]]
    shown = {name: answer[name] for name in ("answer", "finish_reason", "sources", "usage")}
    return {**shown, "chunks": chunks, "policy": answer["report"]["policy"]}


@pytest.mark.parametrize("policy", ["full", "prefix", "reuse", "hybrid"])
def test_an_answer_is_what_it_is_without_a_generator(pair: Pair, own: httpx.Client, policy: str) -> None:
    sampling = {"max_tokens": 6}
    here, there = (ask(each, QUESTION, blend={"policy": policy}, sampling=sampling) for each in (own, pair.client))
    assert same(there) == same(here)
    [body] = pair.script.bodies
    assert ("kv_transfer_params" in body) == (policy != "full")
    assert len(pair.inside.core.handoffs) == 0


def test_streams_stops_and_probabilities_are_what_they_are_without_one(pair: Pair, own: httpx.Client) -> None:
    chat = {"model": "default", "messages": [{"role": "user", "content": f"{LETTERS[0]['text']}\n\n{QUESTION}"}]}
    chat |= {"logprobs": True, "top_logprobs": 2, "max_tokens": 5}
    here, there = (good(each.post("/v1/chat/completions", json=chat)) for each in (own, pair.client))
    assert there["choices"][0]["message"] == here["choices"][0]["message"]
    assert there["usage"] == here["usage"]
    for mine, theirs in zip(
        here["choices"][0]["logprobs"]["content"], there["choices"][0]["logprobs"]["content"], strict=True
    ):
        assert theirs["token"] == mine["token"] and theirs["logprob"] == pytest.approx(mine["logprob"], abs=1e-3)
        assert [each["token"] for each in theirs["top_logprobs"]] == [each["token"] for each in mine["top_logprobs"]]
    stop = {"sampling": {"stop": "adg", "max_tokens": 9}}
    assert same(ask(pair.client, QUESTION, **stop)) == same(ask(own, QUESTION, **stop))
    names: list[list[str]] = []
    for each in (own, pair.client):
        with each.stream("POST", "/v1/query", json={"question": QUESTION, "stream": True}) as response:
            names.append([name for name, _ in events_of(response)])
    assert names[0] == names[1]


def test_salts_are_secret_and_of_one_request_or_one_key(pair: Pair) -> None:
    key = pair.inside.core.control.create_key("acme", Role.ADMIN)[1]
    with pair.inside.client(key) as other:
        put_in(other, LETTERS)
        for policy in ("reuse", "reuse", "full", "full"):
            for client in (pair.client, other):
                ask(client, QUESTION, blend={"policy": policy})
    salts = [(("kv_transfer_params" in body), body["cache_salt"]) for body in pair.script.bodies]
    handed = [salt for is_handed, salt in salts if is_handed]
    exact = [salt for is_handed, salt in salts if not is_handed]
    assert len(set(handed)) == 4 and min(map(len, handed)) >= 32
    assert exact[0] == exact[2] != exact[1] == exact[3] and not {*exact} & {*handed}
    assert min(map(len, exact)) >= 32


def test_a_session_shares_a_salt_with_itself_alone(pair: Pair) -> None:
    control = pair.inside.core.control
    keys = [control.create_key("default", Role.READ)[1] for _ in range(2)]
    more = {"blend": REUSE, "session": "s"}
    others = [
        {},
        {**more, "session": "t"},
        {**more, "blend": {"policy": "heads", "ratio": 0.1}},
        {**more, "blend": {"policy": "full"}},
        {"blend": {"policy": "full"}},
    ]
    for wanted in (more, more, *others):
        ask(pair.client, QUESTION, **{"blend": REUSE, **wanted})
    chat = {"model": "default", "messages": [{"role": "user", "content": QUESTION}], "collection": "default"}
    good(pair.client.post("/v1/chat/completions", json={**chat, **more}))
    for key in keys:
        with pair.inside.client(key) as client:
            ask(client, QUESTION, **more)
    fused = [good(pair.client.post("/v1/fuse", json={"question": QUESTION, **more})) for _ in range(2)]
    assert fused[1]["usage"]["prompt_tokens"] - fused[1]["usage"]["reused_tokens"] == 1
    handed = [each["salt"] for each in fused]
    salts = [body["cache_salt"] for body in pair.script.bodies]
    mine, again, *different = salts
    assert mine == again == different.pop(5) == handed[0] == handed[1]
    assert different[3] == different[4], "exact prompts share their key's salt, whatever the session"
    assert len({mine, *different}) == len(different), "nobody else has it"
    assert min(map(len, salts)) >= 32

    assert pair.client.delete("/v1/sessions/s").status_code == 204
    for wanted in (more, {**more, "session": "t"}, {**more, "session_keep_s": 0}, more):
        ask(pair.client, QUESTION, **wanted)
    behind, other, last, anew = (body["cache_salt"] for body in pair.script.bodies[-4:])
    assert other in different and behind == last
    assert len({*salts, behind, anew}) == len({*salts}) + 2, "nobody goes on with what vLLM has of an ended session"
    pair.inside.core.handoffs.void("default")


def test_rules_over_tokens_are_passed_on_where_vllm_has_the_same(pair: Pair, own: httpx.Client) -> None:
    rules: Json = {"logit_bias": {"5": -100.0, "7": 1.5}, "frequency_penalty": 0.5, "presence_penalty": -0.25}
    rules |= {"top_k": 9, "min_p": 0.25, "repetition_penalty": 1.5}
    chat = {"model": "default", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 3, "temperature": 0}
    good(pair.client.post("/v1/chat/completions", json={**chat, **rules}))
    [body] = pair.script.bodies
    assert {name: body[name] for name in rules} == rules
    local = [{"logprobs": True}, {"response_format": {"type": "json_object"}}]
    for each in local:  # vLLM would tell other probabilities, or has no such grammar
        found = [good(one.post("/v1/chat/completions", json={**chat, **rules, **each})) for one in (pair.client, own)]
        assert found[0]["choices"] == found[1]["choices"]
    unknown = pair.client.post("/v1/chat/completions", json={**chat, "logit_bias": {"999999": 1}})
    assert unknown.status_code == 400 and "no token 999999" in unknown.text
    assert len(pair.script.bodies) == 1


def test_a_grammar_is_obeyed_by_our_own_engine(pair: Pair) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["heron"]}}}
    answer = ask(pair.client, QUESTION, sampling={"response_format": schema, "max_tokens": 40})
    assert answer["answer"] == '"heron"'
    assert pair.script.bodies == []


def test_what_vllm_did_not_fetch_is_not_reported_as_reused(pair: Pair, own: httpx.Client) -> None:
    pair.script.forgets = True
    answer = ask(pair.client, QUESTION, blend=REUSE)
    assert answer["answer"] == ask(own, QUESTION, blend={"policy": "full"})["answer"]
    assert answer["usage"]["reused_tokens"] == 0
    assert {each["miss_reason"] for each in answer["report"]["chunks"]} == {"not fetched"}
    assert len(pair.inside.core.handoffs) == 0


def test_vllm_fetches_the_first_layers_while_the_last_are_computed(pair: Pair, own: httpx.Client) -> None:
    final = HandoffReceiver.final
    seen: list[set[int]] = []

    def slow(receiver: HandoffReceiver, layer: int) -> None:
        if layer == LAST:
            wait_for(lambda: receiver.lease.fetched == {*range(LAST)}, "the others were fetched")
            seen.append({*receiver.lease.fetched})
        final(receiver, layer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HandoffReceiver, "final", slow)
        answer = ask(pair.client, QUESTION, blend=REUSE)
    assert seen == [{*range(LAST)}]
    assert same(answer) == same(ask(own, QUESTION, blend=REUSE))


def test_a_fuse_that_fails_half_way_voids_its_handle_and_vllm_computes(pair: Pair, own: httpx.Client) -> None:
    final = HandoffReceiver.final

    def failing(receiver: HandoffReceiver, layer: int) -> None:
        if layer == LAST:
            raise RuntimeError("half way")
        final(receiver, layer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HandoffReceiver, "final", failing)
        answer = ask(pair.client, QUESTION, blend=REUSE)
    assert answer["answer"] == ask(own, QUESTION, blend={"policy": "full"})["answer"]
    assert answer["usage"]["reused_tokens"] == 0
    assert len(pair.inside.core.handoffs) == 0


def test_a_fuse_that_begins_anew_takes_back_what_it_gave(pair: Pair, own: httpx.Client) -> None:
    loaded, torn = RecordLoader.wait, list[int]()

    def tearing(loader: RecordLoader, layer: int) -> None:
        loaded(loader, layer)
        if layer == LAST and not torn:
            torn.append(layer)
            wait_for(lambda: bool(pair.script.bodies), "vLLM was asked")
            span = next(iter(loader._wanted[layer].values()))  # pyright: ignore[reportPrivateUsage]
            raise DamagedRecord(span, "torn")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordLoader, "wait", tearing)
        answer = ask(pair.client, QUESTION, blend=REUSE)
    assert torn and answer["answer"] == ask(own, QUESTION, blend={"policy": "full"})["answer"]
    assert answer["usage"]["reused_tokens"] == 0
    assert len(pair.inside.core.handoffs) == 0


def test_a_document_deleted_behind_its_look_up_is_in_no_handle(pair: Pair) -> None:
    """Whatever stands between both, here the hand-in."""
    submit = VllmEngine.submit

    def late(engine: VllmEngine, request: EngineRequest, listen: Callable[[Event], None]) -> Ticket:
        pair.inside.core.handoffs.void("default")
        return submit(engine, request, listen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VllmEngine, "submit", late)
        answer = ask(pair.client, QUESTION, blend=REUSE)
    assert answer["usage"]["reused_tokens"] == 0 and len(pair.inside.core.handoffs) == 0


def test_where_no_prompt_finds_room_vllm_computes(pair: Pair) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.inside.core.handoffs, "_limit_bytes", 10)
        answer = ask(pair.client, QUESTION, blend=REUSE)
    assert answer["usage"]["reused_tokens"] == 0 and "badger" in answer["answer"]
    assert "kv_transfer_params" not in pair.script.bodies[-1]


def test_a_client_that_leaves_frees_all(pair: Pair) -> None:
    pair.script.gate.clear()
    body = {"question": QUESTION, "blend": REUSE, "sampling": {"max_tokens": 2000}}
    with pytest.raises(httpx.ReadTimeout):
        pair.client.post("/v1/query", json=body, timeout=1.0)
    wait_for(lambda: len(pair.inside.core.handoffs) == 0, "the handle is gone")
    pair.script.gate.set()
    wait_for(lambda: pair.script.open == 0, "vLLM generates no more")
    wait_for(lambda: all(each.running == 0 for each in pair.engine.load().values()), "nothing runs")


def test_a_deadline_holds(pair: Pair) -> None:
    pair.script.gate.clear()
    headers = {"X-Request-Timeout": "0.5"}
    answer = pair.client.post("/v1/query", json={"question": QUESTION}, headers=headers)
    assert answer.status_code == 503 and "in the time" in answer.json()["detail"]


def test_an_answer_that_breaks_off_is_an_error_and_never_half_of_one(pair: Pair) -> None:
    pair.script.breaks_at = 1
    answer = pair.client.post("/v1/query", json={"question": QUESTION})
    assert answer.status_code == 503 and "broke off" in answer.json()["detail"]
    assert len(pair.inside.core.handoffs) == 0


def test_a_prompt_over_vllms_window_says_so(tmp_path: Path) -> None:
    with paired(tmp_path, VllmScript(kvweave="", window=200)) as pair:
        wait_for(lambda: pair.client.post("/v1/query", json={"question": QUESTION}).status_code != 503, "vLLM is used")
        answer = pair.client.post("/v1/query", json={"question": "Who? " * 300, "blend": {"policy": "full"}})
        assert answer.status_code == 422 and "the generator's window 200" in answer.json()["detail"]


DIFFERING = {
    "tokenizer": {"shifts_ids": True},
    "dtype or weights": {"noise": 0.5},
    "connector: it was started without": {"kvweave": None},
    "connector: it could not fetch": {"forgets": True},
    "model: it has a, b": {"models": ("a", "b")},
}


@pytest.mark.parametrize("field", DIFFERING)
def test_a_vllm_that_differs_is_not_used_and_the_field_is_named(pair: Pair, field: str) -> None:
    pair.becomes(**DIFFERING[field])
    wait_for(lambda: field in pair.problem(), "the field is named")


def test_where_vllm_is_away_the_operator_chooses(tmp_path: Path, pair: Pair) -> None:
    pair.script.status = 500
    answer = pair.client.post("/v1/query", json={"question": QUESTION})
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert "it answers 500" in answer.json()["detail"]
    address = "http://127.0.0.1:{port}/v1?fallback=own"
    with paired(tmp_path, VllmScript(kvweave=""), address=address) as other:
        other.agreed()
        for fault in ({"status": 500}, {"status": 200, "noise": 0.5}):
            for name, value in fault.items():
                setattr(other.script, name, value)
            other.engine._agreed = None  # as behind a restart
            answer = ask(other.client, QUESTION)
            assert "badger" in answer["answer"]
            assert other.script.bodies == [] or "logprobs" in other.script.bodies[-1]
        other.script.noise = 0.0
        end = time.monotonic() + 30
        while not any("stream" in each for each in other.script.bodies):
            assert time.monotonic() < end
            ask(other.client, QUESTION)
        other.script.status = 500
        answer = other.client.post("/v1/chat/completions", json=chatted(QUESTION, n=2))
        assert answer.status_code == 503, "our own engine gives one"


def test_an_address_is_whole() -> None:
    given = GeneratorAddress.parse("https://key:s%40lt@vllm:8000/v1/?fallback=own#big")
    assert given == GeneratorAddress("https://vllm:8000/v1", "s@lt", "big", has_fallback=True)
    assert "s@lt" not in repr(given)
    for wrong in (
        "vllm:8000/v1",
        "http://vllm:8000",
        "http://vllm/v1?fallback=none",
        "http://user@vllm/v1",
        "http:///v1",
    ):
        with pytest.raises(ValueError, match="address is http://host:port/v1"):
            GeneratorAddress.parse(wrong)
