"""Where the service is, and what holds for every call of a client. Sends nothing."""

import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final
from urllib.parse import SplitResult, urlsplit

import httpx

BASE_URL: Final = "http://localhost:8000"
# Servers often end idle connections after 5 s, and a request that meets that is lost: ours end before.
LIMITS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=100, keepalive_expiry=3.0)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """`call_s` bounds a whole call with its repetitions; uploads and streams last as long as they move.

    `silence_s`: how long an upload or a stream may stand still; the first token of an answer may wait in a queue.
    """

    connect_s: float = 5.0
    call_s: float = 300.0
    silence_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "call_s", "silence_s"):
            seconds: float = getattr(self, name)
            if not seconds > 0:
                raise ValueError(f"{name} must be more than 0 seconds, got {seconds!r}")


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a call is tried again: when it was refused (429, 503), or its answer was lost and it may be repeated.

    The pause is random up to twice the one before, and at least what the service asks for in `Retry-After`. Where that
    is longer than `longest_s`, or than the call's time, the error is raised at once and says so.
    """

    most: int = 4
    first_s: float = 0.25
    longest_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("most", "first_s", "longest_s"):
            value: float = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number from 0 on, got {value!r}")


TIMEOUTS: Final = Timeouts()
RETRIES: Final = Retries()


class Target:
    """A service, the key for it, and how patient its client is."""

    def __init__(self, base_url: str, api_key: str | None, *, timeouts: Timeouts, retries: Retries) -> None:
        self.address = address_of(base_url)
        self.headers = headers_of(api_key)
        self.timeouts = timeouts
        self.retries = retries


def address_of(base_url: str) -> str:
    """The address without a slash at its end, and without the `/v1` that OpenAI's clients are given."""
    address = base_url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(address)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, is_whole = SplitResult("", "", "", "", ""), False
    if parts.username is not None:  # it would take the place of the API key, and stand in messages
        raise ValueError("the base URL holds a user or a password: leave them out, or give them to `http` as its auth")
    if not is_whole or not address.isprintable() or {" ", "?", "#"} & {*address}:
        raise ValueError(f"the base URL must be like {BASE_URL}, got {base_url!r}")
    return address


def headers_of(api_key: str | None) -> dict[str, str]:
    """The headers that every request has."""
    known = {"User-Agent": f"kvweave-client/{version('kvweave-client')}"}
    key = (api_key or "").strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the API key has letters that no key has: copy it again")
    return known | ({"Authorization": f"Bearer {key}"} if key else {})
