"""The page /docs: Swagger UI over the API's reference, with its security headers (CSP). Asks no other host."""

from pathlib import Path

import fastapi_offline
from fastapi import APIRouter, HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response

from service.api import console

STATIC = Path(fastapi_offline.__file__).parent / "static"
SCRIPT, STYLE, START = "swagger-ui-bundle.js", "swagger-ui.css", "start.js"
# Swagger UI writes styles, and HTML out of texts.
POLICY = {name: rule for name, rule in console.POLICY.items() if "trusted-types" not in name}
POLICY["style-src"] = "'self' 'unsafe-inline'"
SHOWN = {**console.HEADERS, "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items())}
PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvweave API</title>
<link rel="stylesheet" href="docs/{STYLE}">
<link rel="icon" href="console/icon.svg">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/{SCRIPT}"></script>
<script src="docs/{START}"></script>
</body>
</html>
"""
START_TEXT = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
});
"""


def docs() -> APIRouter:
    """The page at `/docs`, what it loads under `/docs/`."""
    router = APIRouter(include_in_schema=False)

    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE, headers=SHOWN)

    async def part(name: str) -> Response:
        if name == START:
            return Response(START_TEXT, media_type="text/javascript", headers=SHOWN)
        if name not in (SCRIPT, STYLE):
            raise HTTPException(404)
        return FileResponse(STATIC / name, headers={**SHOWN, "Cache-Control": "max-age=86400"})

    router.add_api_route("/docs", page, methods=["GET"])
    router.add_api_route("/docs/{name}", part, methods=["GET"])
    return router
