"""A client itself: where it goes, what it refuses, what its errors carry, and that threads may share it."""

import copy
import inspect
import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

import kvweave_client as kv
from clients.tests import canned
from clients.tests.scripted import Line, Scripted, Step, event, hang, reply, send, whole
from kvweave_client import operations
from kvweave_client.requests import Listing, Operation, Streaming

# Of its own generators, when a stream is left under trio.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http(x|core).*:ResourceWarning")

Connect = Callable[..., Any]

HEALTHY = send(reply({"status": "ok"}))


@pytest.mark.parametrize("tail", ["", "/", "//", "/v1", "/v1/", " \n"])
def test_a_base_url_may_end_as_those_of_other_clients(connect: Connect, server: Scripted, tail: str) -> None:
    server.script(HEALTHY)
    connect(server.base_url + tail).do("health")
    assert server.requests[0].path == "/healthz"


def test_a_base_url_may_have_a_path(connect: Connect, server: Scripted) -> None:
    server.script(HEALTHY, send(reply({"data": []})))
    caller = connect(f"{server.base_url}/rag/v1")
    caller.do("health")
    caller.do("models")
    assert [each.path for each in server.requests] == ["/rag/healthz", "/rag/v1/models"]


WRONG = [
    "localhost:8000",
    "",
    "http://",
    "ftp://x",
    "http://x:99999",
    "http://a b",
    "http://x?y=1",
    "http://x#y",
    "http://x?",
    "http://x/#",
    "//x",
]


@pytest.mark.parametrize("base_url", WRONG)
@pytest.mark.parametrize("client", [kv.Client, kv.AsyncClient])
def test_a_base_url_that_is_none_is_refused(client: type[kv.Client], base_url: str) -> None:
    with pytest.raises(ValueError, match="must be like http://localhost:8000, got"):
        client(base_url)


def test_a_password_in_the_base_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="holds a user or a password") as refused:
        kv.Client("http://me:secret@localhost:8000")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("key", ["kvw_a\nX-Admin: yes", "kvw_ä", "kvw_\0"])
def test_a_key_that_no_header_holds_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="copy it again") as refused:
        kv.Client(api_key=key)
    assert "kvw_" not in str(refused.value)


def test_a_key_may_come_from_a_file_with_a_line_end(connect: Connect, server: Scripted) -> None:
    server.script(HEALTHY)
    connect(server.base_url, api_key="kvw_a\n").do("health")
    assert server.requests[0].headers["authorization"] == "Bearer kvw_a"


@pytest.mark.parametrize("wrong", [{"call_s": 0}, {"silence_s": -1}, {"connect_s": float("nan")}])
def test_timeouts_that_are_none_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be more than 0 seconds"):
        kv.Timeouts(**wrong)


@pytest.mark.parametrize("wrong", [{"most": -1}, {"first_s": float("inf")}, {"longest_s": float("nan")}])
def test_retries_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a number from 0 on"):
        kv.Retries(**wrong)


def test_a_call_may_take_for_ever(connect: Connect, server: Scripted) -> None:
    server.script(HEALTHY, send(whole(*canned.QUERY_EVENTS)))
    never = float("inf")
    caller = connect(server.base_url, timeouts=kv.Timeouts(never, never, never))
    caller.do("health")
    caller.do("stream_query", "?")


def test_nobody_there_is_an_error_that_names_the_address(connect: Connect) -> None:
    with pytest.raises(kv.ConnectionFailed, match=r"http://127\.0\.0\.1:9 cannot be reached .* GET /healthz, tried 3"):
        connect("http://127.0.0.1:9", retries=kv.Retries(2, first_s=0.001)).do("health")


def test_what_never_arrived_is_sent_again_whatever_it_is(kind: str, connect: Connect) -> None:
    tries = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=canned.ANSWER)

    client = httpx.Client if kind == "sync" else httpx.AsyncClient
    http = client(transport=httpx.MockTransport(handler))
    assert connect("http://x", http=http).do("query", "?").answer == "badger"
    assert tries == 3


