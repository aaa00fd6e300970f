"""Names in paths: any text, percent-encoded into one segment. A slash inside a name stays inside it."""

from typing import cast
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send


class NameConvertor(Convertor[str]):
    """A name as one segment of a path, as `PathSegments` leaves it."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", NameConvertor())


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
