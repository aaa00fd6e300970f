"""The API's reference as a page to try it on. Everything that it loads comes from here: no other host is asked."""

from pathlib import Path

import fastapi_offline
from fastapi import APIRouter, HTTPException
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse, Response

STATIC = Path(fastapi_offline.__file__).parent / "static"
SCRIPT, STYLE = "swagger-ui-bundle.js", "swagger-ui.css"
POLICY = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"


def docs() -> APIRouter:
    """The page at `/docs`, what it loads under `/docs/`."""
    router = APIRouter(include_in_schema=False)

    async def page() -> HTMLResponse:
        shown = get_swagger_ui_html(
            openapi_url="openapi.json",
            title="kvweave API",
            swagger_js_url=f"docs/{SCRIPT}",
            swagger_css_url=f"docs/{STYLE}",
            swagger_favicon_url="console/icon.svg",
        )
        shown.headers["Content-Security-Policy"] = POLICY
        return shown

    async def part(name: str) -> Response:
        if name not in (SCRIPT, STYLE):
            raise HTTPException(404)
        return FileResponse(STATIC / name, headers={"Cache-Control": "max-age=86400"})

    router.add_api_route("/docs", page, methods=["GET"])
    router.add_api_route("/docs/{name}", part, methods=["GET"])
    return router