def test_a_client_of_yours_stays_open_and_does_not_follow_elsewhere(server: Scripted) -> None:
    server.script(send(reply(b"", status=302, Location="/v1/documents/d")), HEALTHY)
    with httpx.Client(follow_redirects=True, headers={"X-Mine": "1"}) as http:
        with kv.Client(server.base_url, http=http) as client, pytest.raises(kv.UnexpectedAnswer, match="302"):
            client.put_document("d", text="x")
        assert http.get(f"{server.base_url}/healthz").is_success
    assert [each.headers["x-mine"] for each in server.requests] == ["1", "1"]


@pytest.mark.parametrize("name", ["", ".", "..", "\ud800"])
def test_a_name_that_no_path_holds_is_refused(name: str) -> None:
    with kv.Client() as client, pytest.raises(kv.RequestError):
        client.document(name)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), "\ud800"])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with kv.Client() as client:
        for call in (lambda: client.patch_document("d", {"x": value}), lambda: client.documents(filter={"x": value})):
            with pytest.raises(kv.RequestError, match="cannot be written as JSON"):
                call()


def test_documents_are_never_listed_past_an_option_that_there_is_not(connect: Connect, server: Scripted) -> None:
    with pytest.raises(TypeError, match="filters"):
        connect(server.base_url).do("documents", filters={"team": "law"})
    assert server.requests == []


