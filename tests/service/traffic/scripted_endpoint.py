"""An endpoint that answers as a script says: streams of other servers' shapes, errors, and silence."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from threading import Lock
from typing import Any

from tests.servers.listening import listening

Json = dict[str, Any]

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    """What is sent. Without a whole `body` the connection is cut behind what there is of it."""

    body: bytes
    status: int = 200
    kind: str = "text/event-stream; charset=utf-8"


@dataclass(slots=True)
class ScriptedEndpoint:
    """A server on loopback. `asked`: the bodies of chats; `keys`: what stood in their headers."""

    url: str
    asked: list[Json] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)


def event(**fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def delta(**fields: object) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": None}])


ROLE = delta(role="assistant", content="")
END = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
DONE = b"data: [DONE]\n\n"


def usage(prompt: int, cached: int | None) -> bytes:
    """vLLM's last chunk: no choices, and details where it is told to give them."""
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": 2, **details})


def whole(prompt: int = 100, cached: int | None = 60) -> Reply:
    """An answer as vLLM streams it."""
    return Reply(b"".join([ROLE, delta(content="Yes"), delta(content="."), END, usage(prompt, cached), DONE]))


Answer = Callable[[Json, int], Reply]
Other = Callable[[str, str], Reply]


def _handler(
    found: ScriptedEndpoint, *, answer: Answer, models: Sequence[str], other: Other
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            listed = Reply(json.dumps({"data": [{"id": each} for each in models]}).encode(), kind=JSON)
            self._send(listed if self.path == "/v1/models" else other(self.command, self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.path.endswith("/chat/completions"):
                self._send(other(self.command, self.path))
                return
            with found.lock:
                number = len(found.asked)
                found.asked.append(body)
                found.keys.append(self.headers.get("Authorization", ""))
            self._send(answer(body, number))

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(other(self.command, self.path))

        def do_DELETE(self) -> None:
            self._send(other(self.command, self.path))

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Connection", "close")
            with suppress(ConnectionError):  # whoever was stopped has left
                self.end_headers()
                self.wfile.write(reply.body)
            self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def endpoint(
    answer: Answer,
    *,
    models: Sequence[str] = ("some/model",),
    other: Other = lambda method, path: Reply(b"", 404),
) -> Iterator[ScriptedEndpoint]:
    """Answers by body and number of a chat, the first is 0; `other`: what else it answers, by method and path."""
    found = ScriptedEndpoint("")
    handler = _handler(found, answer=answer, models=models, other=other)
    with listening(handler) as found.url:
        yield found
