"""The errors of store. Each also inherits the builtin that a caller would expect to catch."""

from enum import StrEnum


class MissReason(StrEnum):
    """Why a blob cannot be had. A miss costs latency, never correctness."""

    ABSENT = "absent"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"  # the medium holds somebody else's blob under this key
    NEWER_FORMAT = "newer format"  # or a codec that this release does not know


class StoreError(Exception):
    """Whatever a store raises on purpose is one of these."""


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
