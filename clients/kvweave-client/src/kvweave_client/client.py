"""The synchronous client: sends what `operations` makes, as `course` says."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar, cast

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
from kvweave_client.wires import Wire, wire

P = ParamSpec("P")
T = TypeVar("T")


def _call(build: Callable[P, Operation[T]]) -> Callable[Concatenate["Client", P], T]:
    def call(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.run(build(*args, **kwargs))

    return named(call, build, of="Client", result=lambda kind: kind)


def _each(build: Callable[P, Listing[T]]) -> Callable[Concatenate["Client", P], Iterator[T]]:
    def call(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return client.each(build(*args, **kwargs))

    return named(call, build, of="Client", result=lambda kind: Iterator[kind])


def _events(build: Callable[P, Streaming[T]]) -> Callable[Concatenate["Client", P], "Stream[T]"]:
    def call(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> "Stream[T]":
        return client.stream(build(*args, **kwargs))

    return named(call, build, of="Client", result=lambda kind: Stream[kind])


class Stream(Generic[T]):
    """Events as they come. Leave it early by `close`, or at the end of a `with`: the service then stops computing."""

    def __init__(self, client: "Client", streaming: Streaming[T]) -> None:
        self._wire = Wire(client.course(streaming.request))
        self._events = client.events(streaming, self._wire)  # knows nothing of the stream, so it ends with it

    def cancel(self) -> None:
        """Ends the stream from any thread: whoever waits for an event gets Cancelled, now."""
        self._wire.cut()

    def close(self) -> None:
        """Leave the stream, by the thread that reads it."""
        self._events.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return next(self._events)
        except StopIteration:
            if not self._wire.course.is_over:  # it was left, or has raised before: that is no end
                raise Cancelled("the stream was left before its end") from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """The service at `base_url`. Safe for threads; `close` it, or use it in a `with`.

    `http` is a client of yours with proxies, certificates or transports; it stays open.
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
        http: httpx.Client | None = None,
    ) -> None:
        self._target = Target(base_url, api_key, timeouts=timeouts, retries=retries)
        self._http = http or httpx.Client(limits=LIMITS)
        self._is_ours = http is None
        wire(self._http)

    def wait(
        self, job_id: str, *, timeout_s: float | None = None, progress: Callable[[Job], None] | None = None
    ) -> Job:
        """The job when it is done. Raises JobFailed where it ended otherwise, TimedOut where it takes longer.

        `progress` is told the job at each look.
        """
        return self.follow(wait_for(job_id, timeout_s=timeout_s, progress=progress))

    def run(self, operation: Operation[T], *, within_s: float = math.inf) -> T:
        """The answer to an operation."""
        wire = Wire(self.course(operation.request, within_s=within_s))
        with ExitStack() as stack:
            _, body = self._answered(wire, stack)
        return operation.parse(body)

    def follow(self, plan: Plan[T]) -> T:
        """What a plan comes to, step by step."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = self._step(step)
                except KVWeaveError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            return cast(T, end.value)

    def each(self, listing: Listing[T]) -> Iterator[T]:
        """All entries, page by page as they are asked for."""
        after: Cursor | None = None
        while True:
            page = self.run(listing.page(after))
            yield from page.entries
            after = listing.following(page, after)
            if after is None:
                return

    def stream(self, streaming: Streaming[T]) -> "Stream[T]":
        """What a stream says; it is opened where it is first asked for an event."""
        return Stream(self, streaming)

    def course(self, request: Request, *, within_s: float = math.inf) -> Course:
        """The course of one call."""
        return Course(request, self._target, within_s=within_s)

    def events(self, streaming: Streaming[T], wire: Wire) -> Generator[T]:
        """Yields the events of a stream. It is asked for again until there is an answer, and not from then on."""
        course, events = wire.course, Events(streaming, wire.course)
        with ExitStack() as stack:
            response, _ = self._answered(wire, stack)
            pieces = response.iter_bytes()
            with events.reading():
                for piece in pieces:
                    yield from events.heard(piece)
                    if course.is_over:
                        break
                course.finish()
                while not course.is_late and next(pieces, b""):
                    pass

    def _step(self, step: Ask | Pause) -> object:
        if isinstance(step, Ask):
            return self.run(step.operation, within_s=step.within_s)
        time.sleep(step.seconds)
        return None

    def _answered(self, wire: Wire, stack: ExitStack) -> tuple[httpx.Response, bytes]:
        """The answer, tried until there is one, and its body; that of a stream is still to be read."""
        course = wire.course
        while True:
            with course.trying(), ExitStack() as trial:
                response = self._opened(wire, trial)
                body = b"" if course.is_streamed(response) else _read(response, course)
                if course.is_answered(response, body):
                    stack.push(trial.pop_all())
                    return response, body
            wire.pause()

    def _opened(self, wire: Wire, stack: ExitStack) -> httpx.Response:
        """One try, until the head of an answer is there."""
        course, request = wire.course, wire.course.request
        opening = self._http.stream(
            request.method,
            self._target.address + request.path,
            headers=self._target.headers | request.headers,
            content=_sent(request.body, course) if isinstance(request.body, Multipart) else request.body,
            timeout=wire.timeout(course.begin()),
            follow_redirects=False,  # where it points may want another method, or another key
        )
        return stack.enter_context(opening)

    def close(self) -> None:
        """End the client's connections."""
        if self._is_ours:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read(response: httpx.Response, course: Course) -> bytes:
    body = Body(response, course)
    for piece in response.iter_bytes():
        if not body.takes(piece):
            break
    return body.content


def _sent(body: Multipart, course: Course) -> Iterator[bytes]:
    sent = 0
    for piece in body.pieces():
        yield piece
        sent += len(piece)
        course.sent(sent)
