"""The reasons why stored keys and values are not used (misses), and the errors of stores, each a builtin one too."""

from dataclasses import dataclass
from enum import StrEnum


class MissReason(StrEnum):
    """Why a chunk's stored keys and values are not used. A miss costs latency, never correctness.

    Reports use these words. A store gives the first of them; the others come from its callers.
    """

    ABSENT = "absent"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"  # the medium holds another key's blob under this key
    NEWER_FORMAT = "newer format"  # or a codec that this release does not know

    UNAVAILABLE = "unavailable"  # the store does not answer
    EVICTED = "evicted"
    PENDING = "pending"  # its document waits to be computed
    OVER_BUDGET = "over budget"
    UNSUPPORTED = "unsupported"  # the chunk can be served as text only
    CONTROLLER = "controller"  # blending was switched off for the request
    SOONER = "read: sooner here"  # computing it anew is expected to take less time
    TRIAL = "read: a trial"  # though its cache is expected to take slightly less, so that the expectation stays true
    NOT_FETCHED = "not fetched"  # vLLM did not take the prompt over, and computed it
    BEGUN = "begun before"  # its first tokens are those of a session, which ended within it
    TOKENS = "tokens"  # the record covers another number of them
    CODEC = "codec"  # what is stored is packed otherwise

    # The field in which the fingerprint of what is stored differs.
    WEIGHTS = "weights"
    ARCHITECTURE = "architecture"
    TOKENIZER = "tokenizer"
    ROPE = "rope"
    DTYPE = "dtype"
    PREFIX = "prefix"
    CAPTURE = "capture"


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a stored blob cannot be read or used."""

    reason: MissReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason.value


class StoreError(Exception):
    """The base of all errors that a store raises on purpose."""


class KeyFormatError(StoreError, ValueError):
    """A cache key or scope that was not written by `CacheKey.text`, or cannot be written by it."""


class SpecError(StoreError, ValueError):
    """A codec spec that names no codec."""


class UrlError(StoreError, ValueError):
    """A store URL that names no store."""


class RecordError(StoreError, ValueError):
    """A record that cannot be encoded: wrong shapes, wrong dtype, NaN or infinity."""


class BadBlob(StoreError, ValueError):
    """A blob, or one frame of it, that must not be used. A reader treats it as a miss."""

    def __init__(self, reason: MissReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class StoreUnavailable(StoreError, ConnectionError):
    """The medium does not answer, or answers with faults, after all retries."""


class StoreDenied(StoreError, PermissionError):
    """The medium refuses: credentials, permissions, or a read-only folder."""


class StoreFull(StoreError, OSError):
    """The disk or the map is full and nothing may be evicted."""


class StoreBusy(StoreError, BlockingIOError):
    """Another process holds what this operation needs for itself."""


class StoreClosed(StoreError, ValueError):
    """The store was closed."""
