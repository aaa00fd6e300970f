"""Streams: what they give, what cuts them, and who leaves them. Whoever leaves frees the service's place."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from queue import SimpleQueue
from threading import Event
from typing import Any

import anyio
import httpx
import pytest

import kvweave_client as kv
from clients.tests import canned
from clients.tests.scripted import (
    Line,
    Scripted,
    Step,
    drip,
    end,
    event,
    hang,
    opened,
    reply,
    reset,
    scripted,
    send,
    whole,
)

# Of its own generators, when a stream is left under trio.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http(x|core).*:ResourceWarning")

Connect = Callable[..., Any]

QUESTION = "Which animal does Halio keep?"
MESSAGES = [{"role": "user", "content": QUESTION}]
WAIT_S = 30  # only a broken client waits so long
OPENSSL = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
    *("-subj", "/CN=scripted", "-addext", "subjectAltName=IP:127.0.0.1"),
)
SHORT = kv.Timeouts(call_s=0.15, silence_s=0.15)

STREAMS: dict[str, tuple[object, tuple[str, ...]]] = {
    "stream_query": (QUESTION, canned.QUERY_EVENTS),
    "stream_chat": (MESSAGES, canned.CHAT_EVENTS),
}


@pytest.fixture(params=STREAMS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def asked(name: str) -> object:
    return STREAMS[name][0]


def told(name: str) -> tuple[str, ...]:
    return STREAMS[name][1]


def test_a_stream_gives_its_events_and_at_last_the_whole(connect: Connect, server: Scripted) -> None:
    server.script(send(whole(*canned.QUERY_EVENTS)), send(whole(*canned.CHAT_EVENTS)))
    caller = connect(server.base_url)
    *events, answer = caller.do("stream_query", QUESTION)
    assert [type(each) for each in events] == [kv.Retrieved, kv.Loaded, kv.Fused, kv.Token, kv.Token]
    assert (answer.answer, answer.usage.reused_tokens, answer.sources[0].title) == ("badger", 30, "Halio")
    *events, answer = caller.do("stream_chat", MESSAGES)
    assert [each.text for each in events] == ["bad", "ger"]
    assert (answer.text, answer.finish_reason) == ("badger", "stop")
    assert (answer.usage.reused_tokens, answer.usage.recomputed_tokens) == (30, 3)


def test_a_stream_is_the_same_in_one_answer_and_in_events(connect: Connect, server: Scripted) -> None:
    server.script(send(reply(canned.COMPLETION)), send(whole(*canned.CHAT_EVENTS)))
    caller = connect(server.base_url)
    whole_answer, streamed = caller.do("chat", MESSAGES), caller.do("stream_chat", MESSAGES)[-1]
    for field in ("text", "finish_reason", "usage", "sources", "report", "model", "id"):
        assert getattr(whole_answer, field) == getattr(streamed, field)


CUT: dict[str, Callable[[bytes], Step]] = {
    "closes": end,
    "resets": reset,
    "ends": lambda sent: end(sent + b"0\r\n\r\n"),
}


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("cut", CUT)
def test_a_stream_that_is_cut_is_an_error_and_not_asked_again(
    connect: Connect, server: Scripted, *, name: str, cut: str, after: int
) -> None:
    server.script(CUT[cut](opened(": it begins\n\n", *told(name)[:after], told(name)[after][:9])))
    with pytest.raises(kv.StreamCut, match="cut off before its end"):
        connect(server.base_url).do(name, asked(name))
    assert len(server.requests) == 1


def test_what_came_before_a_cut_was_given(server: Scripted) -> None:
    server.script(end(opened(*canned.QUERY_EVENTS[:4])))
    heard: list[kv.QueryEvent] = []
    with kv.Client(server.base_url) as client, pytest.raises(kv.StreamCut):
        heard.extend(each for each in client.stream_query(QUESTION))
    assert [type(each) for each in heard] == [kv.Retrieved, kv.Loaded, kv.Fused, kv.Token]


def test_a_stream_that_stalls_ends(connect: Connect, server: Scripted, name: str) -> None:
    server.script(hang(opened(*told(name)[:2])))
    with pytest.raises(kv.TimedOut, match="stood still"):
        connect(server.base_url, timeouts=SHORT).do(name, asked(name))
    server.wait_gone()
    assert len(server.requests) == 1


def test_a_stream_is_over_with_its_last_event_even_if_the_connection_stays(
    connect: Connect, server: Scripted, name: str
) -> None:
    server.script(hang(opened(*told(name))))
    assert connect(server.base_url).do(name, asked(name))
    server.wait_gone()


def test_a_stream_that_has_not_begun_is_asked_again(connect: Connect, server: Scripted, name: str) -> None:
    busy = send(reply({"detail": "busy"}, status=503, Retry_After="0"))
    server.script(busy, busy, send(whole(*told(name))))
    assert connect(server.base_url).do(name, asked(name))
    assert len(server.requests) == 3


def test_a_stream_may_last_longer_than_a_call_also_after_a_refusal(connect: Connect, server: Scripted) -> None:
    busy = send(reply({"detail": "busy"}, status=503, Retry_After="0"))
    sent, last = whole(*canned.QUERY_EVENTS), 30
    server.script(busy, drip(sent[-last:], every_s=0.01, begin=sent[:-last]))
    caller = connect(server.base_url, timeouts=kv.Timeouts(call_s=0.15, silence_s=60))
    assert len(caller.do("stream_query", QUESTION)) == len(canned.QUERY_EVENTS)


def test_an_error_within_a_stream_is_its_class(connect: Connect, server: Scripted) -> None:
    problem = {**canned.PROBLEM, "status": 503, "detail": "the store does not answer", "errors": []}
    fault = {"error": {"message": "too many at once", "type": "rate_limit_error", "param": None, "code": None}}
    server.script(
        send(whole(*canned.QUERY_EVENTS[:4], event("error", problem))),
        send(whole(*canned.CHAT_EVENTS[:2], event("", fault))),
    )
    caller = connect(server.base_url)
    with pytest.raises(kv.Unavailable, match=r"503: the store does not answer \(request r-1\)"):
        caller.do("stream_query", QUESTION)
    with pytest.raises(kv.RateLimited, match="too many at once"):
        caller.do("stream_chat", MESSAGES)
    assert len(server.requests) == 2


@pytest.mark.parametrize("wrong", ["oops", "[]", '{"id": 1}'])
def test_an_event_that_is_none_of_ours_is_an_error(
    connect: Connect, server: Scripted, *, name: str, wrong: str
) -> None:
    server.script(send(whole(told(name)[0], event("done", wrong))))
    with pytest.raises(kv.UnexpectedAnswer, match="not that of a kvweave service"):
        connect(server.base_url).do(name, asked(name))


def test_a_chat_of_another_service_is_told_from_ours(connect: Connect, server: Scripted) -> None:
    server.script(send(whole(canned.CHAT_EVENTS[1], event("", "[DONE]"))))
    with pytest.raises(kv.UnexpectedAnswer, match="without its usage"):
        connect(server.base_url).do("stream_chat", MESSAGES)


def test_events_that_a_later_service_adds_are_left_out(connect: Connect, server: Scripted) -> None:
    known = canned.QUERY_EVENTS
    server.script(send(whole(known[0], event("thought", {"text": "hm"}), ": ping\n\n", "retry: 5\n\n", *known[1:])))
    assert len(connect(server.base_url).do("stream_query", QUESTION)) == len(known)


def test_whoever_leaves_early_frees_the_place(connect: Connect, server: Scripted, name: str) -> None:
    server.script(hang(opened(*told(name)[:3])), send(reply({"status": "ok"})))
    caller = connect(server.base_url)
    assert len(caller.some(name, asked(name), most=1)) == 1
    server.wait_gone()
    assert caller.do("health").status == "ok"


def test_a_loop_that_breaks_off_frees_the_place(server: Scripted) -> None:
    server.script(hang(opened(*canned.QUERY_EVENTS[:3])), hang(opened(*canned.QUERY_EVENTS[:3])))

    async def go() -> None:
        async with kv.AsyncClient(server.base_url) as client:
            async for _ in client.stream_query(QUESTION):
                break
            await anyio.to_thread.run_sync(server.wait_gone, 2)

    with kv.Client(server.base_url) as client:
        for _ in client.stream_query(QUESTION):
            break
        server.wait_gone(1)
    asyncio.run(go())


def test_after_it_was_left_a_stream_does_not_pretend_to_be_over(server: Scripted) -> None:
    server.always(hang(opened(*canned.QUERY_EVENTS[:3])))

    async def go() -> None:
        async with kv.AsyncClient(server.base_url) as client, client.stream_query(QUESTION) as stream:
            assert isinstance(await anext(stream), kv.Retrieved)
            assert isinstance(await anext(stream), kv.Loaded)
            assert isinstance(await anext(stream), kv.Fused)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.05)
            with pytest.raises(kv.Cancelled, match="left before its end"):
                await anext(stream)

    with kv.Client(server.base_url) as client:
        stream = client.stream_query(QUESTION)
        next(stream)
        stream.close()
        with pytest.raises(kv.Cancelled, match="left before its end"):
            next(stream)
    asyncio.run(go())


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's, who trust each other."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run([*OPENSSL, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    mine, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=certificate)
    mine.load_cert_chain(certificate, key)
    return mine, theirs


@pytest.fixture(params=["http", "https"])
def secured(request: pytest.FixtureRequest) -> Iterator[tuple[Scripted, kv.Client]]:
    """A server and a client of it, with TLS and without."""
    if request.param == "http":
        with scripted() as server, kv.Client(server.base_url) as client:
            yield server, client
        return
    mine, theirs = request.getfixturevalue("certified")
    with scripted(mine) as server, httpx.Client(verify=theirs) as http:
        yield server, kv.Client(server.base_url, http=http)


STAGES: dict[str, tuple[Step, int]] = {
    "before its head": (hang(), 0),
    "in its head": (hang(opened()[:20]), 0),
    "between events": (hang(opened(*canned.QUERY_EVENTS[:3])), 3),
    "within an event": (hang(opened(*canned.QUERY_EVENTS[:1], canned.QUERY_EVENTS[1][:9])), 1),
    "in a pause": (send(reply({"detail": "busy"}, status=503, Retry_After="25")), 0),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stream_is_cancelled_from_another_thread_at_any_stage(
    secured: tuple[Scripted, kv.Client], stage: str
) -> None:
    server, client = secured
    step, count = STAGES[stage]
    server.script(step, send(reply({"status": "ok"})))
    stream, heard = client.stream_query(QUESTION), SimpleQueue[object]()
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(lambda: [heard.put(each) for each in stream])
        server.wait_heard(1)
        for _ in range(count):
            heard.get(timeout=WAIT_S)
        stream.cancel()
        with pytest.raises(kv.Cancelled, match="cancelled"):
            reading.result(WAIT_S)
    if stage != "in a pause":
        server.wait_gone()
    assert client.health().status == "ok"
    assert len(server.requests) == 2


def test_a_stream_that_was_cancelled_before_is_never_asked_for(server: Scripted) -> None:
    with kv.Client(server.base_url) as client:
        stream = client.stream_query(QUESTION)
        stream.cancel()
        with pytest.raises(kv.Cancelled):
            next(stream)
    assert server.requests == []


def test_cancelling_what_is_over_harms_nobody(server: Scripted) -> None:
    server.script(send(whole(*canned.QUERY_EVENTS)))
    server.always(send(reply({"status": "ok"})))
    with kv.Client(server.base_url) as client:
        stream = client.stream_query(QUESTION)
        assert len(list(stream)) == len(canned.QUERY_EVENTS)
        for _ in range(3):
            assert client.health().status == "ok"
            stream.cancel()
        with pytest.raises(StopIteration):
            next(stream)


def test_after_it_was_cancelled_a_stream_says_nothing_that_had_come_already(server: Scripted) -> None:
    server.script(send(whole("".join(canned.QUERY_EVENTS))))
    with kv.Client(server.base_url) as client:
        stream = client.stream_query(QUESTION)
        assert isinstance(next(stream), kv.Retrieved)
        stream.cancel()
        with pytest.raises(kv.Cancelled, match="cancelled"):
            next(stream)


def test_a_connection_that_serves_another_call_by_now_is_not_cut(server: Scripted) -> None:
    may_answer = Event()

    def answer(line: Line) -> None:
        may_answer.wait(WAIT_S)
        line.send(reply(canned.ANSWER))

    server.script(send(whole(*canned.QUERY_EVENTS)), Step(answer))
    with kv.Client(server.base_url) as client, ThreadPoolExecutor(1) as threads:
        stream = client.stream_query(QUESTION)
        assert len(list(stream)) == len(canned.QUERY_EVENTS)
        asking = threads.submit(client.query, QUESTION)
        server.wait_heard(2)
        stream.cancel()
        may_answer.set()
        assert asking.result(WAIT_S).answer == "badger"
    assert server.connections == 1


@pytest.mark.parametrize("stage", ["before its head", "in its head", "between events", "within an event"])
def test_a_task_that_is_cancelled_frees_the_place(server: Scripted, stage: str) -> None:
    step, count = STAGES[stage]
    server.script(step, send(reply({"status": "ok"})))

    async def go() -> None:
        async with kv.AsyncClient(server.base_url) as client:
            heard = asyncio.Queue[object]()

            async def read() -> None:
                async for each in client.stream_query(QUESTION):
                    heard.put_nowait(each)

            task = asyncio.create_task(read())
            await anyio.to_thread.run_sync(server.wait_heard, 1)
            for _ in range(count):
                await heard.get()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await anyio.to_thread.run_sync(server.wait_gone)
            assert (await client.health()).status == "ok"

    asyncio.run(go())


@pytest.mark.parametrize("backend", ["asyncio", *(["trio"] if find_spec("trio") else [])])
@pytest.mark.parametrize("sent", [b"", opened()[:20], reply(canned.ANSWER)[:-5]], ids=["nothing", "head", "body"])
def test_a_call_that_is_cancelled_frees_the_place(backend: str, server: Scripted, sent: bytes) -> None:
    server.script(hang(sent), send(reply({"status": "ok"})))

    async def go() -> None:
        async with kv.AsyncClient(server.base_url) as client:
            with anyio.move_on_after(0.1) as scope:
                await client.query(QUESTION)
            assert scope.cancelled_caught
            await anyio.to_thread.run_sync(server.wait_gone)
            assert (await client.health()).status == "ok"

    anyio.run(go, backend=backend)
