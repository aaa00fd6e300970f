"""The console page and its static files, open to all, with security headers (CSP); a link traded for the admin key.

Its one request of its own is for a key, in exchange for the token of a link that the service printed where it runs.
"""

from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import Field

from service.api.fields import Strict
from service.api.guards import LOCAL, core_of, host_of
from service.errors import Forbidden
from service.truth.databases import ADMIN_KEY

NEAR = ("127.0.0.1", "::1")
FOLDER = Path(__file__).parent.parent / "console"
PAGE = "index.html"
MEDIA = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    "form-action": "'none'",
    "require-trusted-types-for": "'script'",  # no text can become a script, or HTML, by a mistake of ours
    "trusted-types": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser asks each time; where nothing changed it is told so in a few bytes
}


_OR_PASTE = "paste the key of admin.key, or have `kvweave serve` print another link by a new start"
_FROM_AFAR = f"such a link works on the machine of the service alone, at localhost: {_OR_PASTE}"
_USED = f"this link was used already, or is older than ten minutes: {_OR_PASTE}"
_NO_KEY = "the admin key that the first start made is not in force any more: `kvweave keys create` makes another"


class LinkVisit(Strict):
    """What stood in a link behind its `#`."""

    token: str = Field(max_length=100)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """What is served under one name."""

    content: bytes
    media: str
    etag: str


def console() -> APIRouter:
    """The page at `/`, what it loads under `/console/`. All is read now, and once."""
    files = {path.name: _file(path) for path in FOLDER.iterdir() if path.suffix in MEDIA}
    router = APIRouter(include_in_schema=False)

    async def page(request: Request) -> Response:
        return _served(request, files[PAGE])

    async def part(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None or name == PAGE:
            raise HTTPException(404)
        return _served(request, file)

    router.add_api_route("/console/key", key_for_token, methods=["POST"])
    router.add_api_route("/", page, methods=["GET", "HEAD"])
    router.add_api_route("/console/{name}", part, methods=["GET", "HEAD"])
    return router


async def key_for_token(request: Request, visit: LinkVisit) -> Response:
    """The admin key for the token of the link, once. Raises Forbidden."""
    core, client = core_of(request.app), request.client
    if client is None or client.host not in NEAR or host_of(request.headers.get("host", "")) not in LOCAL:
        raise Forbidden(_FROM_AFAR)
    if not core.link.redeem(visit.token):
        raise Forbidden(_USED)
    file = core.settings.data / ADMIN_KEY
    key = await run_in_threadpool(lambda: file.read_text(encoding="utf-8").strip() if file.is_file() else "")
    if core.control.identify(key) is None:
        raise Forbidden(_NO_KEY)
    return JSONResponse({"key": key}, headers={"Cache-Control": "no-store"})


def _file(path: Path) -> StaticFile:
    content = path.read_bytes()
    return StaticFile(content, MEDIA[path.suffix], f'"{blake3(content).hexdigest(16)}"')


def _served(request: Request, file: StaticFile) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media)
