"""Embedders and rerankers behind HTTP (OpenAI's embeddings; rerank of Cohere, Jina, vLLM): timeout, retries, batches,
and which answers are refused. A key never appears in a text that leaves this file.

What may pass is tried again, a bounded number of times: a lost connection, a timeout, 408, 425, 429 and 5xx. What is
then still in the way is a temporary EmbeddingError; everything else that goes wrong is a lasting one, at once.
"""

import base64
import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx
import msgspec
import numpy as np
import stamina
from blake3 import blake3
from stamina.instrumentation import set_on_retry_hooks

from retriever.embedders.embedding import Vector, Vectors, batches, checked, unit
from retriever.errors import EmbeddingError

TIMEOUT_S = 30.0  # from a request's first byte to the answer's last
ATTEMPTS = 5
BATCH_TEXTS = 32  # in a request: text-embeddings-inference takes no more unless told to
BATCH_CHARACTERS = 100_000
MAX_ANSWER_BYTES = 256 << 20
MAX_WAIT_S = 60.0  # a server that asks to wait longer is not retried

_FIRST_WAIT_S = 0.25
_SPREAD_S = 0.25  # at most, so that many clients do not come back at once
_PASSING = frozenset({408, 425, 429})  # and 5xx but 501
_REMEDIES = {
    401: ": check the key",
    403: ": check the key",
    404: ": check the URL and the model's name",
    413: ": choose smaller batches",
}
_UNUSED = ({"query": "", "passage": ""}, None)  # in names as they were when there were options, so that vectors stay
_SAID = 500  # characters of a server's own words that go into an error
_LOOKED_AT = 1 << 16  # more, so that no key is cut in two before it is found

A = TypeVar("A")
R = TypeVar("R")

set_on_retry_hooks([])  # they would log a server's messages, which may repeat a text


@dataclass(frozen=True, slots=True)
class Access:
    """How an endpoint is reached. `url` is what stands before /embeddings or /rerank, a query included.

    Proxies are taken from the environment, as httpx does.
    """

    url: str
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.key.isascii() or any(letter <= " " or letter == "\x7f" for letter in self.key):
            raise EmbeddingError("the key holds blanks or letters that no header can carry: copy it again")


