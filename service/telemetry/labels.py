"""Folds values of metrics' labels (statuses, stages, refusals) into bounded sets, all others into `other`."""

from collections.abc import Callable
from dataclasses import fields
from http import HTTPStatus
from threading import Lock

from store.errors import MissReason
from store.fingerprint import Fingerprint

OTHER = "other"
LETTERS = 100

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLIENT_LEFT = 499  # no status of HTTP: what proxies write for it
STATUSES = frozenset(status.value for status in HTTPStatus) | {CLIENT_LEFT}

STAGES = frozenset({"queue", "retrieve", "fetch", "unpack", "fuse", "decode", "total"})
FINISHES = frozenset({"stop", "length", "cancelled"})
REFUSALS = frozenset(
    {
        "all",
        "key",
        "tenant",
        "anonymous",
        "address",
        "queue",
        "scrapes",
        "fetches",
    }  # by whose share of the places is taken
    | {"followers", "followers_of_key", "followers_of_tenant"}
    | {"slow_head", "slow_body", "slow_reader", "connections"}
)
UPLOAD_STATES = frozenset({"waiting", "computing", "ready", "failed", "cancelled", "deleted", "superseded"})

FINGERPRINT_FIELDS = frozenset(field.name for field in fields(Fingerprint))
UNREADABLE = frozenset({MissReason.NEWER_FORMAT})  # sound blobs, but not for this process

Fold = Callable[[str], str]


class SeenLabels:
    """Keeps the names of the first values up to a limit; all later ones are `other`. Safe for threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: dict[str, str] = {}
        self._lock = Lock()

    def __call__(self, value: str) -> str:
        name = self._names.get(value)
        if name is None:
            with self._lock:
                if len(self._names) >= self._limit:
                    return OTHER
                name = self._names.setdefault(value, _printable(value))
        return name


def one_of(known: frozenset[str]) -> Fold:
    return lambda value: value if value in known else OTHER


def miss(reason: MissReason) -> str:
    """The label for why a chunk's keys and values were not available."""
    if reason in FINGERPRINT_FIELDS:
        return f"fingerprint_{reason}"
    word = MissReason.UNSUPPORTED if reason in UNREADABLE else reason
    return word.name.lower()


def status(code: int) -> str:
    return str(code) if code in STATUSES else OTHER


def _printable(value: str) -> str:
    """A name that any scraper can read: a lone surrogate would break every later scrape."""
    return value[:LETTERS].encode("utf-8", "replace").decode()
