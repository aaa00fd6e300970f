"""Guards routes: key, role, rate, media, strict JSON; threads; the header of a change. Localhost alone without keys."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from retriever.errors import RetrieverError
from service.access.interpreter_time import counted, elsewhere
from service.access.principal import OPEN, Principal, Role
from service.api.changes import HEADER, change_token
from service.api.problems import Renderers, failure_of
from service.errors import Forbidden, ServiceError, TooLarge, Unauthorized, WrongMedia
from service.telemetry.logs import note

if TYPE_CHECKING:
    from service.app.core import Core

BEARER = HTTPBearer(auto_error=False, scheme_name="bearer", description="An API key, as `kvweave keys create` made it")
SMALL = 1 << 16  # bytes of a body that are parsed at once, and not in a thread
# What takes the interpreter a tenth of a second, in which nothing else runs:
MOST_LISTS = 100_000  # lists and objects
MOST_TEXTS = 300_000  # names of fields included
MOST_ITEMS = 1_000_000
MOST_FIELDS = 10_000  # of one object, each of which may be a sentence that it is not known
LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})

_READER = ThreadPoolExecutor(1, "kvweave-body")  # it holds the interpreter: others must not go before it
_NO_KEY = "send a key in the header `Authorization: Bearer <key>`"
_UNKNOWN_KEY = "the key is not known, or it was revoked: `kvweave keys create` makes one"
_WITH_BODY = ("POST", "PUT", "PATCH")
_JSON = ("application/json",)

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[object, object, Response]]


def core_of(app: FastAPI) -> "Core":
    """What the application was started with."""
    return cast("Core", app.state.core)


async def principal(request: Request) -> Principal:
    """Who asks; counted once for each request. Raises Unauthorized, and Exhausted for a key that asks too often."""
    known = cast(Principal | None, getattr(request.state, "principal", None))
    if known is None:
        known = holder(request.scope)
        if known is None:
            raise Unauthorized(_NO_KEY if _key_of(request.scope) is None else _UNKNOWN_KEY)
        if known.per_minute is not None:
            await run_in_threadpool(core_of(request.app).rates.take, known)
        request.state.principal = known
    return known


def holder(scope: Scope) -> Principal | None:
    """Whose key a request has, looked up once; None without a valid one. On the event loop: it takes 20 µs."""
    state = cast(dict[str, object], scope.setdefault("state", {}))
    if "holder" not in state:
        core, key = core_of(scope["app"]), _key_of(scope)
        state["holder"] = found = OPEN if not core.settings.auth else core.control.identify(key) if key else None
        if found is not None:
            note(tenant=found.tenant, key=found.key_id)
    return cast(Principal | None, state["holder"])


def _key_of(scope: Scope) -> str | None:
    scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


class Guarded(APIRoute):
    """A route for those who have a key of its role. The body is read after that is sure, and not on the event loop."""

    role: ClassVar[Role] = Role.READ
    operators: ClassVar[bool] = False
    media: ClassVar[tuple[str, ...]] = _JSON
    changes: ClassVar[bool] = False

    def get_route_handler(self) -> Handler:
        call = self.dependant.call
        if call is not None and not iscoroutinefunction(call):
            self.dependant.call = partial(counted, call)  # in a thread
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            who = await principal(request)
            self.admit(who)
            parsed = Parsed(request.scope, request.receive)
            if request.method in _WITH_BODY:
                self.expect(request.headers)
            if request.method in _WITH_BODY and self.media == _JSON:
                await parsed.json()  # the framework would hide what is wrong with it
            response = await handle(parsed)
            if self.changes and response.status_code < 400:
                await run_in_threadpool(_tell_change, request, who, response=response)
            return response

        return guarded

    def admit(self, who: Principal) -> None:
        """Raise Forbidden for a key that may not come in here."""
        if who.role < self.role:
            raise Forbidden(f"this needs a key of role {self.role.label}, yours has {who.role.label}")
        if self.operators and not who.is_operator:
            raise Forbidden("this needs an operator's key: of role admin, of the tenant default, without a filter")

    def expect(self, headers: Headers) -> None:
        """Raise WrongMedia for a body of another kind than is taken here."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in self.media:
            raise WrongMedia(f"send {' or '.join(self.media)}, not {kind[:80] or 'a body without a Content-Type'}")


class Fetches(Guarded):
    """A route for every key, a vLLM's too."""

    role = Role.FETCH


class Reads(Guarded):
    """A route for keys that may ask."""


class Writes(Guarded):
    """A route for keys that may change what the tenant has. Its answers say which change a request must see."""

    role = Role.WRITE
    changes = True


class Uploads(Writes):
    """A route for such keys that takes files, too."""

    media = ("application/json", "multipart/form-data")


