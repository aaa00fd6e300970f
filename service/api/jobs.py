"""Jobs over HTTP: listed, shown with their uploads, followed as events, cancelled; a job's status by its uploads."""

from collections.abc import AsyncGenerator
from typing import Annotated, Literal, NamedTuple

import anyio
from fastapi import Query, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from retriever.catalog.view import CatalogView
from retriever.upload_types import Job, UploadState
from service.api.caller import By, Caller, unknown
from service.api.changes import change_token
from service.api.fields import JobId, Limit
from service.api.rendering import rendered
from service.api.streams import EventStream, sse

POLL_S = 0.25

After = Annotated[str, Query(max_length=200, description="What the page before gave as `next`")]
AfterUpload = Annotated[int, Query(ge=0, lt=2**63, description="What the page before gave as `next`")]
Status = Literal["running", "done", "failed", "cancelled"]


class JobOut(BaseModel):
    """A job. `failed`: some upload did; `cancelled`: it was ended before all were ready. Times: seconds since 1970.

    Of its `chunks`, `stored`, `over_budget` and `unsupported` say what became of their caches.
    """

    id: str
    status: Status
    uploads: dict[str, int] = Field(description="How many are in each state", examples=[{"ready": 9, "waiting": 1}])
    chunks: int
    stored: int
    over_budget: int
    unsupported: int
    created: float
    updated: float
    search_waits: str = Field(
        description="What search by vectors waits for, of all documents; empty where it does not",
        examples=["vectors of 120 of 418 chunks are made"],
    )
    change: str = Field(
        description="What a later request sends in the header `Kvweave-Change`, to see what this job did"
    )


class UploadOut(BaseModel):
    """One document of a job, or a file."""

    document: str
    collection: str
    file: str
    state: str = Field(examples=["ready"])
    chunks: int
    stored: int
    over_budget: int
    unsupported: int
    detail: str


class JobDetail(JobOut):
    """A job with a page of its uploads."""

    items: list[UploadOut]
    next: int | None


class JobPage(BaseModel):
    """A page of jobs, newest first."""

    jobs: list[JobOut]
    next: str | None


def list_jobs(by: By, after: After = "", *, limit: Limit = 100) -> JobPage:
    """List the jobs, newest first. A key with a filter sees those that it began."""
    found: list[Job] = []
    if after and not by.owns(after):
        return JobPage(jobs=[], next=None)  # as behind a job that there never was
    with by.tenant.catalog.view() as view:
        seen = _seen(by, view)
        while page := view.jobs(after=after, limit=limit):
            after = page[-1].id
            found += [job for job in page if by.owns(job.id)]
            if len(page) < limit or len(found) >= limit:
                break
    return JobPage(
        jobs=[_shown(job, seen) for job in found[:limit]], next=found[limit - 1].id if len(found) >= limit else None
    )


def get_job(by: By, job_id: JobId, *, after: AfterUpload = 0, limit: Limit = 100) -> JobDetail:
    """Show how far a job is, and a page of its uploads."""
    with by.tenant.catalog.view() as view:
        job = view.job(job_id) if by.owns(job_id) else None
        if job is None:
            raise unknown("job", job_id)
        seen = _seen(by, view)
        found = view.uploads(job_id, first=after, limit=limit)
    return JobDetail(
        **_shown(job, seen).model_dump(),
        items=[rendered(UploadOut, each, document=by.who.shown_id(each.document), file=each.name) for each in found],
        next=after + limit if len(found) == limit else None,  # no upload's number: they count the whole tenant's
    )


def cancel_job(by: By, job_id: JobId) -> JobOut:
    """End what of a job is not ready. What is ready stays; a job that is over stays as it is."""
    _job(by, job_id)
    by.core.ingest.cancel(by.tenant, job_id)
    return _shown(*_job(by, job_id))


async def job_events(by: By, job_id: JobId) -> Response:
    """Send `progress` whenever a job changes, then `done`, each with the job. It ends early where the service does."""
    return EventStream(_events(by, await run_in_threadpool(_job, by, job_id)))


async def _events(by: Caller, begun: "tuple[Job, _Seen]") -> AsyncGenerator[bytes]:
    job, seen = begun
    yield sse("progress", _shown(job, seen))
    while not job.is_over:
        await anyio.sleep(POLL_S)
        latest, seen = await run_in_threadpool(_found, by, job.id)
        if latest is None or by.core.is_stopping():
            return
        if latest != job:
            yield sse("progress", _shown(latest, seen))
        job = latest
    yield sse("done", _shown(job, seen))


class _Seen(NamedTuple):
    """The state of a tenant's catalog in which a job was seen."""

    change: str
    search_waits: str


def _seen(by: Caller, view: CatalogView) -> _Seen:
    return _Seen(change_token(view.state()), by.tenant.library.awaited(view, counts=not by.is_bound))


def _found(by: Caller, job_id: str) -> tuple[Job | None, _Seen]:
    with by.tenant.catalog.view() as view:
        return view.job(job_id), _seen(by, view)


def _job(by: Caller, job_id: str) -> tuple[Job, _Seen]:
    job, seen = _found(by, job_id) if by.owns(job_id) else (None, None)
    if job is None or seen is None:
        raise unknown("job", job_id)
    return job, seen


def _shown(job: Job, seen: _Seen) -> JobOut:
    uploads = {state.value: count for state, count in job.states.items()}
    return rendered(JobOut, job, status=_status(job), uploads=uploads, **seen._asdict())


def _status(job: Job) -> Status:
    if not job.is_over:
        return "running"
    if job.states.get(UploadState.FAILED):
        return "failed"
    return "cancelled" if job.states.get(UploadState.CANCELLED) else "done"
