"""What the head of an answer says, and what an error says in its body. Knows no connection."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx
import msgspec

from kvweave_client.errors import FieldError, OpenAIError, Problem, UnexpectedAnswer
from kvweave_client.requests import EVENTS, Request, shown

MOST_OF_ERROR: Final = 1024 * 1024  # bytes that are read of what is no answer


def is_kind(request: Request, response: httpx.Response) -> bool:
    """Whether this is an answer, and of the content type that was asked for."""
    return response.is_success and _kind(response) == request.accepts


def check_kind(request: Request, response: httpx.Response, *, body: bytes) -> None:
    """Raise UnexpectedAnswer where what is no error is not of the kind that was asked for."""
    if is_kind(request, response):
        return
    wanted = "events" if request.accepts == EVENTS else request.accepts or "nothing"
    raise UnexpectedAnswer(
        f"{request.name} was answered with {response.status_code} {_kind(response) or 'of no content type'}, "
        f"not with {wanted}: is the base URL that of a kvweave service? It says {shown(body)}{_elsewhere(response)}"
    )


def problem_of(response: httpx.Response, body: bytes) -> Problem:
    """What an error says, in any of the forms that services and proxies have."""
    request_id = response.headers.get("x-request-id", "")
    try:
        problem = msgspec.json.decode(body, type=_Said).problem(response.status_code, request_id=request_id)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problem = None
    if problem is not None:
        return problem
    detail = f"{response.reason_phrase or 'an error'}, {shown(body)}{_elsewhere(response)}"
    return Problem(response.status_code, response.reason_phrase, detail, request_id=request_id)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds from now until the service may be asked again, from either form of the header."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value[:9])
    try:
        when = parsedate_to_datetime(value)
        return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


class _Said(Problem, frozen=True, kw_only=True):
    """What the body of an error says: problem+json, or OpenAI's form."""

    status: int = 0
    error: OpenAIError | None = None

    def problem(self, status: int, *, request_id: str) -> Problem | None:
        error = self.error
        if error is not None:
            named = (FieldError(error.param, error.message),) if error.param else ()
            return Problem(status, self.title, error.message, error.type, request_id, named)
        if not self.detail and not self.title:
            return None
        return Problem(status, self.title, self.detail, self.type, self.request_id or request_id, self.errors)


def _kind(response: httpx.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _elsewhere(response: httpx.Response) -> str:
    target = response.headers.get("location")
    return f"; it points to {target!r}" if response.is_redirect and target else ""