JOB = kv.Job("j", "failed", {}, 1, 0, 0, 0, 1.0, 2.0)
ERRORS = [
    kv.BadRequest(kv.Problem(400, detail="no", errors=(kv.FieldError("a", "b"),))),
    kv.RateLimited(kv.Problem(429, detail="too much"), retry_after_s=2.5),
    kv.JobFailed(JOB, (kv.JobItem("d", "c", "", "failed", 1, 0, 0, 0, "x"),)),
    kv.TimedOut("late"),
    kv.StreamCut("cut"),
    kv.UnexpectedAnswer("html"),
    kv.RequestError("no"),
    kv.Cancelled("left"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling_and_copying(error: kv.KVWeaveError) -> None:
    error.add_note("seen by a worker")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_errors_are_also_those_of_python() -> None:
    for error, builtin in {
        kv.ConnectionFailed: ConnectionError,
        kv.StreamCut: kv.ConnectionFailed,
        kv.TimedOut: TimeoutError,
        kv.UnexpectedAnswer: ValueError,
        kv.RequestError: ValueError,
        kv.NotFound: LookupError,
        kv.BadRequest: ValueError,
        kv.Unavailable: kv.ServiceFailed,
    }.items():
        assert issubclass(error, builtin)
    exported = [getattr(kv, name) for name in kv.__all__]
    errors = [each for each in exported if isinstance(each, type) and issubclass(each, Exception)]
    assert all(issubclass(each, kv.KVWeaveError) for each in errors)


def test_reranked_texts_have_their_places(connect: Connect, server: Scripted) -> None:
    results = [{"index": 1, "score": 0.9, "chunk_id": None}, {"index": 0, "score": 0.1, "chunk_id": "0" * 32}]
    server.script(send(reply({"results": results})))
    ranked = connect(server.base_url).do("rerank", "Which animal?", documents=["Nothing.", "A badger."])
    assert ranked == (kv.Ranked(1, 0.9), kv.Ranked(0, 0.1, "0" * 32))
    assert json.loads(server.requests[0].body) == {"query": "Which animal?", "documents": ["Nothing.", "A badger."]}


JOBS = {status: {**canned.JOB, "status": status} for status in ("running", "done", "failed", "cancelled")}


def test_waiting_ends_with_the_job(connect: Connect, server: Scripted) -> None:
    server.script(*(send(reply(JOBS[each])) for each in ("running", "running", "done")))
    seen: list[str] = []
    job = connect(server.base_url).do("wait", "job-1", progress=lambda job: seen.append(job.status))
    assert job.status == "done"
    assert seen == ["running", "running", "done"]


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_job_that_failed_says_what_of_it(connect: Connect, server: Scripted, status: str) -> None:
    bad = {**canned.ITEM, "document": "bad", "state": "failed", "detail": "it is empty"}
    items = {**JOBS[status], "items": [canned.ITEM, bad], "next": None}
    server.script(send(reply(JOBS[status])), send(reply(items)))
    with pytest.raises(kv.JobFailed, match=f"job-1 .* {status}. bad: it is empty") as failed:
        connect(server.base_url).do("wait", "job-1")
    assert [item.document for item in failed.value.items] == ["bad"]
    assert failed.value.job.status == status


def test_waiting_ends_with_its_time(connect: Connect, server: Scripted) -> None:
    server.always(send(reply(JOBS["running"])))
    with pytest.raises(kv.TimedOut, match=r"job-1 is not over after 0\.1 s"):
        connect(server.base_url).do("wait", "job-1", timeout_s=0.1)


def test_waiting_ends_though_nobody_answers(
    connect: Connect, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvweave_client.plans.LOOK_S", 0.1)
    server.script(send(reply(JOBS["running"])), hang())
    with pytest.raises(kv.TimedOut, match=r"job-1 is not over after 0\.15 s"):
        connect(server.base_url).do("wait", "job-1", timeout_s=0.15)


def test_even_without_time_there_is_one_look(connect: Connect, server: Scripted) -> None:
    server.script(send(reply(JOBS["done"])))
    assert connect(server.base_url).do("wait", "job-1", timeout_s=0).status == "done"


def test_a_client_is_safe_for_threads(server: Scripted) -> None:
    def echo(line: Line) -> None:
        asked = json.loads(line.heard.body)["question"]
        said = {**canned.ANSWER, "answer": asked}
        line.send(whole(event("done", said)) if '"stream"' in line.heard.body.decode() else reply(said))

    server.always(Step(echo))
    with kv.Client(server.base_url) as client, ThreadPoolExecutor(8) as threads:

        def ask(number: int) -> bool:
            question = f"Question {number}?"
            streamed = list(client.stream_query(question))[-1]
            assert isinstance(streamed, kv.Answer)
            return client.query(question).answer == question == streamed.answer

        assert all(threads.map(ask, range(80)))


def test_both_clients_have_every_operation_with_its_signature() -> None:
    for name, build in inspect.getmembers(operations, inspect.isfunction):
        made = getattr(inspect.signature(build).return_annotation, "__origin__", None)
        if name.startswith("_") or made not in (Operation, Listing, Streaming):
            continue
        for client in (kv.Client, kv.AsyncClient):
            method = getattr(client, name)
            assert list(inspect.signature(method).parameters) == ["self", *inspect.signature(build).parameters]
            assert (method.__doc__, method.__qualname__) == (build.__doc__, f"{client.__name__}.{name}")
    own = {name for name in vars(kv.Client) if not name.startswith("_")}
    others = {name for name in vars(kv.AsyncClient) if not name.startswith("_")}
    assert own ^ others == {"close", "aclose"}


def test_an_answer_shows_its_words_its_notes_and_its_best_sources_and_nothing_of_them_as_html() -> None:
    sources = [{**canned.SOURCE, "title": f"<b>{at}</b>", "document_id": f"d{at}", "score": at} for at in range(7)]
    report = {**canned.REPORT, "notes": ["Mind this."]}
    answer = msgspec.convert({**canned.ANSWER, "sources": sources, "report": report}, kv.Answer)
    words, note, *lines = str(answer).splitlines()
    assert (words, note) == ("badger", "Mind this.")
    assert [line.split()[-1] for line in lines] == ["d6", "d5", "d4", "d3", "d2", "more"]
    shown = answer._repr_html_()
    assert "<b>" not in shown and "&lt;b&gt;6" in shown and shown.count("<li>") == len(lines)
