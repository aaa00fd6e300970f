"""Failures as HTTP answers (problem+json): faulty fields, what was meant, Retry-After, 404, 405. Tells no internals."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, cast, get_args

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Router
from starlette.types import Scope

from blend.errors import Late
from service.api.rendering import rendered
from service.errors import TABLE, UNFORESEEN, FailureKind, Invalid, ServiceError, Unauthorized, kind_of

MEDIA: Final = "application/problem+json"
MOST_FIELDS = 20  # fields that one answer names
LONGEST = 300  # characters of a message

KNOWN: Final = tuple(TABLE)
_TITLES: Final = {
    400: "The request cannot be read",
    404: "There is no such thing",
    405: "The method is not allowed here",
}
_UNREADABLE = re.compile("[\ud800-\udfff\x00]")


class FieldError(BaseModel):
    """What is wrong with a field of the request, such as `sampling.top_p`."""

    field: str = Field(examples=["sampling.top_p"])
    message: str = Field(examples=["Input should be less than or equal to 1"])


class Problem(BaseModel):
    """`detail` says what is wrong and what to do; `errors` name fields, where the request is not valid."""

    type: str = "about:blank"
    title: str = Field(examples=["The request is not valid"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["top_p must be in (0, 1], got 1.5"])
    request_id: str = Field(examples=["5f1d0c2ab7e94d0e"])
    errors: list[FieldError] = Field(default_factory=list[FieldError])


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, before anybody renders it."""

    status: int
    title: str
    detail: str
    code: str | None = None  # OpenAI's
    errors: tuple[FieldError, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Render = Callable[[Failure, str], Response]  # of a failure and the request's id


def failure_of(error: Exception) -> Failure:
    """What may be told of an exception. Of one that nobody foresaw: that it happened."""
    kind = kind_of(error)
    if kind is UNFORESEEN:
        detail = "what happened is in the log of the service, under this request's id"
        return Failure(kind.status, kind.title, detail)
    at = error.field if isinstance(error, Invalid) else ""
    named = (FieldError(field=at, message=str(error)),) if at else ()
    return Failure(kind.status, kind.title, _cut(str(error)), kind.code, errors=named, headers=_headers(error, kind))


def problem_of(failure: Failure, request_id: str) -> Problem:
    return rendered(Problem, failure, request_id=request_id)


def as_problem(failure: Failure, request_id: str) -> Response:
    """The response that everybody gets who has no form of errors of his own."""
    body = json.dumps(problem_of(failure, request_id).model_dump()).encode()
    return Response(body, failure.status, headers=dict(failure.headers), media_type=MEDIA)


class Renderers:
    """Which part of the interface has which form of errors: the longest path prefix decides."""

    def __init__(self, by_prefix: Mapping[str, Render]) -> None:
        self._by_prefix = sorted(by_prefix.items(), key=lambda each: -len(each[0]))

    def respond(self, scope: Scope, failure: Failure) -> Response:
        path = cast(str, scope["path"])
        render = next((render for prefix, render in self._by_prefix if path.startswith(prefix)), as_problem)
        request_id = request_id_of(scope)
        response = render(failure, request_id)
        if request_id:
            response.headers["x-request-id"] = request_id
        return response


def request_id_of(scope: Scope) -> str:
    """The request's id as the telemetry gave it; empty where there is none."""
    return cast(dict[str, str], scope.get("state", {})).get("request_id", "")


def install(app: FastAPI, renderers: Renderers) -> None:
    """Let every failure of this application become a response of the right form."""

    def known(request: Request, error: Exception) -> Response:
        return renderers.respond(request.scope, failure_of(error))

    def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return renderers.respond(request.scope, _invalid(error, _body_of(request)))

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return renderers.respond(request.scope, _refused(request, error))

    for kind in KNOWN:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, known)


def _headers(error: Exception, kind: FailureKind) -> dict[str, str]:
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": 'Bearer realm="kvweave"'}
    waits_s = error.retry_after_s if isinstance(error, ServiceError | Late) else kind.retry_after_s
    return {} if waits_s is None else {"Retry-After": str(max(1, math.ceil(waits_s)))}


