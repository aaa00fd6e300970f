"""The asynchronous client: sends what `operations` makes, as `course` says. Runs on asyncio and trio."""

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Self, TypeVar, cast

import anyio
import anyio.to_thread
import httpx

from kvweave_client.course import Body, Course, Events
from kvweave_client.errors import KVWeaveError
from kvweave_client.methods import Methods
from kvweave_client.plans import Ask, Pause, Plan
from kvweave_client.requests import Cursor, Listing, Operation, Streaming
from kvweave_client.streams import AsyncStream
from kvweave_client.target import BASE_URL, LIMITS, RETRIES, TIMEOUTS, Retries, Target, Timeouts
from kvweave_client.uploads import Multipart

T = TypeVar("T")


class AsyncClient(Methods):
    """The service at `base_url`. `aclose` it, or use it in an `async with`.

    A call that is cancelled ends its connection, and the service stops computing. `http` is a client of yours; it
    stays open.
    """

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

    async def run(self, operation: Operation[T], *, within_s: float = math.inf) -> T:
        """The answer to an operation."""
        course = Course(operation.request, self._target, within_s=within_s)
        async with AsyncExitStack() as stack:
            _, body = await self._answered(course, stack)
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

    def stream(self, streaming: Streaming[T]) -> AsyncStream[T]:
        """What a stream says; it is opened where it is first asked for an event."""
        course = Course(streaming.request, self._target)
        return AsyncStream(course, self._events(streaming, course))

    async def _events(self, streaming: Streaming[T], course: Course) -> AsyncGenerator[T]:
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

    async def __aexit__(self, *_: object) -> None:
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
        course.sent(body, sent)
