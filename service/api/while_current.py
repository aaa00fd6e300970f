"""Answers go out only where the other services have not gone on without this one meanwhile. Knows no endpoint."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.peers import BEHIND
from service.api.core_of import core_of
from service.api.problems import Renderers, failure_of
from service.errors import Unavailable

_PROBES = ("/healthz", "/readyz")  # which say so themselves


class WhileCurrent:
    """The middleware that looks at a request's begin, and before each piece of its response."""

    def __init__(self, app: ASGIApp, *, renderers: Renderers) -> None:
        self._app = app
        self._renderers = renderers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        core = core_of(scope["app"])
        lease = core.lease()
        is_refused = is_begun = False

        async def send_while_current(message: Message) -> None:
            nonlocal is_refused, is_begun
            if is_refused:
                return
            if lease is not None and core.lease() == lease:
                is_begun = True
                await send(message)
                return
            is_refused = True  # of a response that had begun the rest does not come, and its connection is closed
            if not is_begun:
                await self._refuse(scope, receive, send=send)

        if lease is None:
            await self._refuse(scope, receive, send=send)
        else:
            await self._app(scope, receive, send_while_current)

    async def _refuse(self, scope: Scope, receive: Receive, *, send: Send) -> None:
        error = Unavailable(BEHIND, retry_after_s=1.0)
        await self._renderers.respond(scope, failure_of(error))(scope, receive, send)
