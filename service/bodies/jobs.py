"""Jobs: what became of what was put in."""

from typing import Literal

from pydantic import BaseModel, Field

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