class Operates(Guarded):
    """A route for those who run the service."""

    role = Role.ADMIN
    operators = True


def _tell_change(request: Request, who: Principal, *, response: Response) -> None:
    """What was changed stays so where the number cannot be had any more."""
    with suppress(RetrieverError, ServiceError), core_of(request.app).tenant(who).catalog.view() as view:
        response.headers[HEADER] = change_token(view.state())


class Parsed(Request):
    """A request whose JSON is parsed once and strictly: no NaN, no half characters, no large body on the event loop."""

    _parsed: tuple[object] | None = None

    async def json(self) -> object:
        """See `Request.json`. Raises RequestValidationError."""
        if self._parsed is None:
            body = await self.body()
            self._parsed = (parse(body) if len(body) <= SMALL else await one_by_one(parse, body),)
        return self._parsed[0]


async def one_by_one(read: Callable[[bytes], T], body: bytes) -> T:
    """What is read of a large body. Steps take the interpreter for many milliseconds: there is one at a time."""
    return await asyncio.get_running_loop().run_in_executor(_READER, elsewhere(lambda: read(body)))


def parse(text: bytes, *, field: str = "body") -> object:
    """What a JSON text says. Raises RequestValidationError for what cannot be read, and TooLarge for too many parts."""
    texts = text.count(b'"') // 2
    if any(count > most for count, most, _ in _parts(text, texts=texts)):
        _refuse_many(text)
    try:
        found = cast(object, from_json(text, allow_inf_nan=False, cache_strings="keys"))
    except ValueError:  # or what it is too strict for
        found = _read_closely(text, field)
    if texts > MOST_FIELDS:
        _check_fields(found)
    return found


def _parts(text: bytes, *, texts: int) -> tuple[tuple[int, int, str], ...]:
    """How many parts of each kind a JSON text has at most, and may have."""
    lists, items = text.count(b"[") + text.count(b"{"), text.count(b",")
    return (lists, MOST_LISTS, "brackets"), (texts, MOST_TEXTS, "texts"), (items, MOST_ITEMS, "commas")


def _refuse_many(text: bytes) -> None:
    """Raises TooLarge for too many parts, without those that only stand inside of its texts."""
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    texts = bare.count(b'"') // 2
    outside = b"" if texts > MOST_TEXTS else b"".join(bare.split(b'"')[::2])
    for count, most, kind in _parts(outside, texts=texts):
        if count > most:
            raise TooLarge(
                f"JSON with {count:,} {kind} would hold up all others while it is read, at most {most:,} are taken: "
                "send less at once, or send files"
            )


def _check_fields(found: object) -> None:
    """Raises TooLarge for an object of very many fields."""
    inside = [found]
    while inside:
        each = inside.pop()
        if isinstance(each, dict) and len(cast(dict[str, object], each)) > MOST_FIELDS:
            raise TooLarge(f"an object of this JSON has more than {MOST_FIELDS:,} fields: send fewer")
        if isinstance(each, dict | list):
            held = cast(dict[str, object] | list[object], each)
            values = held.values() if isinstance(held, dict) else held
            inside += [value for value in values if isinstance(value, dict | list)]


def _read_closely(text: bytes, field: str) -> object:
    """What a text says that the quick reader refused, or the reason. It holds the interpreter twice as long."""
    try:
        found = cast(object, json.loads(text, parse_constant=_refuse))
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _not_json("a text has half a character, which no UTF-8 can say: take it out", field) from None
    except UnicodeDecodeError:
        raise _not_json("this is not UTF-8", field) from None
    except json.JSONDecodeError as error:
        raise _not_json(f"this is not JSON: {error.msg} at character {error.pos}", field) from None
    except (ValueError, RecursionError) as error:
        raise _not_json(f"this cannot be read: {error}", field) from None
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number that JSON knows")


def _not_json(message: str, field: str) -> RequestValidationError:
    return RequestValidationError([{"type": "json_invalid", "loc": (field,), "msg": message, "input": None}])


class KnownHosts:
    """Where no keys are asked for, a page of a foreign site must not reach the service through a name of its own."""

    def __init__(self, app: ASGIApp, *, renderers: Renderers) -> None:
        self._app = app
        self._renderers = renderers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_known(scope):
            error = Forbidden("without keys the service answers to localhost alone: call it so, or switch keys on")
            await self._renderers.respond(scope, failure_of(error))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        settings = core_of(scope["app"]).settings
        if settings.auth:
            return True
        bound = f"[{settings.host}]" if ":" in settings.host else settings.host
        return host_of(Headers(scope=scope).get("host", "")) in {*LOCAL, bound.lower()}


def host_of(header: str) -> str:
    """The host in a `Host` header, without the port."""
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::\d*)?", header.strip().lower())
    return found[1] if found else ""
