"""A service that is slow, breaks off, refuses, or is none: no call hangs, and none is made twice that must not be."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from gzip import compress
from typing import Any

import pytest

import kvweave_client as kv
from clients.tests import canned
from clients.tests.scripted import Scripted, Step, deaf, drip, end, event, hang, opened, reply, reset, send

# Of its own generators, when a stream is left under trio.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http(x|core).*:ResourceWarning")

Connect = Callable[..., Any]
Found = Any
Call = tuple[str, tuple[object, ...]]

SHORT = kv.Timeouts(connect_s=20, call_s=0.15, silence_s=0.15)
MESSAGES = [{"role": "user", "content": "Which animal does Halio keep?"}]
HTML = b"<html><h1>Log in first</h1></html>"
KEY = "kvw_a-key_that-nobody-may-see"

HEALTH: Call = ("health", ())
QUERY: Call = ("query", ("Which animal does Halio keep?",))
CHAT: Call = ("chat", (MESSAGES,))
PATCH: Call = ("patch_document", ("d", {"year": 2025}))
UPLOAD: Call = ("upload_files", ([kv.File(b"Mira keeps a cat.", "a.txt")],))
STREAM_QUERY: Call = ("stream_query", ("Which animal does Halio keep?",))
STREAM_CHAT: Call = ("stream_chat", (MESSAGES,))
FOLLOW: Call = ("follow_job", ("job-1",))

GOOD: dict[str, bytes] = {
    "health": reply({"status": "ok"}),
    "query": reply(canned.ANSWER),
    "chat": reply(canned.COMPLETION),
    "patch_document": reply(canned.DOCUMENT),
    "upload_files": reply(canned.ACCEPTED),
    "stream_query": reply("".join(canned.QUERY_EVENTS).encode(), kind="text/event-stream"),
    "stream_chat": reply("".join(canned.CHAT_EVENTS).encode(), kind="text/event-stream"),
    "follow_job": reply(event("done", canned.JOB).encode(), kind="text/event-stream"),
}
REPEATED = (HEALTH, UPLOAD, FOLLOW)
ASKED_ONCE = (QUERY, CHAT, PATCH, STREAM_QUERY, STREAM_CHAT)
EACH = (*REPEATED, *ASKED_ONCE)

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
HALF = reply({"status": "ok"}, length=1000)

# What never ends: in its head, in its body, or before both.
SLOW: dict[str, Step] = {
    "never answers": hang(),
    "stops in its head": hang(OK[:20]),
    "stops in its body": hang(HALF),
    "drips its head": drip(OK[:60] * 50, every_s=0.03),
    "drips its body": drip(b'{"status": "ok"}' * 50, every_s=0.03, begin=OK.replace(b"15", b"999")),
    "never reads": hang().unread(),
}
LOST: dict[str, Step] = {
    "closes": end(),
    "resets": reset(),
    "closes in its head": end(OK[:20]),
    "closes in its body": end(HALF),
}


def called(caller: Found, call: Call) -> Found:
    name, arguments = call
    return caller.do(name, *arguments)


def named(call: Call) -> str:
    return call[0]


@pytest.mark.parametrize(("call", "slow"), [*((HEALTH, slow) for slow in SLOW), (QUERY, "never answers")], ids=str)
def test_no_call_outlasts_its_timeout(connect: Connect, server: Scripted, call: Call, slow: str) -> None:
    server.script(SLOW[slow])
    with pytest.raises(kv.TimedOut, match=r"took longer than 0\.15 s"):
        called(connect(server.base_url, timeouts=SHORT), call)
    server.wait_gone()
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("call", "slow"),
    [
        (UPLOAD, "never answers"),
        (UPLOAD, "never reads"),
        (STREAM_QUERY, "never answers"),
        (STREAM_QUERY, "stops in its head"),
        (STREAM_CHAT, "stops in its body"),
        (FOLLOW, "never answers"),
    ],
    ids=str,
)
def test_no_upload_and_no_stream_stands_still_for_long(
    connect: Connect, server: Scripted, call: Call, slow: str
) -> None:
    server.script(SLOW[slow])
    with pytest.raises(kv.TimedOut):
        called(connect(server.base_url, timeouts=SHORT), call)
    server.wait_gone()
    assert len(server.requests) == 1


def test_an_upload_that_nobody_reads_ends(connect: Connect, server: Scripted) -> None:
    server.script(deaf())
    big = kv.File(bytes(64 << 20), "big.txt")  # more than the buffers between them hold
    with pytest.raises(kv.TimedOut, match="stood still"):
        connect(server.base_url, timeouts=SHORT).do("upload_files", [big])


@pytest.mark.parametrize("call", [STREAM_QUERY, UPLOAD], ids=named)
def test_what_is_no_stream_is_not_read_for_ever(connect: Connect, server: Scripted, call: Call) -> None:
    begin = opened(HTML, kind="text/html")
    server.script(drip(b"1\r\nx\r\n" * 100, every_s=0.02, begin=begin))
    with pytest.raises(kv.TimedOut, match="took longer"):
        called(connect(server.base_url, timeouts=SHORT), call)
    server.wait_gone()


def test_what_is_no_stream_and_stalls_takes_no_longer_than_a_call(connect: Connect, server: Scripted) -> None:
    server.script(hang(opened(HTML, kind="text/html")))
    with pytest.raises(kv.TimedOut, match="took longer"):
        called(connect(server.base_url, timeouts=kv.Timeouts(call_s=0.15, silence_s=600)), STREAM_QUERY)
    server.wait_gone()


def test_of_an_error_without_end_the_beginning_is_read(connect: Connect, server: Scripted) -> None:
    flood = opened(*[b"x" * 65536] * 40, status=500, kind="text/plain")
    server.script(hang(flood))
    with pytest.raises(kv.ServiceFailed, match="xxx"):
        called(connect(server.base_url), HEALTH)


@pytest.mark.parametrize(
    ("call", "lost"), [*((call, "closes") for call in REPEATED), *((HEALTH, lost) for lost in LOST)], ids=str
)
def test_a_lost_answer_is_asked_for_again(connect: Connect, server: Scripted, call: Call, lost: str) -> None:
    server.script(LOST[lost], LOST[lost], send(GOOD[call[0]]))
    assert called(connect(server.base_url), call)
    first, *others = server.requests
    assert len(others) == 2
    assert all((each.method, each.path) == (first.method, first.path) for each in others)


@pytest.mark.parametrize(
    ("call", "lost"), [*((call, "closes") for call in ASKED_ONCE), *((CHAT, lost) for lost in LOST)], ids=str
)
def test_what_must_not_be_repeated_is_sent_once(connect: Connect, server: Scripted, call: Call, lost: str) -> None:
    server.script(LOST[lost])
    with pytest.raises((kv.ConnectionFailed, kv.UnexpectedAnswer)):
        called(connect(server.base_url), call)
    assert len(server.requests) == 1


def test_an_answer_that_stays_lost_is_an_error_that_counts(connect: Connect, server: Scripted) -> None:
    server.always(end())
    with pytest.raises(kv.ConnectionFailed, match=r"broke off .*GET /healthz, tried 5 times"):
        called(connect(server.base_url), HEALTH)
    assert len(server.requests) == 5


@pytest.mark.parametrize(("call", "status"), [*((call, 429) for call in EACH), (HEALTH, 503), (QUERY, 503)], ids=str)
def test_who_is_refused_asks_again(connect: Connect, server: Scripted, call: Call, status: int) -> None:
    refusal = reply({"detail": "not now"}, status=status, Retry_After="0")
    server.script(send(refusal), send(refusal), send(GOOD[call[0]]))
    assert called(connect(server.base_url), call)
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [408, 502])
def test_an_answer_that_a_proxy_lost_is_asked_for_again_where_that_may_be(
    connect: Connect, server: Scripted, status: int
) -> None:
    lost = send(reply(HTML, status=status, kind="text/html"))
    server.script(lost, send(GOOD["health"]), lost)
    caller = connect(server.base_url)
    assert called(caller, HEALTH)
    with pytest.raises(kv.ServiceError, match="Log in first") as failed:
        called(caller, QUERY)
    assert failed.value.problem.status == status
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 404, 418, 500, 505])
def test_other_errors_are_told_at_once(connect: Connect, server: Scripted, status: int) -> None:
    server.script(send(reply({"title": "No", "detail": "this is why"}, status=status)))
    with pytest.raises(kv.ServiceError, match=f"{status}: this is why"):
        called(connect(server.base_url), HEALTH)
    assert len(server.requests) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_who_is_told_to_come_much_later_gives_up_at_once(connect: Connect, server: Scripted, form: str) -> None:
    later = {"seconds": "3600", "date": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)}
    server.script(send(reply({"detail": "the quota is used up"}, status=429, Retry_After=later[form])))
    with pytest.raises(kv.RateLimited, match=r"used up, ask again in 3\d\d\d s") as limited:
        called(connect(server.base_url), QUERY)
    assert limited.value.retry_after_s == pytest.approx(3600, abs=60)
    assert len(server.requests) == 1


def test_a_pause_that_does_not_fit_into_the_call_ends_it(connect: Connect, server: Scripted) -> None:
    server.script(send(reply({"detail": "busy"}, status=503, Retry_After="20")))
    with pytest.raises(kv.Unavailable, match="busy"):
        called(connect(server.base_url, timeouts=kv.Timeouts(call_s=10)), HEALTH)
    assert len(server.requests) == 1


def test_whether_it_is_ready_is_not_asked_until_it_is(connect: Connect, server: Scripted) -> None:
    server.script(send(reply({"detail": "the model loads"}, status=503, Retry_After="0")))
    with pytest.raises(kv.Unavailable, match="the model loads"):
        connect(server.base_url).do("ready")
    assert len(server.requests) == 1


# What no service says, with what the error must tell.
STRANGE: dict[str, tuple[bytes, str]] = {
    "html": (reply(HTML, kind="text/html; charset=utf-8"), "200 text/html, not with application/json.*Log in first"),
    "no type": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "of no content type"),
    "text": (reply(b'{"status": "ok"}', kind="text/plain"), "text/plain"),
    "no json": (reply(b"{oops"), "not that of a kvweave service"),
    "no utf-8": (reply(b'{"status": "\xff"}'), "not that of a kvweave service"),
    "empty": (reply(b""), "it is empty"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "204"),
    "another shape": (reply({"status": 7}), r"\$\.status"),
    "another kind": (reply(["ok"]), "not that of a kvweave service"),
    "deep": (reply(b"[" * 100_000), "not that of a kvweave service"),
    "redirect": (
        reply(b"", status=307, Location="https://elsewhere/healthz"),
        "it points to 'https://elsewhere/healthz'",
    ),
    "broken gzip": (reply(b"no gzip", Content_Encoding="gzip"), "in no readable form"),
    "events": (reply(b"data: {}\n\n", kind="text/event-stream"), "text/event-stream"),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_what_no_service_says_is_told_from_an_answer(connect: Connect, server: Scripted, strange: str) -> None:
    sent, told = STRANGE[strange]
    server.script(send(sent))
    with pytest.raises(kv.UnexpectedAnswer, match=told):
        called(connect(server.base_url, api_key=KEY), HEALTH)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("call", "strange"),
    [*((STREAM_QUERY, strange) for strange in ("html", "no type", "text", "no content", "redirect")), (FOLLOW, "html")],
    ids=str,
)
def test_what_is_no_stream_is_told_from_one(connect: Connect, server: Scripted, call: Call, strange: str) -> None:
    server.script(send(STRANGE[strange][0]))
    with pytest.raises(kv.UnexpectedAnswer, match="not with events"):
        called(connect(server.base_url), call)
    assert len(server.requests) == 1


def test_what_comes_compressed_is_read(connect: Connect, server: Scripted) -> None:
    server.script(send(reply(compress(b'{"status": "ok"}'), Content_Encoding="gzip")))
    assert called(connect(server.base_url), HEALTH).status == "ok"


def test_a_problem_is_carried_whole(connect: Connect, server: Scripted) -> None:
    server.script(send(reply(canned.PROBLEM, status=422, kind="application/problem+json")))
    with pytest.raises(kv.BadRequest, match=r"422: top_k: .* \(request r-1\)") as refused:
        called(connect(server.base_url), QUERY)
    assert refused.value.problem.errors == (kv.FieldError("top_k", "it must be at least 1"),)


def test_an_error_in_openais_form_is_a_problem_too(connect: Connect, server: Scripted) -> None:
    server.script(send(reply(canned.OPENAI_ERROR, status=400, X_Request_Id="r-2")))
    with pytest.raises(kv.BadRequest, match="400: Invalid value for 'stop'") as refused:
        called(connect(server.base_url), CHAT)
    assert (refused.value.problem.errors[0].field, refused.value.problem.request_id) == ("stop", "r-2")


def test_the_key_is_in_no_error(connect: Connect, server: Scripted) -> None:
    server.script(send(reply(canned.PROBLEM, status=401)), end(), hang())
    caller = connect(server.base_url, api_key=KEY, timeouts=SHORT)
    said = repr(caller.client)
    for call in (HEALTH, QUERY, QUERY):
        with pytest.raises(kv.KVWeaveError) as failed:
            called(caller, call)
        error: BaseException | None = failed.value
        while error is not None:
            said += f"{error} {error!r} {vars(error)}"
            error = error.__cause__ or error.__context__
    assert [each.headers["authorization"] for each in server.requests] == [f"Bearer {KEY}"] * 3
    assert KEY not in said


def test_a_delete_whose_answer_was_lost_says_that_it_may_be_done(connect: Connect, server: Scripted) -> None:
    gone = send(reply({"detail": "there is no document 'd'"}, status=404))
    server.script(end(), gone, gone)
    caller = connect(server.base_url)
    with pytest.raises(kv.NotFound) as repeated:
        caller.do("delete_document", "d")
    assert "may be what removed it" in repeated.value.__notes__[0]
    with pytest.raises(kv.NotFound) as plain:
        caller.do("delete_document", "d")
    assert not hasattr(plain.value, "__notes__")


def page(*ids: str, following: str | None) -> bytes:
    return reply({"documents": [{**canned.DOCUMENT, "id": each} for each in ids], "next": following})


def test_a_page_that_is_asked_for_again_brings_nothing_twice(connect: Connect, server: Scripted) -> None:
    first, second = page("a", "b", following="b"), page("c", following=None)
    server.script(
        end(first[:-5]), send(first), send(reply({"detail": "busy"}, status=503)), reset(second[:-5]), send(second)
    )
    assert [each.id for each in connect(server.base_url).do("documents")] == ["a", "b", "c"]
    cursors = [each.path.partition("after=")[2].partition("&")[0] for each in server.requests]
    assert cursors == ["", "", "b", "b", "b"]


def test_pages_in_a_circle_end_in_an_error(connect: Connect, server: Scripted) -> None:
    server.script(*[send(page("a", following="a"))] * 3)
    with pytest.raises(kv.UnexpectedAnswer, match="'a' again"):
        connect(server.base_url).do("documents")
    assert len(server.requests) == 2
