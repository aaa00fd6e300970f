"""All REST routes as one table: method, path, handler, role, statuses; a name with slashes as one segment of a path."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import quote, unquote

from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api import cache, collections, documents, handoffs, jobs, query, search, stats, uploads
from service.api.guards import Fetches, Operates, Reads, Uploads, Writes
from service.api.openapi import (
    ANSWER,
    FUSED,
    LAYER,
    PROGRESS,
    SCRAPE,
    TO_COLLECTION,
    TO_DOCUMENT,
    TO_JOB,
    Schema,
)

ONE = "/v1/documents/{document_id:name}"
COLLECTION = "/v1/collections/{name:name}"
JOB = "/v1/jobs/{job_id}"
HANDOFF = "/v1/handoffs/{handle}"


@dataclass(frozen=True, slots=True)
class Route:
    """A route and its handler. `fails`: the statuses that only some routes have. `also`: another status of success.

    `answers`: by media type what it answers with, where its handler renders that itself. `links`: what follows.
    """

    method: str
    path: str
    handler: Callable[..., object]
    kind: type[APIRoute]
    fails: tuple[int, ...] = ()
    status: int = 200
    also: int | None = None
    answers: dict[str, Schema] = field(default_factory=dict[str, Schema])
    links: dict[str, Schema] = field(default_factory=dict[str, Schema])

    @property
    def tag(self) -> str:
        part = self.path.removeprefix("/v1/").strip("/").partition("/")[0]
        return "operations" if not self.path.startswith("/v1/") or part in ("admin", "stats") else part


ROUTES = (
    Route("POST", "/v1/documents", uploads.post_documents, Uploads, (400,), status=202, links=TO_JOB),
    Route("GET", "/v1/documents", documents.list_documents, Reads),
    Route("GET", f"{ONE}/chunks", documents.list_chunks, Reads, (404,)),
    Route("GET", ONE, documents.get_document, Reads, (404,)),
    Route("PUT", ONE, documents.put_document, Writes, status=202, links=TO_DOCUMENT),
    Route("PATCH", ONE, documents.patch_document, Writes, (404,)),
    Route("DELETE", ONE, documents.delete_document, Writes, (404,)),
    Route("GET", "/v1/collections", collections.list_collections, Reads),
    Route("GET", COLLECTION, collections.get_collection, Reads, (404,)),
    Route("PUT", COLLECTION, collections.put_collection, Writes, also=201, links=TO_COLLECTION),
    Route("DELETE", COLLECTION, collections.delete_collection, Writes, (404,)),
    Route("GET", "/v1/jobs", jobs.list_jobs, Writes),
    Route("GET", JOB, jobs.get_job, Writes, (404,)),
    Route("DELETE", JOB, jobs.cancel_job, Writes, (404,)),
    Route("GET", f"{JOB}/events", jobs.job_events, Writes, (404,), answers=PROGRESS),
    Route("POST", "/v1/search", search.search, Reads, (404,)),
    Route("POST", "/v1/rerank", search.rerank, Reads, (404,)),
    Route("POST", "/v1/query", query.query, Reads, (404,), answers=ANSWER),
    Route("DELETE", "/v1/sessions/{name:name}", query.end_session, Reads, status=204),
    Route("POST", "/v1/fuse", handoffs.fuse, Reads, (404,), answers=FUSED),
    Route("GET", HANDOFF, handoffs.get_handoff, Fetches, (404,)),
    Route("GET", f"{HANDOFF}/layers/{{layer}}", handoffs.get_layer, Fetches, (404,), answers=LAYER),
    Route("DELETE", HANDOFF, handoffs.release_handoff, Fetches, (404,), status=204),
    Route("POST", "/v1/cache/lookup", cache.lookup, Reads, (404,)),
    Route("POST", "/v1/cache/prefetch", cache.prefetch, Writes, (404,)),
    Route("POST", "/v1/cache/pin", cache.pin, Writes, (404,)),
    Route("POST", "/v1/cache/unpin", cache.unpin, Writes, (404,)),
    Route("POST", "/v1/cache/evict", cache.evict, Writes, (404,)),
    Route("GET", "/v1/stats", stats.stats, Reads),
    Route("GET", "/v1/admin/blend", stats.get_blend, Operates),
    Route("PUT", "/v1/admin/blend", stats.put_blend, Operates),
    Route("GET", "/metrics", stats.metrics, Operates, answers=SCRAPE),
    Route("GET", "/healthz", stats.healthz, APIRoute),
    Route("GET", "/readyz", stats.readyz, APIRoute, (503,)),
)


class NameConvertor(Convertor[str]):
    """A name as one segment of a path, as `PathSegments` leaves it."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", NameConvertor())
NAME = ":name"  # of a parameter in a path


class PathSegments:
    """Servers decode a path before it is matched, and a name's slash would split it: here it is encoded again."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = cast(bytes | None, scope.get("raw_path"))
        if scope["type"] == "http" and raw is not None and b"%" in raw:
            scope = {**scope, "path": "/".join(_decoded(each) for each in raw.decode("latin-1").split("/"))}
        await self._app(scope, receive, send)


def _decoded(segment: str) -> str:
    return unquote(segment).replace("%", "%25").replace("/", "%2F")
