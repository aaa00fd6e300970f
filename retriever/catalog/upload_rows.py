"""Rows of the tables of uploads as what they mean. Reads no content."""

from collections.abc import Sequence
from typing import Final

from retriever.catalog.connection import CatalogConnection
from retriever.upload_types import Job, QueuedUpload, UploadState

LIVE: Final = "state IN ('waiting', 'computing')"  # to the letter as the indexes of live uploads say it

_UPLOADS: Final = """
SELECT u.row, j.id, u.document, u.collection, u.name, u.state, u.version, u.chunks, u.stored, u.over_budget,
    u.unsupported, u.detail, u.created, u.updated
"""
_SUMS: Final = ", ".join(
    [
        *(f"count(*) FILTER (WHERE u.state = '{state}')" for state in UploadState),
        *(f"CAST(coalesce(sum(u.{each}), 0) AS BIGINT)" for each in ("chunks", "stored", "over_budget", "unsupported")),
    ]
)


def uploads(
    connection: CatalogConnection, where: str, *, values: Sequence[object], index: str | None = None
) -> list[QueuedUpload]:
    """The uploads that fit `where`, a text of this package. They are found by the index that is named, so that a
    queue is quick however long its history, or else by rows."""
    how = f"INDEXED BY {index}" if index else "NOT INDEXED"
    joined = f"FROM uploads u {how} CROSS JOIN jobs j ON j.row = u.job"
    found = connection.execute(f"{_UPLOADS} {joined} WHERE {where}", tuple(values))
    return [
        QueuedUpload(number, job, document, collection, name, UploadState(state), *others)
        for number, job, document, collection, name, state, *others in found
    ]


def jobs(connection: CatalogConnection, where: str, *, values: Sequence[object]) -> list[Job]:
    """The jobs that fit `where`, the newest first; it is of this package and names columns of `jobs`."""
    some = f"(SELECT row, id, created FROM jobs WHERE {where})"
    joined = f"FROM {some} j LEFT JOIN uploads u ON u.job = j.row GROUP BY j.row, j.id, j.created ORDER BY j.row DESC"
    columns = f"j.id, j.created, coalesce(max(u.updated), j.created), {_SUMS}"
    return [
        Job(
            *(name, created, updated),
            {state: count for state, count in zip(UploadState, sums[:-4], strict=True) if count},
            *sums[-4:],
        )
        for name, created, updated, *sums in connection.execute(f"SELECT {columns} {joined}", tuple(values))
    ]
