"""Limits on every request: size of head, size and pace of body, turn, place; no answer while a replica has no lease."""

import asyncio
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.interpreter_time import INTERPRETER, metered
from service.access.places import RETRY_S, NoPlace, Places, Share
from service.api.guards import core_of, holder
from service.api.problems import Renderers, failure_of
from service.api.turns import Turns
from service.errors import HeadTooLarge, ServiceError, TooLarge, TooSlow, Unavailable
from service.truth.peers import BEHIND

PROBES = ("/healthz", "/readyz")  # whoever watches over the service is never turned away
SCRAPES = "/metrics"
HANDOFFS = "/v1/handoffs/"  # vLLM asks for each layer of a prompt
HEAD_BYTES = 1 << 16  # of the address and all headers
WAITING, ANONYMOUS_WAITING = 512, 64  # requests of one key, or without any, that wait to begin

APART_S, LATEST_S = 0.02, 5.0  # refusals of one caller who comes again too soon: between two, and the last one

_EVENTS = re.compile(r"/v1/jobs/[^/]+/events")
_HEAD_TOO_LARGE = HeadTooLarge(f"the address and the headers have at most {HEAD_BYTES:,} bytes: send fewer or shorter")


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a body has to come: each piece within `piece_s`, and all within `spare_s` and the time of its bytes.

    Only time counts in which the service waits for the body.
    """

    piece_s: float = 20.0
    spare_s: float = 30.0
    bytes_per_s: float = 16_000


PACE = Pace()


class RequestLimits:
    """The middleware that keeps these limits. It stands outside of all that reads a body."""

    def __init__(self, app: ASGIApp, *, renderers: Renderers, pace: Pace = PACE) -> None:
        self._app = app
        self._renderers = renderers
        self._pace = pace
        self._turns = Turns(INTERPRETER.rests_s)
        self._turned_away: dict[str, float] = {}  # when a caller is next or was last, on the event loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _head_bytes(scope) > HEAD_BYTES:
            await self._refuse(_HEAD_TOO_LARGE, scope, receive=receive, send=send)
            return
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        core = core_of(scope["app"])
        try:
            place = await self._take_place(core.places, scope)
        except ServiceError as error:
            if isinstance(error, NoPlace):
                core.metrics.refused(error.kind)
                await self._delay_if_early(scope)
            await self._refuse(error, scope, receive=receive, send=send)
            return
        with place:
            work = self._body_limited(core.settings.max_body_bytes, scope, receive=receive, send=send)
            await (work if _is_apart(scope) else metered(work, partial(INTERPRETER.took, _owner(scope))))

    async def _take_place(self, places: Places, scope: Scope) -> AbstractContextManager[None]:
        who = holder(scope)
        if _is_apart(scope):
            return places.scrape() if scope["path"] == SCRAPES else places.fetch()
        caller, most = (who.key_id, WAITING) if who else ("", ANONYMOUS_WAITING)
        if self._turns.waiting(caller) >= most:
            raise NoPlace(Share("queue", caller, most, f"{most} requests wait to begin already: try again"))
        await self._turns.wait(caller, owner=_owner(scope))
        if who and _EVENTS.fullmatch(scope["path"]):
            return places.follower(who)
        client = scope.get("client")
        return places.request(who, address=client[0] if client else "")

    async def _delay_if_early(self, scope: Scope) -> None:
        """Returns at once for who is turned away, and late for who comes again sooner than he was told to.

        Hundreds of refusals in a second would keep the event loop from all others: who has many under way gets them
        one after another.
        """
        who, client, now = holder(scope), scope.get("client"), asyncio.get_running_loop().time()
        caller = who.key_id if who else client[0] if client else ""
        last = self._turned_away.pop(caller, -RETRY_S)
        is_early = now - last < RETRY_S
        until = min(max(now + RETRY_S, last + APART_S), now + LATEST_S) if is_early else now
        self._turned_away[caller] = until
        while now - self._turned_away[first := next(iter(self._turned_away))] >= RETRY_S:
            del self._turned_away[first]
        if is_early:
            await asyncio.sleep(until - now)

    async def _body_limited(self, limit: int, scope: Scope, *, receive: Receive, send: Send) -> None:
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limit:
            await self._refuse(_too_large(limit), scope, receive=receive, send=send)
            return
        body = _LimitedBody(limit, self._pace, receive=receive, send=send)
        await self._app(scope, body.receive, body.send)
        if isinstance(body.error, TooSlow):
            core_of(scope["app"]).metrics.refused("slow_body")
        if body.error and not body.is_started:
            await self._refuse(body.error, scope, receive=receive, send=send)

    async def _refuse(self, error: ServiceError, scope: Scope, *, receive: Receive, send: Send) -> None:
        response = self._renderers.respond(scope, failure_of(error))
        if isinstance(error, TooSlow | NoPlace):
            response.headers["connection"] = "close"  # what else comes of it is not waited for
        await response(scope, receive, send)


class _LimitedBody:
    """A body that ends with an error once it is too large or too slow; what the application then says is held back."""

    def __init__(self, limit: int, pace: Pace, *, receive: Receive, send: Send) -> None:
        self._limit, self._pace = limit, pace
        self._receive, self._send = receive, send
        self._read, self._waited_s = 0, 0.0
        self._is_whole = False
        self.is_started = False
        self.error: ServiceError | None = None

    async def receive(self) -> Message:
        message = await (self._receive() if self._is_whole else self._in_time())
        if message["type"] == "http.request":
            self._is_whole = not message.get("more_body", False)
            self._read += len(message.get("body", b""))
            if self._read > self._limit:
                self.error = _too_large(self._limit)
                raise self.error
        return message

    async def _in_time(self) -> Message:
        clock, pace = asyncio.get_running_loop().time, self._pace
        left_s = pace.spare_s + self._read / pace.bytes_per_s - self._waited_s
        began = clock()
        try:
            async with asyncio.timeout(min(pace.piece_s, left_s)):
                return await self._receive()
        except TimeoutError:
            self.error = TooSlow(
                f"after {self._read:,} bytes the body stood still for {pace.piece_s:g} s, or came with less than "
                f"{pace.bytes_per_s:,.0f} bytes a second: send it again, faster or in parts"
            )
            raise self.error from None
        finally:
            self._waited_s += clock() - began

    async def send(self, message: Message) -> None:
        if self.error and not self.is_started:
            return
        self.is_started = True
        await self._send(message)


def _owner(scope: Scope) -> str:
    """Whose time a request takes: its tenant's, or that of all who have no key."""
    who = holder(scope)
    return who.tenant if who else ""


def _is_apart(scope: Scope) -> bool:
    """Whether it is an operator's scrape, or vLLM's fetch of what others asked for: nobody's share is taken for it."""
    who, path = holder(scope), scope["path"]
    if who is None:
        return False
    return who.is_operator if path == SCRAPES else who.fetches_all and path.startswith(HANDOFFS)


def _head_bytes(scope: Scope) -> int:
    fields: list[tuple[bytes, bytes]] = scope["headers"]
    return len(scope["path"]) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in fields)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a request's body has at most {limit:,} bytes: send less at once")


class WhileCurrent:
    """Answers go out only where the other services have not gone on without this one meanwhile.

    It looks at a request's begin, and before each piece of its response; probes say so themselves.
    """

    def __init__(self, app: ASGIApp, *, renderers: Renderers) -> None:
        self._app = app
        self._renderers = renderers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
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
