"""Embedders and rerankers against a server on loopback that misbehaves on purpose."""

import base64
import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from retriever.embedders import remote
from retriever.embedders.embedding import Reranker, Vectors
from retriever.embedders.remote import MAX_WAIT_S, Access, RemoteEmbedder, RemoteReranker
from retriever.errors import EmbeddingError

DIM = 4
KEY = "sk-" + "hidden" * 4
TEXTS = [f"text number {number} " + "x" * (number * 7 % 40) for number in range(11)]


def numbers(text: str) -> list[float]:
    """A vector for a text, not of unit length."""
    return [float(value) for value in np.random.default_rng(list(text.encode())).standard_normal(DIM)]


def expected(texts: list[str]) -> Vectors:
    rows = np.array([numbers(text) for text in texts])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def relevance(query: str, text: str) -> float:
    return numbers(query + text)[0]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server does with one request. `body` may be bytes as they are."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    act: str = "answer"  # or close, truncate, hang, drip


Script = Callable[[dict[str, Any]], Reply]


def honest(asked: dict[str, Any]) -> Reply:
    """The right answer, the last result first."""
    if "input" in asked:
        rows = [{"object": "embedding", "index": i, "embedding": numbers(t)} for i, t in enumerate(asked["input"])]
        return Reply({"object": "list", "data": rows[::-1], "model": "m", "usage": {"total_tokens": 1}})
    pairs = [(i, relevance(asked["query"], t)) for i, t in enumerate(asked["documents"])]
    return Reply({"id": "1", "results": [{"index": i, "relevance_score": s} for i, s in reversed(pairs)]})


def in_base64(asked: dict[str, Any]) -> Reply:
    reply = honest(asked)
    for row in reply.body["data"]:
        row["embedding"] = base64.b64encode(np.array(row["embedding"], "<f4").tobytes()).decode()
    return reply


def always(reply: Reply) -> Script:
    return lambda asked: reply


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Server(ThreadingHTTPServer):
    """Answers by its script, one entry for each request, and honestly after that."""

    daemon_threads: ClassVar[bool] = True
    request_queue_size: ClassVar[int] = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Script] = []
        self.seen: list[Request] = []
        self.waits: list[float] = []  # of clients
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left is no news."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(Request(self.path, dict(self.headers), asked))
        reply = (self.server.script.pop(0) if self.server.script else honest)(asked)
        if reply.act == "hang":
            self.server.over.wait()
        if reply.act in ("hang", "close"):
            self.close_connection = True
            return
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + (reply.act != "answer") * 10**6))
        self.end_headers()
        self.wfile.write(body)
        if reply.act == "truncate":
            self.close_connection = True
        while reply.act == "drip" and not self.server.over.wait(0.02):
            self.wfile.write(b" ")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(remote, "BATCH_TEXTS", 3)
    with Server() as server:
        monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=server.waits.append))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


ACCESS = Access("", KEY)


def asking(server: Server, *, key: str = KEY) -> RemoteEmbedder:
    return RemoteEmbedder(Access(server.url, key), "m")


def refused(server: Server, script: Script) -> EmbeddingError:
    server.script = [script] * 9
    embedder = asking(server)
    with pytest.raises(EmbeddingError) as raised:
        embedder.passages(TEXTS[:3])
    return raised.value


