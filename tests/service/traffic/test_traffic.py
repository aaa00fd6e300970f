"""`kvweave bench --url`: what it sends and when, and what it says of scripted endpoints and of the service itself."""

import json
import os
import re
import signal
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from service import cli
from service.errors import Invalid, ServiceError, Unauthorized, Unavailable
from service.traffic.endpoint import EndpointAnswer, RequestFailure
from service.traffic.measurement import TrafficMeasurement, comparison, measured
from service.traffic.page import page
from service.traffic.traffic import Sent, Stretch, TrafficPlan, Way
from service.traffic.workload import MadeUp
from tests.service.checkpoints import checkpoint
from tests.service.serving import WAIT_S, good, in_process, settings_in
from tests.service.test_page import Reader, outside
from tests.service.traffic.scripted_endpoint import Json, Reply, endpoint, whole

FAST = ["--rates", "500", "--requests", "5", "--repeats", "2", "--chunks", "1", "--chunk-tokens", "16"]
PREPARING = 2 + 4  # chats before those that are timed: two probes, and the pool in prompts of one chunk


def bench(*options: str, env: dict[str, str] | None = None) -> Result:
    result = CliRunner().invoke(cli.app, ["bench", *options], env=env)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rows(result: Result) -> list[Json]:
    return json.loads(result.stdout)["rows"]


def test_requests_come_whether_those_before_are_answered_or_not() -> None:
    together = Barrier(5)

    def answer(body: Json, number: int) -> Reply:
        if number >= PREPARING:
            together.wait(WAIT_S)  # a client that waits for answers never gets here five times at once
        return whole()

    with endpoint(answer) as server:
        result = bench("--url", server.url, *FAST, "--json")
    assert result.exit_code == 0, result.output
    [row] = rows(result)
    assert (row["answered"], row["requests"], row["failures"]) == (10, 10, {})
    assert (row["prompt_tokens"], row["cached_share"]) == (100, 0.6)
    assert {body["model"] for body in server.asked} == {"some/model"}
    assert all(body["stream"] and body["stream_options"] == {"include_usage": True} for body in server.asked)


def test_failures_are_counted_by_kind_and_do_not_end_the_run() -> None:
    def answer(body: Json, number: int) -> Reply:
        bad = {1: Reply(b"queue is full", 503), 2: Reply(b"data: x\n\n"), 3: Reply(b"")}
        return whole() if number < PREPARING else bad.get(number % 5, whole())

    with endpoint(answer) as server:
        result = bench("--url", server.url, *FAST, "--json")
    assert result.exit_code == 1
    [row] = rows(result)
    assert row["failures"] == {"HTTP 503": 2, "no stream": 2, "broken off": 2}
    assert (row["requests"], row["answered"]) == (10, 4)
    assert any("HTTP 503: queue is full" in note for note in json.loads(result.stdout)["notes"])


def test_what_answers_nothing_is_not_asked_for_ever() -> None:
    with endpoint(lambda body, number: whole() if number < PREPARING else Reply(b"", 500)) as server:
        result = bench("--url", server.url, *FAST, "--json")
    assert result.exit_code == 1
    assert len(server.asked) == PREPARING + 5  # of one round in two
    assert any("was not asked again" in note for note in json.loads(result.stdout)["notes"])


def test_an_endpoint_that_knows_no_stream_options_is_asked_without() -> None:
    def answer(body: Json, number: int) -> Reply:
        return Reply(b"unknown field", 400) if "stream_options" in body else whole(cached=None)

    with endpoint(answer) as server:
        result = bench("--url", f"{server.url}/v1/", *FAST, "--json")
    assert result.exit_code == 0, result.output
    assert rows(result)[0]["cached_share"] is None
    assert any("does not tell cached tokens" in note for note in json.loads(result.stdout)["notes"])


def test_each_endpoint_learns_its_own_key_alone() -> None:
    environment = {"KVWEAVE_API_KEY": "sk-first", "OTHER": "sk-second"}
    with endpoint(lambda body, number: whole()) as one, endpoint(lambda body, number: whole()) as two:
        urls = ["--url", one.url, "--url", two.url, *FAST]
        shown = bench(*urls, env=environment)
        assert ({*one.keys}, {*two.keys}) == ({"Bearer sk-first"}, {""})
        shown_too = bench(*urls, "--key-env", "-", "--key-env", "OTHER", "--json", env=environment)
        assert (one.keys[-1], two.keys[-1]) == ("", "Bearer sk-second")
    assert "sk-" not in shown.output + shown_too.output


