"""Where a prompt's keys and values come from: kvweave, over HTTP, layer by layer. Knows no vLLM and no tensors.

A layer's body is its keys and then its values, token by token, each token's heads side by side.
"""

import http.client
import json
import ssl
import time
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from typing import cast
from urllib.parse import quote, urlsplit

CHECKSUM = "X-Crc32"
MOST_REASON = 200  # bytes of a refusal that are told


class Refused(Exception):
    """A prompt that cannot be had: gone, damaged, late, of another shape, or wanted no more."""


@dataclass(frozen=True, slots=True)
class LayerForm:
    """What one layer of the model keeps for a token."""

    index: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int

    @property
    def numbers(self) -> int:
        """How many numbers the layer keeps for each token."""
        return self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class PromptForm:
    """What kvweave says of a prompt: its tokens, the last one included, and the form of its numbers.

    `final`: so many layers, the first ones, are there. `shared`: the name of this host's memory that has them, if any.
    """

    tokens: int
    digest: str
    dtype: str
    layers: tuple[LayerForm, ...]
    final: int
    shared: str

    def start(self, layer: int) -> int:
        """How many numbers stand before those of a layer, counted from 0, where they lie one behind the other."""
        return (self.tokens - 1) * sum(each.numbers for each in self.layers[:layer])

    @classmethod
    def parse(cls, text: bytes | bytearray) -> "PromptForm":
        """The form in a body. Raises Refused for what is none."""
        try:
            said = cast("dict[str, object]", json.loads(text))
            layers = cast("list[dict[str, int]]", said["layers"])
            forms = tuple(LayerForm(**{name: int(each[name]) for name in LayerForm.__slots__}) for each in layers)
            tokens, final = (int(cast(int, said.get(name, 0))) for name in ("tokens", "final"))
            return cls(tokens, str(said["digest"]), str(said["dtype"]), forms, final, str(said["shared"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"kvweave describes the prompt in a way that this version does not know: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a layer: tokens, and heads of the `ranks` equal shares that tensor parallel workers have."""

    start: int
    stop: int
    rank: int
    ranks: int


class Source:
    """A kvweave service and the key for it. Safe for threads: each pull has a connection of its own."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url.rstrip("/").removesuffix("/v1"))
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError(f"the address of kvweave is like http://kvweave:8000, got {url!r}")
        self._parts = parts
        self._headers: Mapping[str, str] = {"Authorization": f"Bearer {key}"} if key else {}

    def pull(self, handle: str, *, timeout_s: float) -> "Pull":
        """A connection for one prompt, all of which has to come in that time."""
        path = f"{self._parts.path.rstrip('/')}/v1/handoffs/{quote(handle, safe='')}"
        return Pull(self._connection(timeout_s), path, headers=self._headers, timeout_s=timeout_s)

    def release(self, handle: str, *, timeout_s: float, used: bool = True) -> None:
        """Lets kvweave forget a prompt, and says whether it was used.

        Raises Refused where kvweave does not answer: the prompt's lease ends anyway.
        """
        with closing(self.pull(handle, timeout_s=timeout_s)) as pull:
            pull.release(used=used)

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        host, port = cast(str, self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port, timeout=timeout_s)


class Pull:
    """One prompt on its way. Every failure of it is a Refused."""

    def __init__(
        self, connection: http.client.HTTPConnection, path: str, *, headers: Mapping[str, str], timeout_s: float
    ) -> None:
        self._connection = connection
        self._path = path
        self._headers = headers
        self._end = time.monotonic() + timeout_s

    def form(self, final: int = 0) -> PromptForm:
        """What kvweave says of the prompt, as soon as so many of its layers are there."""
        return PromptForm.parse(self._ask("GET", f"?final={final}")[1])

    def layer(self, form: LayerForm, *, part: Part, nbytes: int) -> bytearray:
        """A part of a layer, so many bytes, checked."""
        wanted = f"/layers/{form.index}?start={part.start}&stop={part.stop}&rank={part.rank}&ranks={part.ranks}"
        headers, body = self._ask("GET", wanted)
        if len(body) != nbytes or str(zlib.crc32(body)) != headers.get(CHECKSUM):
            raise Refused(f"layer {form.index} came damaged")
        return body

    def release(self, *, used: bool = True) -> None:
        """Lets kvweave forget the prompt."""
        self._ask("DELETE", "" if used else "?used=false")

    def close(self) -> None:
        """Lets go of the connection."""
        self._connection.close()

    def _ask(self, method: str, rest: str) -> tuple[Message, bytearray]:
        try:
            self._set_patience()
            self._connection.request(method, self._path + rest, headers=dict(self._headers))
            answer = self._connection.getresponse()
            body = self._read(answer)
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"kvweave does not answer: {error!r}") from None
        if answer.status >= 300:
            said = bytes(body[:MOST_REASON]).decode("utf-8", "replace")
            raise Refused(f"kvweave answers {answer.status}: {said}")
        return answer.headers, body

    def _read(self, answer: http.client.HTTPResponse) -> bytearray:
        length = answer.length
        if length is None:
            return bytearray(answer.read())
        body, at = bytearray(length), 0
        view = memoryview(body)
        while at < length:
            self._set_patience()
            count = answer.readinto(view[at : at + (1 << 20)])
            if not count:
                raise http.client.IncompleteRead(b"", length - at)
            at += count
        answer.read()  # the connection is free for the next request then
        return body

    def _set_patience(self) -> None:
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the time for it is over")
        self._connection.timeout = left_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(left_s)