@pytest.mark.parametrize("script", [honest, in_base64])
def test_vectors_have_unit_length_and_the_order_of_the_texts(
    server: Server, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BATCH_CHARACTERS", 60)
    server.script = [script] * 4
    embedder = asking(server)
    found = embedder.passages(TEXTS)
    assert found.dtype == np.float32 and found.shape == (len(TEXTS), DIM)
    np.testing.assert_allclose(found, expected(TEXTS), atol=1e-6)
    np.testing.assert_allclose(embedder.query(TEXTS[5]), expected(TEXTS)[5], atol=1e-6)
    sent = [request.body["input"] for request in server.seen]
    assert [text for batch in sent[:-1] for text in batch] == TEXTS
    assert all(len(batch) <= 3 and (len(batch) == 1 or sum(map(len, batch)) <= 60) for batch in sent)


def test_a_request_is_what_openai_takes(server: Server) -> None:
    embedder = asking(server)
    embedder.passages(["a"])
    embedder.query("lone \ud800")
    asking(server, key="").query("b")
    first, second, keyless = server.seen
    assert first.path == "/v1/embeddings" and first.headers["Authorization"] == f"Bearer {KEY}"
    assert first.body == {"model": "m", "input": ["a"], "encoding_format": "float"}
    assert second.body["input"] == ["lone \ufffd"]  # UTF-8 cannot say the other
    assert "Authorization" not in keyless.headers


PASSING = {
    "too many requests": Reply(status=429),
    "a timeout of the server's": Reply(status=408),
    "an error": Reply(b"<html>oops", status=500),
    "overloaded": Reply(status=503),
    "a closed connection": Reply(act="close"),
    "half an answer": Reply(b'{"data": [', act="truncate"),
}


@pytest.mark.parametrize("reply", PASSING.values(), ids=PASSING)
def test_what_passes_is_asked_again(server: Server, reply: Reply) -> None:
    server.script = [always(reply), always(reply), honest]
    np.testing.assert_allclose(asking(server).passages(TEXTS[:3]), expected(TEXTS[:3]), atol=1e-6)
    assert len(server.seen) == 3
    assert 0.25 <= server.waits[0] <= 0.5 <= server.waits[1] <= 1.0


@pytest.mark.parametrize("act", ["hang", "drip"])
def test_an_answer_that_does_not_come_to_its_end_is_a_timeout(
    server: Server, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TIMEOUT_S", 0.15)
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    error = refused(server, always(Reply(act=act)))
    assert error.temporary and "within 0.15 s" in str(error)


@pytest.mark.parametrize("status", [429, 503])
def test_the_server_says_when_to_come_back(server: Server, status: int) -> None:
    date = formatdate(0, usegmt=True)  # long ago: at once
    later = [Reply(status=status, headers={"Retry-After": said}) for said in ("7", date, "0")]
    server.script = [*map(always, later), honest]
    asking(server).query("a")
    assert server.waits == [7.0, 0.0, 0.0]


@pytest.mark.parametrize("said", ["soon", "-3", "1e9999", "9" * 400, "Mon, 99 Nov 99999 00:00:00 GMT"])
def test_nonsense_about_coming_back_is_passed_over(server: Server, said: str) -> None:
    server.script = [always(Reply(status=429, headers={"Retry-After": said}))]
    asking(server).query("a")
    assert 0.25 <= server.waits[0] <= 0.5


def test_a_server_that_wants_too_much_patience_is_given_up_at_once(server: Server) -> None:
    headers = {"Retry-After": str(int(MAX_WAIT_S) + 1)}
    error = refused(server, always(Reply(status=429, headers=headers)))
    assert error.temporary and "61 s" in str(error) and len(server.seen) == 1


def test_attempts_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 3)
    reply = Reply({"error": {"message": "out of cheese"}}, status=500)
    error = refused(server, always(reply))
    assert error.temporary and "3 of 3" in str(error) and "out of cheese" in str(error) and server.url in str(error)
    assert len(server.seen) == 3


def test_a_server_that_is_not_there_is_a_temporary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as gone:
        monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=gone.waits.append))
    embedder = asking(gone)
    with pytest.raises(EmbeddingError, match=gone.url) as raised:
        embedder.query("a")
    assert raised.value.temporary and len(gone.waits) == 4 and KEY not in repr(raised.value)


REFUSALS = {
    "OpenAI's": Reply({"error": {"message": "no such cheese", "type": "x"}}, status=400),
    "TEI's": Reply({"error": "no such cheese", "error_type": "Validation"}, status=413),
    "Cohere's": Reply({"message": "no such cheese"}, status=422),
    "FastAPI's": Reply({"detail": [{"msg": "no such cheese"}]}, status=404),
    "no JSON": Reply(b"no  such\n cheese", status=403),
    "501": Reply(b"no such cheese", status=501),
    "a redirect": Reply(b"no such cheese", status=307, headers={"Location": "http://127.0.0.1:9/"}),
}


