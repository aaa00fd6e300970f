"""What was put in and is not cut yet, and what became of it. Cuts nothing."""

from collections.abc import Sequence
from typing import Protocol

from retriever.upload_types import Job, NewUpload, QueuedUpload


class UploadsView(Protocol):
    """Uploads and their jobs, in one committed state."""

    def job(self, job: str) -> Job | None: ...

    def jobs(self, *, after: str = "", limit: int = 100) -> list[Job]:
        """The jobs, newest first, from behind `after` on; none where that is not known."""
        ...

    def uploads(self, job: str, *, first: int = 0, limit: int = 100) -> list[QueuedUpload]:
        """The uploads of a job in the order of their numbers, without the first so many."""
        ...

    def live(self, limit: int, *, but: Sequence[int] = ()) -> list[QueuedUpload]:
        """The first live uploads but these, in the order of their numbers."""
        ...

    def live_of(self, numbers: Sequence[int]) -> list[QueuedUpload]:
        """Those of these uploads that are live, in the order of their numbers."""
        ...

    def content(self, number: int) -> bytes | None:
        """The content of an upload that is live, None of any other."""
        ...

    def upload_of(self, document: str) -> QueuedUpload | None:
        """The upload of a document that counts: the last that was accepted."""
        ...


class UploadsChange(Protocol):
    """The changes of uploads, as part of one transaction."""

    def accept(self, job: str, uploads: Sequence[NewUpload]) -> list[QueuedUpload]:
        """Keep uploads, waiting, in a job that is new or has others already; returns them as they stand then, in order.

        Older live uploads of the same documents end as superseded. Raises DocumentError for names that cannot be kept.
        """
        ...

    def expand(self, number: int, uploads: Sequence[NewUpload]) -> bool:
        """Turn a file into documents: they are accepted in its job, in its place, and it is ready, without chunks.

        Those of which a later upload is live or ready are superseded at once, those that were deleted since the file
        was accepted are deleted. False, and nothing is done, where the file is not live.
        """
        ...

    def advance(self, upload: QueuedUpload) -> bool:
        """Write an upload's state, version, counts and detail. False, and nothing is written, where it is not live.

        Its version so far is dropped if another takes its place, and the given one if it ends otherwise than ready;
        what serves stays. What was staged for an upload that is not live any more is the caller's to drop.
        """
        ...

    def cancel(self, job: str) -> int:
        """End a job's live uploads as cancelled; returns how many. What they staged is dropped, as at all such ends."""
        ...

    def expected(self) -> tuple[int, int]:
        """How many documents and how many chunks there are when all uploads so far are ready.

        A document that does not serve yet, or a file, counts as one chunk.
        """
        ...

    def forget_uploads(self, before: float) -> int:
        """Forget jobs that are over and did not change since then; returns how many. Documents stay."""
        ...
