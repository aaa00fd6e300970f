"""Embedders and rerankers behind HTTP: OpenAI's embeddings, the rerank of Cohere, Jina and vLLM, and that of
text-embeddings-inference. Knows no tensors and no index. A key never appears in a text that leaves this file.

What may pass is tried again, a bounded number of times: a lost connection, a timeout, 408, 425, 429 and 5xx. What is
then still in the way is a temporary EmbeddingError; everything else that goes wrong is a lasting one, at once.
"""

import base64
import json
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from types import TracebackType
from typing import Self, TypeVar

import httpx
import msgspec
import numpy as np
from blake3 import blake3

from retriever.embedding import EmbeddingError, Instructions, Vector, Vectors, batches, checked, unit

MAX_ANSWER_BYTES = 256 << 20
MAX_WAIT_S = 60.0  # a server that asks for more patience than this gets none

_FIRST_WAIT_S = 0.5
_PASSING = frozenset({408, 425, 429})  # and 5xx but 501
_REMEDIES = {
    401: ": check the key",
    403: ": check the key",
    404: ": check the URL and the model's name",
    413: ": choose smaller batches",
}
_SAID = 500  # characters of a server's own words that go into an error
_LOOKED_AT = 1 << 16  # more, so that no key is cut in two before it is found

A = TypeVar("A")
R = TypeVar("R")
Wait = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Access:
    """How an endpoint is reached. `url` is what stands before /embeddings or /rerank, a query included.

    A request carries up to `batch_texts` texts and `batch_characters` characters, and takes up to `timeout_s` from its
    first byte to the answer's last, `attempts` times. Proxies are taken from the environment, as httpx does.
    """

    url: str
    key: str = field(default="", repr=False)
    timeout_s: float = 30.0
    attempts: int = 5
    batch_texts: int = 32  # text-embeddings-inference takes no more unless told to
    batch_characters: int = 100_000

    def __post_init__(self) -> None:
        if not self.key.isascii() or any(letter <= " " or letter == "\x7f" for letter in self.key):
            raise EmbeddingError("the key holds blanks or letters that no header can carry: copy it again")
        if min(self.timeout_s, self.attempts, self.batch_texts, self.batch_characters) <= 0:
            raise EmbeddingError(f"timeout, attempts and batch sizes are more than 0, got {self!r}")


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """`dim` is checked where it is given, else learned from the first answer. `shorten_to` asks the server for vectors
    of that length, which only some models can.
    """

    instructions: Instructions = field(default_factory=Instructions)
    dim: int | None = None
    shorten_to: int | None = None

    def __post_init__(self) -> None:
        if any(length is not None and length < 1 for length in (self.dim, self.shorten_to)):
            raise EmbeddingError(f"a vector has at least one number, got dim {self.dim}, shorten_to {self.shorten_to}")
        if self.dim and self.shorten_to and self.dim != self.shorten_to:
            raise EmbeddingError(f"vectors shortened to {self.shorten_to} cannot have dim {self.dim}: drop one")


class RerankForm(StrEnum):
    """Who speaks how."""

    COHERE = "cohere"  # Jina and vLLM too
    TEI = "tei"  # text-embeddings-inference