@pytest.mark.parametrize("reply", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_final_and_says_what_the_server_says(server: Server, reply: Reply) -> None:
    error = refused(server, always(reply))
    assert not error.temporary and "no such cheese" in str(error) and str(reply.status) in str(error)
    assert len(server.seen) == 1


def with_rows(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Script:
    def changed(asked: dict[str, Any]) -> Reply:
        reply = honest(asked)
        return replace(reply, body={"data": change(reply.body["data"])})

    return changed


def with_vector(vector: object) -> Script:
    return with_rows(lambda rows: [*rows[:-1], rows[-1] | {"embedding": vector}])


WRONG = {
    "no JSON": always(Reply(b"<html>")),
    "half of JSON": always(Reply(b'{"data": [{"index": 0')),
    "an endless nest": always(Reply(b'{"a": ' + b"[" * 10**5)),
    "another object": always(Reply({"embeddings": []})),
    "one too few": with_rows(lambda rows: rows[1:]),
    "one too many": with_rows(lambda rows: [*rows, rows[0]]),
    "one twice": with_rows(lambda rows: [rows[0], *rows[:2]]),
    "one shorter": with_vector([1.0] * (DIM - 1)),
    "one longer": with_vector([1.0] * (DIM + 1)),
    "NaN": with_vector([1.0, math.nan, 1.0, 1.0]),
    "null": with_vector([1.0, None, 1.0, 1.0]),
    "beyond float32": with_vector([1e300] * DIM),
    "zero": with_vector([0.0] * DIM),
    "NaN in base64": with_vector(base64.b64encode(np.full(DIM, np.nan, "<f4").tobytes()).decode()),
    "no base64": with_vector("!!!!"),
    "base64 of a byte too many": with_vector(base64.b64encode(bytes(17)).decode()),
}


@pytest.mark.parametrize("script", WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_an_error_and_no_vector(server: Server, script: Script) -> None:
    assert not refused(server, script).temporary and len(server.seen) == 1


def test_texts_without_words_are_refused_by_their_place_before_anything_is_sent(server: Server) -> None:
    embedder = asking(server)
    for text in ("", " \n\t", "\u3000"):
        with pytest.raises(EmbeddingError, match="text 2 of 3"):
            embedder.passages(["a", text, "b"])
        with pytest.raises(EmbeddingError, match="text 1 of 1"):
            embedder.query(text)
    assert server.seen == []


def test_the_dimension_is_learned_once(server: Server) -> None:
    embedder = asking(server)
    assert embedder.passages([]).shape == (0, DIM)
    assert embedder.dim == DIM and len(server.seen) == 1
    server.script = [always(Reply({"data": [{"index": 0, "embedding": [1.0]}]}))]
    with pytest.raises(EmbeddingError, match=f"1 numbers.* {DIM}"):
        embedder.query("a")


def test_a_name_holds_what_changes_vectors_and_nothing_else() -> None:
    here = Access("http://host/v1")

    def name(access: Access = here, model: str = "BAAI/m") -> str:
        return RemoteEmbedder(access, model).name

    assert name() == "BAAI-m-60db50c4ff1d34b5"  # the same in every process
    assert name() == name(replace(ACCESS, url="http://host/v1/?key=1"))
    assert len({name(), name(Access("http://other/v1")), name(model="BAAI/n")}) == 3


def test_no_error_repeats_the_key(server: Server) -> None:
    echoes = [
        Reply({"error": {"message": f"Incorrect API key provided: {KEY}"}}, status=401),
        Reply(f"bad {KEY}".encode(), status=500),
        Reply(f"<html>{KEY}".encode()),
    ]
    with pytest.raises(EmbeddingError) as blank:
        Access("http://h", f"{KEY}\n")
    for error in (blank.value, *(refused(server, always(echo)) for echo in echoes)):
        assert KEY not in f"{error!r} {error.__cause__!r}" and (error.__suppress_context__ or not error.__context__)
    assert KEY not in repr(ACCESS)


@pytest.mark.parametrize("url", ["", "host:80/v1", "ftp://host", "http://", "http://name:pass@host/v1", "/"])
def test_a_url_that_names_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(EmbeddingError) as raised:
        RemoteEmbedder(Access(url), "m")
    assert not raised.value.temporary and "pass@" not in str(raised.value)


def test_threads_share_an_embedder(server: Server) -> None:
    embedder = asking(server)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(embedder.query, TEXTS * 5))
    np.testing.assert_allclose(np.stack(found), expected(TEXTS * 5), atol=1e-6)


def test_scores_have_the_order_of_the_texts(server: Server) -> None:
    reranker: Reranker = RemoteReranker(Access(server.url), "m")
    assert reranker.scores("q", TEXTS) == [relevance("q", text) for text in TEXTS]
    assert reranker.scores("q", []) == []
    assert [request.path for request in server.seen] == ["/v1/rerank"] * 4
    assert server.seen[0].body == {"model": "m", "query": "q", "documents": TEXTS[:3], "top_n": 3}


RERANKED = {
    "another form": Reply([{"index": 0, "score": 1.0}]),
    "a wrong index": Reply({"results": [{"index": 1, "relevance_score": 0.5}]}),
    "NaN": Reply(b'{"results": [{"index": 0, "relevance_score": NaN}]}'),
    "too large": Reply(b'{"results": [{"index": 0, "relevance_score": 1e999}]}'),
}


@pytest.mark.parametrize("reply", RERANKED.values(), ids=RERANKED)
def test_a_wrong_ranking_is_an_error(server: Server, reply: Reply) -> None:
    server.script = [always(reply)]
    reranker = RemoteReranker(Access(server.url))
    with pytest.raises(EmbeddingError) as raised:
        reranker.scores("q", ["a"])
    assert not raised.value.temporary and len(server.seen) == 1


def test_a_ranking_is_asked_for_again_too(server: Server) -> None:
    server.script = [always(Reply(status=503))]
    reranker = RemoteReranker(Access(server.url))
    assert reranker.scores("q", ["a"]) == [relevance("q", "a")] and len(server.waits) == 1
    with pytest.raises(EmbeddingError, match="text 2 of 2"):
        reranker.scores("q", ["a", " "])
