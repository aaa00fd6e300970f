"""The asynchronous client: sends what `operations` makes, as `course` says. Runs on asyncio and trio."""

import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar, cast

import anyio
import anyio.to_thread
import httpx

from kvweave_client import operations
from kvweave_client.answers import Job
from kvweave_client.course import Body, Course, Events
from kvweave_client.errors import Cancelled, KVWeaveError
from kvweave_client.methods import named
from kvweave_client.plans import Ask, Pause, Plan
from kvweave_client.requests import Cursor, Listing, Operation, Request, Streaming
from kvweave_client.target import BASE_URL, LIMITS, RETRIES, TIMEOUTS, Retries, Target, Timeouts
from kvweave_client.uploads import Multipart
from kvweave_client.waiting import wait_for

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
        self._course = client.course(streaming.request)
        self._events = client.events(streaming, self._course)  # knows nothing of the stream, so it ends with it

    async def aclose(self) -> None:
        """Leave the stream."""
        await self._events.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            if not self._course.is_over:  # it was left, or has raised before: that is no end
                raise Cancelled("the stream was left before its end") from None
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


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
        return await self.follow(wait_for(job_id, timeout_s=timeout_s, progress=progress))

    async def run(self, operation: Operation[T], *, within_s: float = math.inf) -> T:
        """The answer to an operation."""
        async with AsyncExitStack() as stack:
            _, body = await self._answered(self.course(operation.request, within_s=within_s), stack)
        return operation.parse(body)

    async def follow(self, plan: Plan[T]) -> T:
        """What a plan comes to, step by step."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = await self._step(step)
                except KVWeaveError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            return cast(T, end.value)

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

    async def events(self, streaming: Streaming[T], course: Course) -> AsyncGenerator[T]:
        """Yields the events of a stream. It is asked for again until there is an answer, and not from then on."""
        events = Events(streaming, course)
        async with AsyncExitStack() as stack:
            response, _ = await self._answered(course, stack)
            pieces = response.aiter_bytes()
            with events.reading():
                async for piece in pieces:
                    for said in events.heard(piece):
                        yield said
                    if course.is_over:
                        break
                course.finish()
                with anyio.move_on_after(course.left_s):
                    while await anext(pieces, b""):
                        pass

    async def _step(self, step: Ask | Pause) -> object:
        if isinstance(step, Ask):
            return await self.run(step.operation, within_s=step.within_s)
        await anyio.sleep(step.seconds)
        return None

    async def _answered(self, course: Course, stack: AsyncExitStack) -> tuple[httpx.Response, bytes]:
        """The answer, tried until there is one, and its body; that of a stream is still to be read."""
        while True:
            with course.trying():
                async with AsyncExitStack() as trial:
                    response = await self._opened(course, trial)
                    body = b"" if course.is_streamed(response) else await _read(response, course)
                    if course.is_answered(response, body):
                        stack.push_async_exit(trial.pop_all())
                        return response, body
            await anyio.sleep(course.pause_s)

    async def _opened(self, course: Course, stack: AsyncExitStack) -> httpx.Response:
        """One try, until the head of an answer is there: bounded as a whole, whatever the other side does."""
        request, timeout = course.request, course.begin()
        opening = self._http.stream(
            request.method,
            self._target.address + request.path,
            headers=self._target.headers | request.headers,
            content=_sent(request.body, course) if isinstance(request.body, Multipart) else request.body,
            timeout=timeout,
            follow_redirects=False,  # where it points may want another method, or another key
        )
        with anyio.move_on_after(course.left_s):
            return await stack.enter_async_context(opening)
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


async def _read(response: httpx.Response, course: Course) -> bytes:
    body = Body(response, course)
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