def test_a_stop_gives_what_was_measured() -> None:
    unanswered = Barrier(2)

    def answer(body: Json, number: int) -> Reply:
        if number == PREPARING + 8:
            os.kill(os.getpid(), signal.SIGINT)
        if number >= PREPARING + 5:  # the second round
            try:
                unanswered.wait(1)
            except BrokenBarrierError:
                return Reply(b"")
        return whole()

    with endpoint(answer) as server:
        result = bench("--url", server.url, *FAST, "--json")
        unanswered.abort()
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert not found["is_whole"]
    assert found["rows"][0]["answered"] >= 5


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (["--url", "http://127.0.0.1:9"], Unavailable, "no endpoint answers at http://127.0.0.1:9"),
        (["--url", "nonsense"], Invalid, "is no address"),
        (["--url", "http://127.0.0.1:9", "--corpus", "docs"], Invalid, "--corpus belongs to"),
        (["--rates", "1"], Invalid, "--rates belongs to"),
        (["--url", "http://127.0.0.1:9", "--rates", "fast"], Invalid, "got 'fast'"),
        (["--url", "http://127.0.0.1:9", "--rates", "0"], Invalid, "got '0'"),
        (["--url", "http://127.0.0.1:9", "--chunks", "0"], Invalid, "got '0'"),
        (["--url", "http://127.0.0.1:9", "--key-env", "NOT_THERE"], Invalid, "no such variable"),
        (["--url", "http://127.0.0.1:9", "--url", "http://127.0.0.1:9"], Invalid, "name each once"),
        (["--url", "http://127.0.0.1:9", "--html", "nowhere/page.html"], Invalid, "no folder nowhere"),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(options: list[str], error: type[ServiceError], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        bench(*options)


def test_an_endpoint_that_wants_a_key_says_so() -> None:
    with endpoint(lambda body, number: Reply(b"no key", 401)) as server, pytest.raises(Unavailable, match="HTTP 401"):
        bench("--url", server.url, *FAST)
    with endpoint(lambda body, number: whole(), models=()) as server, pytest.raises(Unavailable, match="no model"):
        bench("--url", server.url, *FAST)
    assert issubclass(Unauthorized, ServiceError)


def test_chunks_that_are_put_in_are_reused_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = settings_in(tmp_path, model=checkpoint(tmp_path / "model"), policy="reuse")
    with in_process(served) as service, service.client() as client:
        monkeypatch.setenv("KVWEAVE_API_KEY", service.key)
        options = [*FAST, "--chunks", "2,4", "--chunk-tokens", "64", "--repeated", "0.5", "--policies", "full"]
        result = bench("--url", service.base_url, *options, "--put", "--json", "--rates", "20")
        assert result.exit_code == 0, result.output
        assert good(client.get("/v1/collections"))["collections"] == []
        assert good(client.get("/v1/documents"))["documents"] == []
    reuse, full = rows(result)
    assert 0.2 < reuse["cached_share"] < 0.8
    assert full["cached_share"] == 0
    assert reuse["prompt_tokens"] == pytest.approx(full["prompt_tokens"], rel=0.15)  # other texts


def test_what_is_no_kvweave_service_goes_without_chunks_put_in() -> None:
    with endpoint(lambda body, number: whole()) as server:
        result = bench("--url", server.url, *FAST, "--put", "--json")
    assert result.exit_code == 0, result.output
    assert [note for note in json.loads(result.stdout)["notes"] if "is no kvweave service" in note]


def test_a_service_that_breaks_keeps_what_was_measured() -> None:
    jobs = {"status": "done", "chunks": 4, "stored": 4, "job_id": "7"}

    def other(method: str, path: str) -> Reply:
        return Reply(b"", 500) if method == "DELETE" else Reply(json.dumps(jobs).encode(), kind="application/json")

    with endpoint(lambda body, number: whole(), other=other) as server:
        result = bench("--url", server.url, *FAST, "--put", "--json")
    assert rows(result)[0]["answered"] == 10
    assert any("still there" in note for note in json.loads(result.stdout)["notes"])


PLAN = TrafficPlan(
    ways=(Way("http://a:1"), Way("http://b:2"), Way("http://a:1", policy="full")),
    workload=MadeUp(4, (1,), 16, repeated=0.5, answer_tokens=1, seed=0),
    rates=(1.0, 2.0),
    rounds=2,
    timeout_s=1.0,
)
times = st.floats(1e-3, 1e3)
outcome = st.one_of(
    st.builds(EndpointAnswer, times, times, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9), st.none()),
    st.builds(RequestFailure, st.sampled_from(["timeout", "HTTP 500"]), st.just("<b>late</b>")),
)


@st.composite
def sendings(draw: st.DrawFn) -> Sent:
    sent = Sent(is_whole=draw(st.booleans()))
    for number in range(PLAN.rounds):
        for rate in PLAN.rates:
            for way in PLAN.ways[: draw(st.integers(0, 3))]:
                found = draw(st.lists(outcome, max_size=4))
                answers = [each for each in found if isinstance(each, EndpointAnswer)]
                failures = [each for each in found if isinstance(each, RequestFailure)]
                late = [0.0 for _ in found]
                sent.stretches.append(Stretch(way, rate, number, 1.0, answers, failures, draw(times), late))
    return sent


def said(found: TrafficMeasurement) -> list[tuple[str, str, float]]:
    """What the sentences say: a way, words and a rate."""
    told: list[tuple[str, str, float]] = []
    for sentence in found.sentences[1:]:
        [(name, rest)] = re.findall(r"the first token of (.*) is (.*)\.", sentence)
        for part in rest.split("; ") if rest != "not known" else ():
            words, _, rates = part.partition(" at ")
            told += [(name, words, float(each)) for each in rates.removesuffix("/s").split(", ")]
    return told


@settings(max_examples=300, deadline=None)
@given(sendings())
def test_table_sentences_and_page_say_the_same(sent: Sent) -> None:
    found = measured(PLAN, sent)
    compared = [row for row in found.rows if row.way != found.ways[0].name]
    assert sorted(said(found)) == sorted((row.way, comparison(row), row.rate) for row in compared)
    for row in compared:
        assert row.against_first is None or not row.failures
        first = next((each for each in found.rows if (each.way, each.rate) == (found.ways[0].name, row.rate)), None)
        if row.against_first:
            assert first and first.first_s and row.first_s
            words = comparison(row)
            assert ("sooner" in words) <= (row.first_s.p50 < first.first_s.p50)
            assert ("later" in words) <= (row.first_s.p50 > first.first_s.p50)
    text = page(found)
    assert Reader(text).open == [] and outside(text) == []
    assert "<b>late" not in text