def _field_error(error: Mapping[str, object], body: type[BaseModel] | None) -> FieldError:
    """A field in which pydantic found an error: where and why, and never the value that was sent.

    `body`: what the request should have been, whose fields are proposed for unknown ones.
    """
    place = cast(Sequence[object], error["loc"])
    message = _cut(str(error["msg"]).removeprefix("Value error, "))
    if error["type"] == "extra_forbidden" and body is not None and place[0] == "body":
        message = f"there is no such field{_instead(body, place[1:])}"
    return FieldError(field=_place(place), message=message)


def _instead(body: type[BaseModel], place: Sequence[object]) -> str:
    """The field of the body that somebody meant who wrote an unknown one: of that name elsewhere, or spelt alike."""
    around = [body]
    for part in place[:-1]:
        around = [model for each in around for model in _inner(each).get(str(part), around)]
    known = {
        name: f"{outer}.{name}" for outer, models in _inner(body).items() for each in models for name in _inner(each)
    }
    known |= {name: name for each in around for name in _inner(each)}
    near = get_close_matches(str(place[-1])[:64], known, n=1)
    return f": did you mean {known[near[0]]}?" if near else ""


def _inner(model: type[BaseModel]) -> dict[str, list[type[BaseModel]]]:
    """The fields of a model, and the models that each may hold."""
    return {each.alias or name: list(_models(each.annotation)) for name, each in model.model_fields.items()}


def _models(kind: object) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for each in get_args(kind):
        yield from _models(each)


def _body_of(request: Request) -> type[BaseModel] | None:
    body = getattr(request.scope.get("route"), "body_field", None)
    kind = body and body.field_info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _invalid(error: RequestValidationError, body: type[BaseModel] | None) -> Failure:
    errors = cast(Sequence[Mapping[str, object]], error.errors())
    found = tuple(_field_error(each, body) for each in errors[:MOST_FIELDS])
    message = "; ".join(f"{each.field}: {each.message}" if each.field else each.message for each in found[:3])
    return Failure(422, TABLE[Invalid].title, _cut(message), errors=found)


def _place(location: Sequence[object]) -> str:
    """The field's name, with dots. `body`, `query` and `path` are left out: a name tells enough."""
    inner = location[1:] if location and location[0] in ("body", "query", "path") else location
    return ".".join(_clean(str(each))[:64] for each in inner)


def _refused(request: Request, error: HTTPException) -> Failure:
    headers = dict(error.headers or {})
    title = _TITLES.get(error.status_code, "The request is refused")
    path = URL(scope=request.scope).path[:80]
    if error.status_code == 405:
        headers["Allow"] = ", ".join(allowed := _allowed(request, path=path))
        return Failure(405, title, _cut(f"{path} takes {' and '.join(allowed)}"), headers=headers)
    if error.status_code == 404 and error.detail == "Not Found":
        is_below = bool(_allowed(request, path=f"/v1{path}"))
        remedy = "/openapi.json lists all" if not is_below else f"/v1{path} is one, so end a client's base URL in /v1"
        detail = _cut(f"{path} is no path of this service: {remedy}")
        return Failure(404, title, detail, "unknown_url", headers=headers)
    return Failure(error.status_code, title, _cut(str(error.detail)), headers=headers)


def _allowed(request: Request, *, path: str) -> list[str]:
    """Every method that some route takes on a path; the framework tells those of the first alone."""
    scope = {key: value for key, value in request.scope.items() if key != "path_params"} | {"path": path}
    found: set[str] = set()
    for route in _flat(request.app.routes):
        methods = cast(set[str] | None, getattr(route, "methods", None))
        if methods and route.matches(scope)[0] is not Match.NONE:
            found |= methods
    return sorted(found)


def _flat(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """All routes, those of routers that an application includes too."""
    for route in routes:
        inner = cast(Router | None, getattr(route, "original_router", None))
        yield from (route,) if inner is None else _flat(inner.routes)


def _cut(message: str) -> str:
    message = _clean(message)
    return message if len(message) <= LONGEST else f"{message[: LONGEST - 1]}…"


def _clean(text: str) -> str:
    return _UNREADABLE.sub("\ufffd", text)
