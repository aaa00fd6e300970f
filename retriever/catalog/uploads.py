"""How uploads come into a catalog and end: accepted, expanded, superseded, cancelled; how much there will be then."""

import time
from collections.abc import Sequence

from retriever.catalog.rows import LIVE, uploads
from retriever.catalog.versions import VersionsChange
from retriever.documents import check_id
from retriever.errors import DocumentError
from retriever.filter_condition import LISTED, listed
from retriever.types import Removal
from retriever.upload_types import NewUpload, QueuedUpload, UploadState

_Row = tuple[int, int | None]  # an upload and its version


class UploadsChange(VersionsChange):
    """The changes of uploads, as part of one transaction."""

    def accept(self, job: str, uploads: Sequence[NewUpload]) -> list[QueuedUpload]:
        """Keep uploads, waiting, in a job that is new or has others already; returns them as they stand then, in order.

        Older live uploads of the same documents end as superseded. Raises DocumentError for names that cannot be kept.
        """
        number = self._job(job)
        return self._told([self._accepted(each, number, origin=None) for each in uploads])

    def expand(self, number: int, uploads: Sequence[NewUpload]) -> bool:
        """Turn a file into documents: they are accepted in its job, in its place, and it is ready, without chunks.

        Those of which a later upload is live or ready are superseded at once, those that were deleted since the file
        was accepted are deleted. False, and nothing is done, where the file is not live.
        """
        file = self._run(f"SELECT job, origin, version FROM uploads WHERE row = ? AND {LIVE}", (number,)).fetchone()
        if not file:
            return False
        job, origin, version = file
        nothing = "version = NULL, chunks = 0, stored = 0, over_budget = 0, unsupported = 0"
        self._run(f"UPDATE uploads SET {nothing} WHERE row = ?", (number,))
        self._end([(number, None)], UploadState.READY)
        if version is not None:
            self.drop(version)
        for each in uploads:
            self._accepted(each, job, origin=origin)
        return True

    def advance(self, upload: QueuedUpload) -> bool:
        """Write an upload's state, version, counts and detail. False, and nothing is written, where it is not live.

        Its version so far is dropped if another takes its place, and the given one if it ends otherwise than ready;
        what serves stays. What was staged for an upload that is not live any more is the caller's to drop.
        """
        found = self._run(f"SELECT version FROM uploads WHERE row = ? AND {LIVE}", (upload.number,)).fetchone()
        if not found:
            return False
        detail = upload.detail.encode(errors="replace").decode()  # an error's text may hold anything
        self._run(
            "UPDATE uploads SET state = ?, version = ?, chunks = ?, stored = ?, over_budget = ?, unsupported = ?, "
            "detail = ?, updated = ? WHERE row = ?",
            (
                *(upload.state, upload.version, upload.chunks, upload.stored, upload.over_budget, upload.unsupported),
                *(detail, time.time(), upload.number),
            ),
        )
        if found[0] not in (None, upload.version):
            self.drop(found[0])
        if not upload.state.is_live:
            self._end([(upload.number, upload.version)], upload.state)
        return True

    def cancel(self, job: str) -> int:
        """End a job's live uploads as cancelled; returns how many. What they staged is dropped, as at all such ends."""
        live = f"SELECT row, version FROM uploads WHERE job = (SELECT row FROM jobs WHERE id = ?) AND {LIVE}"
        found = self._run(live, (job,)).fetchall()
        self._end(found, UploadState.CANCELLED)
        return len(found)

    def expected(self) -> tuple[int, int]:
        """How many documents and how many chunks there are when all uploads so far are ready.

        A file, or a document of which nothing is staged and nothing serves, counts as one chunk.
        """
        serves = "SELECT 1 FROM documents d WHERE d.id = u.document AND d.serving = 1"
        counts = "count(*), count(*) FILTER (WHERE u.version IS NULL)"
        live = f"SELECT {counts} FROM uploads u INDEXED BY live_uploads WHERE {LIVE} AND NOT EXISTS ({serves})"
        arriving, uncut = self._run(live).fetchone()
        [documents] = self._run("SELECT count(*) FROM documents WHERE serving = 1").fetchone()
        [chunks] = self._run("SELECT count(*) FROM chunks").fetchone()
        return documents + arriving, chunks + uncut - self._leaving()

    def _leaving(self) -> int:
        """How many chunks nothing has any more once all that is staged serves."""
        staged = f"SELECT document FROM uploads INDEXED BY live_uploads WHERE {LIVE} AND version IS NOT NULL"
        held = (
            "SELECT p.chunk, count(*) AS times FROM documents d JOIN passages p ON p.document = d.row "
            f"WHERE d.serving = 1 AND d.id IN ({staged}) GROUP BY p.chunk"
        )
        [leaving] = self._run(
            f"SELECT count(*) FROM ({held}) AS held JOIN chunks c ON c.row = held.chunk WHERE c.uses = held.times"
        ).fetchone()
        return leaving

    def waiting_bytes(self) -> tuple[int, int]:
        """How large the contents of live uploads are together: of those with a collection, and of those without."""
        sums = (f"sum(nbytes) FILTER (WHERE collection {each} '')" for each in ("<>", "="))
        sizes = ", ".join(f"CAST(coalesce({each}, 0) AS BIGINT)" for each in sums)
        return self._run(f"SELECT {sizes} FROM uploads INDEXED BY live_sizes WHERE {LIVE}").fetchone()

    def forget_uploads(self, before: float) -> int:
        """Forget jobs that are over and did not change since then; returns how many. Documents stay."""
        since = f"SELECT 1 FROM uploads u WHERE u.job = j.row AND ({LIVE} OR u.updated >= ?1)"
        found = self._run(
            f"SELECT j.row FROM jobs j WHERE j.created < ?1 AND NOT EXISTS ({since})", (before,)
        ).fetchall()
        jobs = listed([row for (row,) in found])
        self._run(f"DELETE FROM uploads WHERE job IN {LISTED}", (jobs,))
        self._run(f"DELETE FROM jobs WHERE row IN {LISTED}", (jobs,))
        return len(found)

    def _delete_uploads(self, documents: Sequence[str]) -> list[Removal]:
        """Ends the uploads of these documents, now and when a file that waits is read."""
        files = f"SELECT max(row) FROM uploads INDEXED BY live_files WHERE {LIVE} AND document = ''"
        [last] = self._run(files).fetchone()
        if last is None:
            self._run("DELETE FROM deletions")
        else:
            told = [(document, last) for document in documents]
            sql = "INSERT INTO deletions VALUES (?, ?) ON CONFLICT (document) DO UPDATE SET upload = excluded.upload"
            self._connection.executemany(sql, told)
        return self._end(self._live_of(f"document IN {LISTED}", listed(documents)), UploadState.DELETED)

    def _delete_uploads_in(self, collection: str) -> list[Removal]:
        live = f"SELECT row, version FROM uploads INDEXED BY live_uploads WHERE {LIVE} AND collection = ?"
        return self._end(self._run(live, (collection,)).fetchall(), UploadState.DELETED)

    def _job(self, job: str) -> int:
        try:
            self._run("INSERT INTO jobs (id, created) VALUES (?, ?) ON CONFLICT (id) DO NOTHING", (job, time.time()))
        except UnicodeEncodeError as error:
            raise DocumentError(f"a job's name has no half characters: got {job[:80]!a}") from error
        [row] = self._run("SELECT row FROM jobs WHERE id = ?", (job,)).fetchone()
        return row

    def _accepted(self, upload: NewUpload, job: int, *, origin: int | None) -> int:
        """Keeps an upload; returns its number. One without an origin is the last that is wanted of its document."""
        if upload.document:
            check_id(upload.document)
        fate = None if origin is None else self._overtaken(upload.document, origin)
        is_gone = upload.replaces is not None and not self._is_there(upload.replaces)
        if is_gone or (upload.copies is not None and not self._serves(upload.copies)):
            others = self._live_of("document = ?", upload.document)
            fate = UploadState.SUPERSEDED if others else UploadState.DELETED
        if upload.document and not fate:
            self._end(self._live_of("document = ?", upload.document), UploadState.SUPERSEDED)
        number = self._kept_upload(upload, job, origin=origin)
        if fate:
            self._end([(number, None)], fate)
        return number

    def _is_there(self, number: int) -> bool:
        """Whether an upload is live, or its version serves."""
        found = self._run(f"SELECT version, {LIVE} FROM uploads WHERE row = ?", (number,)).fetchone()
        return found is not None and bool(found[1] or self._serves(found[0] or 0))

    def _serves(self, version: int) -> bool:
        return self._run("SELECT 1 FROM documents WHERE row = ? AND serving = 1", (version,)).fetchone() is not None

    def _overtaken(self, document: str, origin: int) -> UploadState | None:
        """How an upload ends whose document was put in later, which counts or still may, or was deleted; else None."""
        later = f"document = ? AND document <> '' AND origin > ? AND ({LIVE} OR state = 'ready')"
        found = self._run(f"SELECT 1 FROM uploads INDEXED BY uploads_of_document WHERE {later}", (document, origin))
        if found.fetchone():
            return UploadState.SUPERSEDED
        deleted = self._run("SELECT 1 FROM deletions WHERE document = ? AND upload >= ?", (document, origin))
        return UploadState.DELETED if deleted.fetchone() else None

    def _kept_upload(self, upload: NewUpload, job: int, *, origin: int | None) -> int:
        now = time.time()
        told = (upload.document, upload.collection, upload.name, UploadState.WAITING, now, now)
        try:
            [number] = self._run(
                "INSERT INTO uploads (job, origin, document, collection, name, state, created, updated, nbytes) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING row",
                (job, origin or 0, *told, len(upload.content)),
            ).fetchone()
        except UnicodeEncodeError as error:
            name = f"{upload.collection[:80]!a} and {upload.name[:80]!a}"
            raise DocumentError(f"names of a collection and a file have no half characters: got {name}") from error
        if origin is None:
            self._run("UPDATE uploads SET origin = row WHERE row = ?", (number,))
        # A connection keeps its statements, and SQLite with each what it was given last: nothing large.
        for content in (upload.content, b""):
            self._run("INSERT INTO contents VALUES (?, ?) ON CONFLICT DO NOTHING", (number, content))
        return number

    def _live_of(self, which: str, value: str) -> list[_Row]:
        live = f"SELECT row, version FROM uploads INDEXED BY live_uploads_of_document WHERE {LIVE} AND {which}"
        return self._run(live, (value,)).fetchall()

    def _end(self, found: Sequence[_Row], state: UploadState) -> list[Removal]:
        """Ends uploads and lets go of their contents, and of what is staged for them unless it is to serve."""
        rows = listed([row for row, _ in found])
        is_ready = state is UploadState.READY
        version = "version" if is_ready else "NULL"
        self._run(
            f"UPDATE uploads SET state = ?, version = {version}, updated = ? WHERE row IN {LISTED}",
            (state, time.time(), rows),
        )
        self._run(f"DELETE FROM contents WHERE upload IN {LISTED}", (rows,))
        if found and not is_ready:
            self._run("UPDATE facts SET value = 1 WHERE name = 'dropped'")
        return [] if is_ready else [self.drop(version) for _, version in found if version is not None]

    def _told(self, numbers: Sequence[int]) -> list[QueuedUpload]:
        """The uploads as they stand at the end: one may have ended another."""
        return uploads(self._connection, f"u.row IN {LISTED} ORDER BY u.row", values=[listed(numbers)])