class _Endpoint:
    """POSTs JSON and reads JSON. May be called from any thread. Its connections stay open as long as the process."""

    def __init__(self, access: Access, path: str) -> None:
        self._access = access
        self._url = _url(access.url, path)
        self.label = str(self._url.copy_with(query=None))  # a query may hold a key
        headers = {"Authorization": f"Bearer {access.key}"} if access.key else {}
        self._client = httpx.Client(timeout=TIMEOUT_S, headers=headers)

    def post(self, body: dict[str, object], answer: type[A]) -> A:
        content = self._insist(json.dumps(body, allow_nan=False).encode())
        try:
            return msgspec.json.decode(content, type=answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EmbeddingError(
                f"{self.label} answered something else than was asked: {error}: {self._excerpt(content)}"
            ) from None

    def _insist(self, body: bytes) -> bytes:
        made = 0
        try:
            for attempt in stamina.retry_context(
                on=_patience,
                attempts=ATTEMPTS,
                timeout=None,
                wait_initial=_FIRST_WAIT_S,
                wait_jitter=_SPREAD_S,
                wait_max=MAX_WAIT_S,
            ):
                made = attempt.num
                with attempt:
                    return self._exchange(body)
        except _Passing as passing:
            patience = f", and asks to wait {passing.after_s:.0f} s" if passing.after_s else ""
            raise EmbeddingError(
                f"{self.label} {passing}{patience}, after {made} of {ATTEMPTS} attempts: "
                "try again later, or look at the server",
                temporary=True,
            ) from None
        raise AssertionError("there is at least one attempt")

    def _exchange(self, body: bytes) -> bytes:
        """The answer's bytes. Errors are not chained: what httpx raises may repeat what was sent."""
        end = time.monotonic() + TIMEOUT_S
        headers = {"Content-Type": "application/json"}
        try:
            with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                content = self._read(response, end)
        except httpx.TimeoutException:
            raise _Passing(f"did not answer within {TIMEOUT_S:g} s") from None
        except httpx.HTTPError as error:
            raise _Passing(f"cannot be reached: {self._redacted(str(error)) or type(error).__name__}") from None
        status = response.status_code
        if response.is_success:
            return content
        said = f"answered {status}: {self._excerpt(content)}"
        if status in _PASSING or (status >= 500 and status != 501):
            raise _Passing(said, _retry_after(response.headers.get("Retry-After", "")))
        if response.is_redirect:
            raise EmbeddingError(f"{self.label} {said}: give the URL that it moved to")
        raise EmbeddingError(f"{self.label} {said}{_REMEDIES.get(status, '')}")

    def _read(self, response: httpx.Response, end: float) -> bytes:
        """Reads all of a body, unless it has no end: a byte now and then would outlast every timeout of one read."""
        content = bytearray()
        for piece in response.iter_bytes():
            content += piece
            if len(content) > MAX_ANSWER_BYTES:
                raise EmbeddingError(
                    f"{self.label} answers with more than {MAX_ANSWER_BYTES} bytes: look at the server"
                )
            if time.monotonic() > end:
                raise httpx.ReadTimeout("the answer does not end")
        return bytes(content)

    def _excerpt(self, content: bytes) -> str:
        """The message that a server's error holds, or the beginning of what it said."""
        text = content[:_LOOKED_AT].decode(errors="replace")
        try:
            spoken = msgspec.json.decode(content, type=_Refusal)
            error = spoken.error
            text = (error.message if isinstance(error, _Detail) else error) or spoken.message or text
        except (msgspec.DecodeError, RecursionError):
            pass
        return self._redacted(" ".join(text.split()))[:_SAID]

    def _redacted(self, text: str) -> str:
        """The text without the key: some servers repeat the key that they refuse."""
        return text.replace(self._access.key, "***") if self._access.key else text


class _Detail(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    """How OpenAI, text-embeddings-inference and Cohere say what is wrong."""

    error: _Detail | str | None = None
    message: str = ""


class _Passing(Exception):
    """A failure worth a retry, after as many seconds as the server asks for."""

    def __init__(self, what: str, after_s: float | None = None) -> None:
        super().__init__(what)
        self.after_s = after_s


class _Embedded(msgspec.Struct):
    index: int
    embedding: list[float] | str  # numbers, or float32 in base64


class _Embeddings(msgspec.Struct):
    data: list[_Embedded]


class RemoteEmbedder:
    """An `Embedder` behind POST {url}/embeddings. Nobody can tell whether a server changes its model under one name."""

    def __init__(self, access: Access, model: str) -> None:
        if not model:
            raise EmbeddingError("an embeddings endpoint is asked for a model by name: give one")
        self._endpoint = _Endpoint(access, "/embeddings")
        self._model = model
        self._lock = threading.Lock()
        self._dim: int | None = None

    @property
    def name(self) -> str:
        """The model's name, and a digest of it and the URL without its query."""
        identity = [self._endpoint.label, self._model, *_UNUSED]
        digest = blake3(json.dumps(identity).encode()).hexdigest(8)
        return f"{re.sub(r'[^A-Za-z0-9_.]+', '-', self._model)}-{digest}"

    @property
    def dim(self) -> int:
        """The dimension of the vectors. Asks the server where it is not known yet."""
        return self._dim if self._dim is not None else len(self.query("dimension"))

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self._embed(checked(texts))

    def query(self, text: str) -> Vector:
        return self._embed(checked([text]))[0]

    def tokens(self, texts: Sequence[str]) -> None:
        return None

    def _embed(self, texts: list[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dim), np.float32)
        rows = [row for places in _batches(texts) for row in self._ask(texts[places.start : places.stop])]
        return unit(np.stack(rows), self._endpoint.label)

    def _ask(self, texts: list[str]) -> list[Vector]:
        body: dict[str, object] = {"model": self._model, "input": texts, "encoding_format": "float"}
        answered = self._endpoint.post(body, _Embeddings).data
        rows = _in_order([(row.index, row.embedding) for row in answered], len(texts), label=self._endpoint.label)
        return [self._vector(row) for row in rows]

    def _vector(self, spelled: list[float] | str) -> Vector:
        if isinstance(spelled, str):
            try:
                vector = np.frombuffer(base64.b64decode(spelled, validate=True), "<f4").astype(np.float32)
            except ValueError as error:
                raise EmbeddingError(f"{self._endpoint.label} answered base64 that holds no float32: {error}") from None
        else:
            with np.errstate(over="ignore"):  # what float32 cannot hold is found to be infinite later
                vector = np.array(spelled, np.float32)
        with self._lock:
            self._dim = self._dim or len(vector)
        if len(vector) != self._dim:
            raise EmbeddingError(
                f"{self._endpoint.label} answered {len(vector)} numbers a vector, due are {self._dim}: check the model"
            )
        return vector


class _Ranked(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranking(msgspec.Struct):
    results: list[_Ranked]


class RemoteReranker:
    """A `Reranker` behind POST {url}/rerank. Some servers need no model's name."""

    def __init__(self, access: Access, model: str = "") -> None:
        self._endpoint = _Endpoint(access, "/rerank")
        self._model = model

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        question, documents = checked([query])[0], checked(texts)
        return [
            score
            for places in _batches(documents)
            for score in self._ask(question, documents[places.start : places.stop])
        ]

    def _ask(self, query: str, texts: list[str]) -> list[float]:
        body: dict[str, object] = {"query": query, "documents": texts, "top_n": len(texts)}
        if self._model:
            body["model"] = self._model
        rows = self._endpoint.post(body, _Ranking).results
        return _in_order([(row.index, row.relevance_score) for row in rows], len(texts), label=self._endpoint.label)


def _batches(texts: Sequence[str]) -> list[range]:
    return batches(texts, count=BATCH_TEXTS, characters=BATCH_CHARACTERS)


def _in_order(rows: list[tuple[int, R]], due: int, *, label: str) -> list[R]:
    """The results ordered by their index."""
    found = dict(rows)
    if len(rows) != due or found.keys() != set(range(due)):
        raise EmbeddingError(
            f"{label} answered {len(rows)} results with {len(found)} indexes for {due} texts: look at the server"
        )
    return [found[index] for index in range(due)]


def _url(base: str, path: str) -> httpx.URL:
    try:
        url = httpx.URL(base)
    except (httpx.InvalidURL, ValueError):
        raise EmbeddingError("the endpoint's URL cannot be read: give one like http://host:8080/v1") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise EmbeddingError(f"{url.scheme}://{url.host} is no endpoint: give one like http://host:8080/v1")
    if url.userinfo:
        raise EmbeddingError(f"the URL of {url.host} holds a name or a password: give the key as a key")
    return url.copy_with(path=url.path.rstrip("/") + path)


def _patience(error: Exception) -> bool | float:
    """Whether to retry, or after how many seconds, where the server says so."""
    if not isinstance(error, _Passing) or error.after_s is None:
        return isinstance(error, _Passing)
    return error.after_s if error.after_s <= MAX_WAIT_S else False


def _retry_after(header: str) -> float | None:
    """Seconds from now, of a number of seconds or a date; None where it is neither."""
    if re.fullmatch("[0-9]{1,9}", header):
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
