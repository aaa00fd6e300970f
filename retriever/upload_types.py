"""Uploads and jobs: their states, which are live, and what a new upload may depend on. Knows no tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class UploadState(StrEnum):
    """The first two are live; the others end an upload for good."""

    WAITING = "waiting"
    COMPUTING = "computing"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DELETED = "deleted"
    SUPERSEDED = "superseded"

    @property
    def is_live(self) -> bool:
        return self in (UploadState.WAITING, UploadState.COMPUTING)


@dataclass(frozen=True, slots=True)
class NewUpload:
    """A new upload. `document` is empty for a file, whose documents are unknown yet; `name` is empty for a draft.

    One without a collection waits for one: it is live, and worked on when it is accepted again, with one. `replaces`:
    the number of an upload whose content this has, which must be live still, or serve, or else it ends as deleted, or
    as superseded where another one of its document is live. `copies`: so must the version of another document, whose
    content this has.
    """

    document: str
    collection: str
    name: str
    content: bytes
    replaces: int | None = None
    copies: int | None = None


@dataclass(frozen=True, slots=True)
class QueuedUpload:
    """`number` is given once. `version`: what is staged for it, or was and serves; none where it came to nothing.

    `chunks`: how many it has; of these `stored`, `over_budget` and `unsupported` tell what became of their caches.
    Times are seconds since the epoch.
    """

    number: int
    job: str
    document: str
    collection: str
    name: str
    state: UploadState
    version: int | None
    chunks: int
    stored: int
    over_budget: int
    unsupported: int
    detail: str
    created: float
    updated: float


@dataclass(frozen=True, slots=True)
class Job:
    """Uploads that came together. `states`: how many are in each, where there are any; the counts are sums."""

    id: str
    created: float
    updated: float
    states: Mapping[UploadState, int]
    chunks: int
    stored: int
    over_budget: int
    unsupported: int

    @property
    def is_over(self) -> bool:
        return not any(state.is_live for state in self.states)
