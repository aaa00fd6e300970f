"""Limits on every request: the size of its head and of its body, counted as it streams in, and how many there are."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.core_of import core_of
from service.api.problems import Renderers, failure_of
from service.errors import Exhausted, HeadTooLarge, ServiceError, TooLarge

PROBES = ("/healthz", "/readyz")  # whoever watches over the service is never turned away
HEAD_BYTES = 1 << 16  # of the address and all headers

_HEAD_TOO_LARGE = HeadTooLarge(f"the address and the headers have at most {HEAD_BYTES:,} bytes: send fewer or shorter")


class RequestLimits:
    """The middleware that keeps both limits. It stands outside of all that reads a body."""

    def __init__(self, app: ASGIApp, *, renderers: Renderers) -> None:
        self._app = app
        self._renderers = renderers
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _head_bytes(scope) > HEAD_BYTES:
            await self._refuse(_HEAD_TOO_LARGE, scope, receive=receive, send=send)
            return
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        settings = core_of(scope["app"]).settings
        if self._running >= settings.max_requests:
            busy = Exhausted(f"{settings.max_requests} requests are running already: try again", retry_after_s=1)
            await self._refuse(busy, scope, receive=receive, send=send)
            return
        self._running += 1
        try:
            await self._within(settings.max_body_bytes, scope, receive=receive, send=send)
        finally:
            self._running -= 1

    async def _within(self, limit: int, scope: Scope, *, receive: Receive, send: Send) -> None:
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limit:
            await self._refuse(_too_large(limit), scope, receive=receive, send=send)
            return
        body = _Counted(limit, receive, send=send)
        await self._app(scope, body.receive, body.send)
        if body.is_exceeded and not body.is_started:
            await self._refuse(_too_large(limit), scope, receive=receive, send=send)

    async def _refuse(self, error: ServiceError, scope: Scope, *, receive: Receive, send: Send) -> None:
        await self._renderers.respond(scope, failure_of(error))(scope, receive, send)


class _Counted:
    """A body that ends with an error once it is too large; what the application then says is held back."""

    def __init__(self, limit: int, receive: Receive, *, send: Send) -> None:
        self._limit = limit
        self._receive = receive
        self._send = send
        self._read = 0
        self.is_started = False
        self.is_exceeded = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._limit:
                self.is_exceeded = True
                raise _too_large(self._limit)
        return message

    async def send(self, message: Message) -> None:
        if self.is_exceeded and not self.is_started:
            return
        self.is_started = True
        await self._send(message)


def _head_bytes(scope: Scope) -> int:
    fields: list[tuple[bytes, bytes]] = scope["headers"]
    return len(scope["path"]) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in fields)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a request's body has at most {limit:,} bytes: send less at once")
