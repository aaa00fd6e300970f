"""The asynchronous client: sends what `operations` makes, as `course` says. Runs on asyncio and trio."""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio
import anyio.to_thread
import httpx

from kvweave_client import operations
from kvweave_client.answers import Job, JobItem
from kvweave_client.course import Body, Course, Ending
from kvweave_client.errors import Cancelled
from kvweave_client.methods import named
from kvweave_client.replies import check_kind, is_kind
from kvweave_client.requests import Cursor, Listing, Operation, Request, Streaming
from kvweave_client.target import BASE_URL, LIMITS, RETRIES, TIMEOUTS, Retries, Target, Timeouts
from kvweave_client.uploads import Multipart
from kvweave_client.waiting import TOLD, Waiting, failure, is_well

P = ParamSpec("P")
T = TypeVar("T")


def _call(build: Callable[P, Operation[T]]) -> Callable[Concatenate["AsyncClient", P], Awaitable[T]]:
    async def call(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client.run(build(*args, **kwargs))

    return named(call, build, of="AsyncClient", result=lambda kind: kind)


def _each(build: Callable[P, Listing[T]]) -> Callable[Concatenate["AsyncClient", P], AsyncGenerator[T]]:
    def call(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T]:
        return client.each(build(*args, **kwargs))

    return named(call, build, of="AsyncClient", result=lambda kind: AsyncGenerator[kind])


def _events(build: Callable[P, Streaming[T]]) -> Callable[Concatenate["AsyncClient", P], "AsyncStream[T]"]:
    def call(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> "AsyncStream[T]":
        return client.stream(build(*args, **kwargs))

    return named(call, build, of="AsyncClient", result=lambda kind: AsyncStream[kind])


class AsyncStream(Generic[T]):
    """Events as they come. Leave it early by `aclose`, or at the end of an `async with`: the service then stops."""

    def __init__(self, client: "AsyncClient", streaming: Streaming[T]) -> None:
        self._talk = _Talk(client, streaming)
        self._events = self._talk.run()

    async def aclose(self) -> None:
        """Leave the stream."""
        await self._events.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            if not self._talk.ending.is_over:  # it was left, or has raised before: that is no end
                raise Cancelled("the stream was left before its end") from None
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Talk(Generic[T]):
    """The connection of a stream. Knows nothing of the stream, so it ends with it when a loop is left and forgotten."""

    def __init__(self, client: "AsyncClient", streaming: Streaming[T]) -> None:
        self._client = client
        self._request = streaming.request
        self._course = client.course(streaming.request)
        self.ending = Ending(streaming, self._course)

    async def run(self) -> AsyncGenerator[T]:
        """Yields the stream's events."""
        async with AsyncExitStack() as stack:
            pieces = (await self._open(stack)).aiter_bytes()
            try:
                async for piece in pieces:
                    for said in self.ending.heard(piece):
                        yield said
                    if self.ending.is_over:
                        break
                self._course.finish()
                with anyio.move_on_after(self._course.left_s):
                    while await anext(pieces, b""):
                        pass
            except httpx.HTTPError as error:
                if not self.ending.is_over:
                    raise self.ending.cut(error) from error
            if not self.ending.is_over:
                raise self.ending.cut()

    async def _open(self, stack: AsyncExitStack) -> httpx.Response:
        """Opens the answer. Tried again until there is one; from then on it is not asked again."""
        while True:
            try:
                async with AsyncExitStack() as trial:
                    response = await trial.enter_async_context(self._client.opened(self._request, self._course))
                    if is_kind(self._request, response):
                        stack.push_async_exit(trial.pop_all())
                        return response
                    body = await _read(self._request, response, course=self._course)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                pause = self._course.failed(error)
            else:
                if not response.is_error:
                    check_kind(self._request, response, body=body)
                pause = self._course.refused(response, body)
            await anyio.sleep(pause)


class AsyncClient:
    """The service at `base_url`. `aclose` it, or use it in an `async with`.

    A call that is cancelled ends its connection, and the service stops computing. `http` is a client of yours; it
    stays open.
    """

    health = _call(operations.health)
    ready = _call(operations.ready)
    stats = _call(operations.stats)
    models = _call(operations.models)

    search = _call(operations.search)
    rerank = _call(operations.rerank)
    query = _call(operations.query)
    stream_query = _events(operations.stream_query)
    chat = _call(operations.chat)
    stream_chat = _events(operations.stream_chat)

    put_documents = _call(operations.put_documents)
    upload_files = _call(operations.upload_files)
    documents = _each(operations.documents)
    document = _call(operations.document)
    put_document = _call(operations.put_document)
    patch_document = _call(operations.patch_document)
    delete_document = _call(operations.delete_document)
    chunks = _each(operations.chunks)

    collections = _call(operations.collections)
    collection = _call(operations.collection)
    put_collection = _call(operations.put_collection)
    delete_collection = _call(operations.delete_collection)

    jobs = _each(operations.jobs)
    job = _call(operations.job)
    job_items = _each(operations.job_items)
    follow_job = _events(operations.follow_job)
    cancel_job = _call(operations.cancel_job)

    lookup = _each(operations.lookup)
    prefetch = _call(operations.prefetch)
    pin = _call(operations.pin)
    unpin = _call(operations.unpin)
    evict = _call(operations.evict)
    blend_switch = _call(operations.blend_switch)
    put_blend_switch = _call(operations.put_blend_switch)

    def __init__(
        self,
        base_url: str = BASE_URL,
        api_key: str | None = None,
        *,
        timeouts: Timeouts = TIMEOUTS,
        retries: Retries = RETRIES,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._target = Target(base_url, api_key, timeouts=timeouts, retries=retries)
        self._http = http or httpx.AsyncClient(limits=LIMITS)
        self._is_ours = http is None

    async def wait(
        self, job_id: str, *, timeout_s: float | None = None, progress: Callable[[Job], None] | None = None
    ) -> Job:
        """The job when it is done. Raises JobFailed where it ended otherwise, TimedOut where it takes longer.

        `progress` is told the job at each look.
        """
        waiting = Waiting(job_id, timeout_s)
        while True:
            with waiting.look():
                job = await self.run(operations.job(job_id), within_s=waiting.look_s)
            if progress is not None:
                progress(job)
            pause = waiting.pause(job)
            if pause is None:
                break
            await anyio.sleep(pause)
        if job.status != "done":
            raise failure(job, await self._bad(job_id))
        return job

    async def _bad(self, job_id: str) -> list[JobItem]:
        bad: list[JobItem] = []
        async with aclosing(self.job_items(job_id)) as items:
            async for item in items:
                if not is_well(item):
                    bad.append(item)
                if len(bad) == TOLD:
                    break
        return bad

    async def run(self, operation: Operation[T], *, within_s: float = math.inf) -> T:
        """The answer to an operation."""
        request = operation.request
        course = self.course(request, within_s=within_s)
        while True:
            try:
                body, response = await self._tried(request, course)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                pause = course.failed(error)
            else:
                if not response.is_error:
                    check_kind(request, response, body=body)
                    return operation.parse(body)
                pause = course.refused(response, body)
            await anyio.sleep(pause)

    async def each(self, listing: Listing[T]) -> AsyncGenerator[T]:
        """All entries, page by page as they are asked for."""
        after: Cursor | None = None
        while True:
            page = await self.run(listing.page(after))
            for entry in page.entries:
                yield entry
            after = listing.following(page, after)
            if after is None:
                return

    def stream(self, streaming: Streaming[T]) -> "AsyncStream[T]":
        """What a stream says; it is opened where it is first asked for an event."""
        return AsyncStream(self, streaming)

    def course(self, request: Request, *, within_s: float = math.inf) -> Course:
        """The course of one call."""
        return Course(request, self._target, within_s=within_s)

    def opened(self, request: Request, course: Course) -> AbstractAsyncContextManager[httpx.Response]:
        """One try: an answer of which the head is there."""
        return self._http.stream(
            request.method,
            self._target.address + request.path,
            headers=self._target.headers | request.headers,
            content=_sent(request.body, course) if isinstance(request.body, Multipart) else request.body,
            timeout=course.begin(),
            follow_redirects=False,  # where it points may want another method, or another key
        )

    async def _tried(self, request: Request, course: Course) -> tuple[bytes, httpx.Response]:
        """Tries a call once, bounded as a whole, whatever the other side does with its bytes."""
        with anyio.move_on_after(course.left_s):
            async with self.opened(request, course) as response:
                return await _read(request, response, course=course), response
        raise course.late()

    async def aclose(self) -> None:
        """End the client's connections."""
        if self._is_ours:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _read(request: Request, response: httpx.Response, *, course: Course) -> bytes:
    body = Body(request, response, course=course)
    with anyio.move_on_after(course.left_s):
        async for piece in response.aiter_bytes():
            if not body.takes(piece):
                break
        return body.content
    raise course.late()


async def _sent(body: Multipart, course: Course) -> AsyncIterator[bytes]:
    """Yields the body. Files are read by another thread."""
    pieces, sent = body.pieces(), 0
    while piece := await anyio.to_thread.run_sync(next, pieces, b""):
        yield piece
        sent += len(piece)
        course.sent(sent)
