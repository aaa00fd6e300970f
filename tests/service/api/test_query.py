"""Answers as JSON and as events, and errors before and behind the first event."""

import json
import math
from typing import get_args

import pytest
from fastapi.testclient import TestClient
from hypothesis import example, given
from hypothesis import strategies as st

from blend.engine.sampling import Sampling
from blend.errors import Busy, NotFinite, PromptError
from blend.fuse.policy import POLICIES
from service.api.questions import BlendIn
from service.api.rendering import server_timing
from service.errors import NotFound
from store.errors import StoreUnavailable
from tests.service.api.fakes import FakeCore


def events(text: str) -> list[tuple[str, dict[str, object]]]:
    found = [part.splitlines() for part in text.split("\n\n") if part]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in found]


def test_an_answer_has_its_sources_usage_and_report(operator: TestClient) -> None:
    operator.put("/v1/documents/a", json={"text": "Water boils.", "metadata": {"lang": "en"}})
    answer = operator.post("/v1/query", json={"question": "What boils?", "filter": {"lang": "en"}})
    told = answer.json()
    assert (told["answer"], told["finish_reason"]) == ("Hello world", "stop")
    [source] = told["sources"]
    assert (source["document_id"], source["start"], source["end"], source["page"]) == ("a", 0, 12, None)
    assert source["metadata"] == {"lang": "en"}
    assert told["usage"] == {"prompt_tokens": 40, "completion_tokens": 2, "reused_tokens": 30, "recomputed_tokens": 4}
    chunk = {"chunk_id": "c", "source": "ram", "miss_reason": None, "tokens": 10, "recomputed": 2, "bytes": 100}
    assert (told["report"]["chunks"], told["report"]["timings_ms"]) == ([chunk], {"total": 3.0})
    assert answer.headers["server-timing"] == "total;dur=3.0"


def test_a_stream_tells_the_same_in_order(operator: TestClient) -> None:
    operator.put("/v1/documents/a", json={"text": "Water boils."})
    answer = operator.post("/v1/query", json={"question": "What boils?", "stream": True})
    told = events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [name for name, _ in told] == ["retrieved", "loaded", "fused", "token", "token", "done"]
    assert "".join(str(content["text"]) for name, content in told if name == "token") == told[-1][1]["answer"]
    assert told[0][1]["id"] == told[-1][1]["id"]


@given(st.dictionaries(st.text(), st.floats()))
@example({"fuse": 1.25, "first token": 2.0, "endless": float("inf")})
def test_server_timing_is_a_header_whatever_is_in_it(timings: dict[str, float]) -> None:
    value = server_timing(timings)
    assert value.isascii() and value.isprintable()
    assert len(value.split(", ")) == max(1, sum(map(math.isfinite, timings.values())))


@pytest.mark.parametrize(
    ("path", "body", "field", "meant"),
    [
        ("query", {"question": "Who?", "max_tokens": 9}, "max_tokens", "sampling.max_tokens"),
        ("query", {"question": "Who?", "temprature": 0.5}, "temprature", "sampling.temperature"),
        ("query", {"question": "Who?", "sampling": {"max_token": 9}}, "sampling.max_token", "max_tokens"),
        ("query", {"question": "Who?", "documents": [{"txt": "Water"}]}, "documents.0.txt", "text"),
        ("search", {"query": "fox", "colection": "a"}, "colection", "collection"),
        ("search", {"query": "fox", "zzz": 1}, "zzz", ""),
    ],
)
def test_an_unknown_field_is_told_with_the_one_that_was_meant(
    operator: TestClient, path: str, body: dict[str, object], field: str, meant: str
) -> None:
    answer = operator.post(f"/v1/{path}", json=body)
    assert answer.status_code == 422
    told = {each["field"]: each["message"] for each in answer.json()["errors"]}
    assert told[field] == "there is no such field" + (f": did you mean {meant}?" if meant else "")


FAULTS = [
    (PromptError("too long"), 422),
    (NotFound("there is no chunk"), 404),
    (Busy("full"), 429),
    (StoreUnavailable("down"), 503),
    (NotFinite("NaN"), 500),
    (RuntimeError("secret"), 500),
]


