"""The REST service over a store. Knows the store's contract, and no store."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from store.base import BlobStore
from store.errors import StoreError

PROBLEM = "application/problem+json"


class Health(BaseModel):
    """Whether the process lives."""

    status: str = Field(examples=["ok"])


class Problem(BaseModel):
    """An error as RFC 9457 has it."""

    title: str = Field(examples=["The store does not answer"])
    status: int = Field(examples=[503])
    detail: str = Field(examples=["s3://bucket does not answer as it should"])


class TierUsage(BaseModel):
    """What one tier of the store holds."""

    tier: str = Field(examples=["lmdb"])
    blobs: int = Field(examples=[1200])
    nbytes: int = Field(examples=[9_600_000_000])
    budget: int | None = Field(examples=[200_000_000_000])


class Stats(BaseModel):
    """What the service holds."""

    store: list[TierUsage]


UNAVAILABLE: dict[int | str, dict[str, object]] = {503: {"model": Problem, "description": "The store does not answer"}}


def create_app(open_store: Callable[[], BlobStore]) -> FastAPI:
    """The service; the store is opened at its start and closed at its end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        app.state.store = await run_in_threadpool(open_store)
        try:
            yield
        finally:
            await run_in_threadpool(app.state.store.close)

    app = FastAPI(title="kvweave", version=version("kvweave"), lifespan=lifespan)
    app.add_exception_handler(StoreError, _store_problem)
    app.get("/healthz", summary="Whether the process lives")(healthz)
    app.get("/readyz", summary="Whether the store answers", responses=UNAVAILABLE)(readyz)
    app.get("/v1/stats", summary="What the store holds, tier by tier", responses=UNAVAILABLE)(stats)
    return app


def healthz() -> Health:
    return Health(status="ok")


def readyz(request: Request) -> Health:
    _store(request).tenants()
    return Health(status="ready")


def stats(request: Request) -> Stats:
    rows = _store(request).usage()
    return Stats(store=[TierUsage(tier=r.tier, blobs=r.blobs, nbytes=r.nbytes, budget=r.budget) for r in rows])


def _store(request: Request) -> BlobStore:
    return request.app.state.store


def _store_problem(request: Request, error: Exception) -> Response:
    del request
    problem = Problem(title="The store does not answer", status=503, detail=str(error))
    return JSONResponse(problem.model_dump(), status_code=503, media_type=PROBLEM)
