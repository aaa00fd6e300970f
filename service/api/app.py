"""The application: routes, the order of middlewares, statuses in OpenAPI, the lifetime of the core. Builds no core."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.telemetry import TelemetryConfig

from service.api.caller import must_see
from service.api.changes import HEADER
from service.api.console import console
from service.api.docs import docs
from service.api.guards import BEARER, Guarded, KnownHosts, Uploads, Writes
from service.api.limits import PACE, Pace, RequestLimits, WhileCurrent
from service.api.openapi import describe_openapi, upload_body
from service.api.problems import Problem, Render, Renderers, install
from service.api.routes import ROUTES, PathSegments, Route

if TYPE_CHECKING:
    from service.app.core import Core

FAILURES = {
    400: "The request cannot be read",
    401: "A valid API key is needed",
    403: "The API key may not do this",
    404: "There is no such thing, or not for this key",
    409: "The header `Kvweave-Change` is of another catalog",
    408: "The body did not come in time",
    413: "The request is too large",
    415: "The body is of a kind that is not taken here",
    422: "The request is not valid",
    429: "Too many requests; `Retry-After` says when to try again",
    431: "The address and the headers are too large",
    500: "The service failed",
    503: "The service cannot do this now; `Retry-After` says when to try again",
}
_QUIET: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "auto_configure": False,
}  # ours tell no text of a request
INTRODUCTION = """Answers to questions over your documents, from stored keys and values of their chunks.

1. **A key.** The first start leaves one in `admin.key`, in the data folder. *Authorize* takes it here; clients send it
   as `Authorization: Bearer kvw_…`. `kvweave keys create` makes others.
2. **Documents.** `POST /v1/documents` takes texts, chunks or files and answers with a job at once;
   `GET /v1/jobs/{job_id}` says when they can be asked.
3. **Questions.** `POST /v1/query` answers with its sources and a report of how it came about; with `"stream": true` as
   events. `POST /v1/chat/completions` is OpenAI's interface, for its clients.

What goes wrong is a problem in JSON, with the value and the remedy in `detail`; under OpenAI's paths it has OpenAI's
form.
"""
CHANGE_HEADER = {
    "description": "What a later request sends in the header of this name, to see this change on any replica",
    "schema": {"type": "string"},
}
GUARDED = (401, 403, 409, 422, 429, 431, 500, 503)
WITH_BODY = (400, 408, 413, 415)


@dataclass(frozen=True, slots=True)
class Extension:
    """Another interface of the same application. `renders`: its form of errors, by the prefix of a path."""

    router: APIRouter
    renders: dict[str, Render] = field(default_factory=dict[str, Render])


def create_app(core_of: Callable[[], "Core"], *, extensions: Sequence[Extension] = (), pace: Pace = PACE) -> FastAPI:
    """The application; its core is built at the start, in a thread, and closed at the end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        app.state.core = await run_in_threadpool(core_of)
        try:
            yield
        finally:
            await run_in_threadpool(app.state.core.close)

    app = FastAPI(
        title="kvweave",
        version=version("kvweave"),
        description=INTRODUCTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        telemetry=_QUIET,
    )
    for route in ROUTES:
        _add(app, route)
    renderers = Renderers({prefix: render for each in extensions for prefix, render in each.renders.items()})
    for extension in extensions:
        app.include_router(extension.router)
    app.include_router(console())
    app.include_router(docs())
    install(app, renderers)
    app.add_middleware(PathSegments)
    app.add_middleware(KnownHosts, renderers=renderers)
    app.add_middleware(WhileCurrent, renderers=renderers)
    app.add_middleware(RequestLimits, renderers=renderers, pace=pace)
    app.openapi = lambda: describe_openapi(app)
    return app


def _add(app: FastAPI, route: Route) -> None:
    is_guarded = issubclass(route.kind, Guarded)
    app.router.add_api_route(
        route.path,
        route.handler,
        methods=[route.method],
        status_code=route.status,
        tags=[route.tag],
        operation_id=getattr(route.handler, "__name__", None),
        summary=(route.handler.__doc__ or "").split(".")[0].strip(),
        responses=_responses(route),
        dependencies=[Depends(BEARER), Depends(must_see)] if is_guarded else [],
        response_class=Response if route.answers else JSONResponse,
        openapi_extra=upload_body() if route.kind is Uploads else None,
        route_class_override=route.kind,
    )


def _responses(route: Route) -> dict[int | str, dict[str, object]]:
    statuses = set(route.fails)
    if issubclass(route.kind, Guarded):
        statuses |= set(GUARDED)
        statuses |= set(WITH_BODY) if route.method in ("POST", "PUT", "PATCH") else set()
    found: dict[int | str, dict[str, object]] = {
        status: {"model": Problem, "description": FAILURES[status]} for status in sorted(statuses)
    }
    if route.answers:
        found[route.status] = {"content": route.answers}
    if route.also:
        found[route.also] = {"model": route.handler.__annotations__["return"], "description": "It was made"}
    for status in filter(None, (route.status, route.also)):
        if route.links:
            found.setdefault(status, {})["links"] = route.links
        if issubclass(route.kind, Writes):
            found.setdefault(status, {})["headers"] = {HEADER: CHANGE_HEADER}
    return found
