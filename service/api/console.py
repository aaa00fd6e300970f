"""The console page and the files that it loads: static, the same for everybody, and open without a key."""

from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from fastapi import APIRouter, HTTPException, Request, Response

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

    router.add_api_route("/", page, methods=["GET", "HEAD"])
    router.add_api_route("/console/{name}", part, methods=["GET", "HEAD"])
    return router


def _file(path: Path) -> StaticFile:
    content = path.read_bytes()
    return StaticFile(content, MEDIA[path.suffix], f'"{blake3(content).hexdigest(16)}"')


def _served(request: Request, file: StaticFile) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media)