class _Endpoint:
    """POSTs JSON and reads JSON. May be called from any thread."""

    def __init__(self, access: Access, path: str, *, wait: Wait) -> None:
        self._access = access
        self._url = _url(access.url, path)
        self.label = str(self._url.copy_with(query=None))  # a query may hold a key
        self._wait = wait
        headers = {"Authorization": f"Bearer {access.key}"} if access.key else {}
        self._client = httpx.Client(timeout=access.timeout_s, headers=headers)

    def close(self) -> None:
        self._client.close()

    def post(self, body: dict[str, object], answer: type[A]) -> A:
        content = self._insist(json.dumps(body, allow_nan=False).encode())
        try:
            return msgspec.json.decode(content, type=answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EmbeddingError(
                f"{self.label} answered something else than was asked: {error}: {self._excerpt(content)}"
            ) from None

    def _insist(self, body: bytes) -> bytes:
        for attempt in range(1, self._access.attempts + 1):
            try:
                return self._exchange(body)
            except _Passing as passing:
                rest = self._access.attempts - attempt
                seconds = passing.after_s if passing.after_s is not None else _pause(attempt)
                if not rest or seconds > MAX_WAIT_S:
                    patience = f", and asks to wait {seconds:.0f} s" if passing.after_s else ""
                    raise EmbeddingError(
                        f"{self.label} {passing}{patience}, after {attempt} of {self._access.attempts} attempts: "
                        "try again later, or look at the server",
                        temporary=True,
                    ) from None
                self._wait(seconds)
        raise AssertionError("there is at least one attempt")

    def _exchange(self, body: bytes) -> bytes:
        """The answer's bytes. Not chained: what httpx raises may repeat what was sent."""
        end = time.monotonic() + self._access.timeout_s
        headers = {"Content-Type": "application/json"}
        try:
            with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                content = self._read(response, end)
        except httpx.TimeoutException:
            raise _Passing(f"did not answer within {self._access.timeout_s:g} s") from None
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
        """All of a body, unless it has no end: a byte now and then would outlast every timeout of one read."""
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
        """Some servers repeat the key that they refuse."""
        return text.replace(self._access.key, "***") if self._access.key else text


class _Detail(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    """How OpenAI, text-embeddings-inference and Cohere say what is wrong."""

    error: _Detail | str | None = None
    message: str = ""


class _Passing(Exception):
    """An exchange that may go better the next time, after so many seconds if the server said so."""

    def __init__(self, what: str, after_s: float | None = None) -> None:
        super().__init__(what)
        self.after_s = after_s


class _Remote:
    """What is behind one endpoint, and is closed with it."""

    def __init__(self, endpoint: _Endpoint) -> None:
        self._endpoint = endpoint

    def close(self) -> None:
        self._endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Embedded(msgspec.Struct):
    index: int
    embedding: list[float] | str  # numbers, or float32 in base64


class _Embeddings(msgspec.Struct):
    data: list[_Embedded]


class RemoteEmbedder(_Remote):
    """An `Embedder` behind POST {url}/embeddings. Nobody can tell whether a server changes its model under one name."""

    def __init__(
        self, access: Access, model: str, *, options: RemoteOptions | None = None, wait: Wait = time.sleep
    ) -> None:
        if not model:
            raise EmbeddingError("an embeddings endpoint is asked for a model by name: give one")
        super().__init__(_Endpoint(access, "/embeddings", wait=wait))
        self._access = access
        self._model = model
        self._options = options or RemoteOptions()
        self._lock = threading.Lock()
        self._dim = self._options.shorten_to or self._options.dim

    @property
    def name(self) -> str:
        """The model's name, and a digest of it, the URL without its query, and the options that change vectors."""
        told = self._options
        identity = [self._endpoint.label, self._model, asdict(told.instructions), told.shorten_to]
        digest = blake3(json.dumps(identity).encode()).hexdigest(8)
        return f"{re.sub(r'[^A-Za-z0-9_.]+', '-', self._model)}-{digest}"

    @property
    def dim(self) -> int:
        """Asks the server where nobody has told it yet."""
        return self._dim if self._dim is not None else len(self.query("dimension"))

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self._options.instructions.passage + text for text in checked(texts)])

    def query(self, text: str) -> Vector:
        return self._embed([self._options.instructions.query + checked([text])[0]])[0]

    def _embed(self, texts: list[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dim), np.float32)
        rows = [row for places in _batches(texts, self._access) for row in self._ask(texts[places.start : places.stop])]
        return unit(np.stack(rows), self._endpoint.label)

    def _ask(self, texts: list[str]) -> list[Vector]:
        body: dict[str, object] = {"model": self._model, "input": texts, "encoding_format": "float"}
        if self._options.shorten_to:
            body["dimensions"] = self._options.shorten_to
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
                f"{self._endpoint.label} answered {len(vector)} numbers a vector, due are {self._dim}: check dim"
            )
        return vector


class _Ranked(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranking(msgspec.Struct):
    results: list[_Ranked]


class _TeiRanked(msgspec.Struct):
    index: int
    score: float


class RemoteReranker(_Remote):
    """A `Reranker` behind POST {url}/rerank. Some servers need no model's name."""

    def __init__(
        self, access: Access, model: str = "", *, form: RerankForm = RerankForm.COHERE, wait: Wait = time.sleep
    ) -> None:
        super().__init__(_Endpoint(access, "/rerank", wait=wait))
        self._access = access
        self._model = model
        self._form = form

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        question, documents = checked([query])[0], checked(texts)
        ask = self._ask_tei if self._form is RerankForm.TEI else self._ask_cohere
        return [
            score
            for places in _batches(documents, self._access)
            for score in ask(question, documents[places.start : places.stop])
        ]

    def _ask_cohere(self, query: str, texts: list[str]) -> list[float]:
        body: dict[str, object] = {"query": query, "documents": texts, "top_n": len(texts)}
        if self._model:
            body["model"] = self._model
        rows = self._endpoint.post(body, _Ranking).results
        return _in_order([(row.index, row.relevance_score) for row in rows], len(texts), label=self._endpoint.label)

    def _ask_tei(self, query: str, texts: list[str]) -> list[float]:
        rows = self._endpoint.post({"query": query, "texts": texts, "truncate": True}, list[_TeiRanked])
        return _in_order([(row.index, row.score) for row in rows], len(texts), label=self._endpoint.label)


def _batches(texts: Sequence[str], access: Access) -> list[range]:
    return batches(texts, count=access.batch_texts, characters=access.batch_characters)


def _in_order(rows: list[tuple[int, R]], due: int, *, label: str) -> list[R]:
    """The results by their index, which says whose they are."""
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


def _pause(attempt: int) -> float:
    """Doubled each time, and spread, so that many clients do not come back at once."""
    return min(_FIRST_WAIT_S * 2 ** (attempt - 1), MAX_WAIT_S) * random.uniform(0.5, 1.0)


def _retry_after(header: str) -> float | None:
    """Seconds from now, of a number of seconds or a date; None where it is neither."""
    if re.fullmatch("[0-9]{1,9}", header):
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