@pytest.mark.parametrize(("fault", "status"), FAULTS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_first_event_has_a_status(
    fault: Exception, status: int, *, stream: bool, operator: TestClient, core: FakeCore
) -> None:
    core.pipeline.fault = fault
    answer = operator.post("/v1/query", json={"question": "What?", "stream": stream})
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert "secret" not in answer.text
    assert core.pipeline.closed == 1


def test_an_error_later_is_an_event(operator: TestClient, core: FakeCore) -> None:
    core.pipeline.fault, core.pipeline.late = StoreUnavailable("down"), True
    told = events(operator.post("/v1/query", json={"question": "What?", "stream": True}).text)
    assert [name for name, _ in told] == ["retrieved", "loaded", "fused", "token", "error"]
    assert told[-1][1]["status"] == 503
    assert operator.post("/v1/query", json={"question": "What?"}).status_code == 503
    assert core.pipeline.closed == 2


def test_what_is_asked_reaches_the_pipeline(operator: TestClient, core: FakeCore) -> None:
    schema = {"type": "object"}
    wanted = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        "system": "Be brief.",
        "documents": [{"text": "loose"}],
        "blend": {"ratio": 0.5},
        "sampling": {
            "max_tokens": 7,
            "stop": "x",
            "seed": 3,
            "top_k": 40,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        },
    }
    assert operator.post("/v1/query", json=wanted).status_code == 200
    [ask] = core.pipeline.asks
    assert [(turn.role, turn.text) for turn in ask.turns] == [
        *(("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c"))
    ]
    assert (ask.lookup, ask.asks, ask.documents[0].text, ask.grammar) == (None, True, "loose", schema)
    assert ask.order is not None
    assert (ask.order.policy, ask.order.ratio) == ("ask", 0.5)
    assert ask.sampling == Sampling(max_tokens=7, stop=("x",), seed=3, top_k=40, min_p=0.1, repetition_penalty=1.2)
    operator.post("/v1/query", json={**wanted, "top_k": 2})
    lookup = core.pipeline.asks[1].lookup
    assert lookup is not None
    assert (lookup.query, lookup.top_k) == ("c", 2)


REFUSED = [
    {},
    {"question": "q", "messages": [{"role": "user", "content": "q"}]},
    {"question": ""},
    {"question": "q" * 101},
    {"messages": [{"role": "assistant", "content": "q"}]},
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "system": "t"},
    {"messages": [{"role": "tool", "content": "q"}]},
    {"question": "q", "filter": {"$nor": []}},
    {"question": "q", "sampling": {"top_p": 0}},
    {"question": "q", "sampling": {"top_k": -1}},
    {"question": "q", "sampling": {"min_p": 1.01}},
    {"question": "q", "sampling": {"repetition_penalty": 0}},
    {"question": "q", "sampling": {"stop": ["x"] * 17}},
    {"question": "q", "sampling": {"response_format": {"type": "xml"}}},
    {"question": "q", "blend": {"policy": "magic"}},
    {"question": "q", "top_k": "5"},
    {"question": "q", "documents": [{"text": "x"}] * 21},
    {"question": "q", "surprise" * 1000: 1},
]


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: str(body)[:40])
def test_what_cannot_be_meant_is_refused_in_few_words(body: object, operator: TestClient) -> None:
    answer = operator.post("/v1/query", json=body)
    assert answer.status_code == 422
    assert len(answer.content) < 2000


def test_search_and_rerank(operator: TestClient) -> None:
    operator.post("/v1/documents", json={"documents": [{"text": "one fox"}, {"text": "two foxes and a fox"}]})
    hits = operator.post("/v1/search", json={"query": "fox", "rerank": True}).json()["hits"]
    assert [hit["text"] for hit in hits] == ["two foxes and a fox", "one fox"]
    assert operator.post("/v1/search", json={"query": "fox", "mode": "vector"}).status_code == 422
    ranked = operator.post("/v1/rerank", json={"query": "q", "documents": ["a", "ccc", "bb"], "top_n": 2}).json()
    assert [each["index"] for each in ranked["results"]] == [1, 2]
    ids = [hit["chunk_id"] for hit in hits]
    ranked = operator.post("/v1/rerank", json={"query": "q", "chunk_ids": ids}).json()
    assert [each["chunk_id"] for each in ranked["results"]] == ids
    assert operator.post("/v1/rerank", json={"query": "q", "chunk_ids": ["0" * 32]}).status_code == 404


def test_the_schema_knows_every_policy() -> None:
    [policies, _] = get_args(BlendIn.model_fields["policy"].annotation)
    assert set(get_args(policies)) == set(POLICIES)
