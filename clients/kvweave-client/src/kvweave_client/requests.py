"""Requests as data, and what is made of their answers. Knows no sockets and no endpoint."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from kvweave_client.errors import RequestError, UnexpectedAnswer
from kvweave_client.events import ServerEvent
from kvweave_client.uploads import Multipart

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Cursor = str | int
JSON = "application/json"
EVENTS = "text/event-stream"
NOTHING = ""  # an answer without a body
SHOWN = 120  # characters of an answer that an error shows


@dataclass(frozen=True, slots=True)
class Request:
    """`repeats`: sent twice it has the effect of once, so that a lost answer may be asked for again.

    `persists`: where the service is busy, it is asked again; else that is an answer, too.
    """

    method: str
    path: str
    body: bytes | Multipart = b""
    repeats: bool = True
    accepts: str = JSON
    persists: bool = True

    @property
    def name(self) -> str:
        """The request's name in messages: what a filter or a cursor says is left out."""
        return f"{self.method} {self.path.partition('?')[0]}"

    @property
    def is_bounded(self) -> bool:
        """Whether a limit on the whole call holds for it. Uploads and streams last as long as they move."""
        return self.accepts != EVENTS and isinstance(self.body, bytes)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of its body, and what it expects. Whoever compresses events on their way holds them back."""
        headers = {"Accept": self.accepts or "*/*"} | (
            {"Accept-Encoding": "identity"} if self.accepts == EVENTS else {}
        )
        if isinstance(self.body, Multipart):
            return headers | {"Content-Type": self.body.content_type, "Content-Length": str(self.body.length)}
        return headers | ({"Content-Type": JSON} if self.body else {})


@dataclass(frozen=True, slots=True)
class Operation(Generic[T_co]):
    """A request whose answer is a whole."""

    request: Request
    parse: Callable[[bytes], T_co]


class Page(Protocol[T_co]):
    """Entries, and where the next page begins; None behind the last one."""

    @property
    def entries(self) -> tuple[T_co, ...]: ...
    @property
    def next(self) -> Cursor | None: ...


@dataclass(frozen=True, slots=True)
class Listing(Generic[T_co]):
    """Pages of entries. `page` makes the request of the page behind a cursor, None for the first."""

    page: Callable[[Cursor | None], Operation[Page[T_co]]]

    def following(self, page: Page[object], after: Cursor | None) -> Cursor | None:
        """Where the page behind this one begins. Raises where that would go round in circles."""
        if page.next is not None and page.next == after:
            raise UnexpectedAnswer(f"the page behind {after!r} is said to begin at {after!r} again")
        return page.next


@dataclass(frozen=True, slots=True)
class Streaming(Generic[T]):
    """A request whose answer is events. `parse` makes something of an event, or None of one that says nothing.

    `ends` tells the last event: a stream that ends before it was cut off.
    """

    request: Request
    parse: Callable[[ServerEvent], T | None]
    ends: Callable[[ServerEvent], bool]


def path(*segments: str) -> str:
    """The path of these names, each of which is one percent-encoded segment."""
    for segment in segments:
        if segment in ("", ".", ".."):
            raise RequestError(f"{segment!r} is no name that a path can hold")
    try:
        return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)
    except UnicodeEncodeError as error:
        raise RequestError(f"a name must be text that can be encoded: {error}") from error


def with_query(address: str, **query: object) -> str:
    """The address with those of the query's values that are there."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{address}?{urlencode(given)}" if given else address


def encoded(body: Mapping[str, object]) -> bytes:
    """The body as JSON, which has neither NaN nor dates: such values are refused, and not turned into others."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the request cannot be written as JSON: {error}") from error


def of(kind: type[T]) -> Callable[[bytes], T]:
    """What reads an answer of this type."""

    def read(raw: bytes) -> T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnexpectedAnswer(
                f"the answer is not that of a kvweave service: {error}; it is {shown(raw)}"
            ) from error

    return read


def shown(raw: bytes) -> str:
    """The beginning of an answer."""
    text = raw[: SHOWN * 4].decode("utf-8", "replace")
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…") if text else "empty"
