"""The synchronous client: sends what `operations` makes, as `course` says."""

import math
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Self, TypeVar, cast

import httpx

from kvweave_client.course import Body, Course, Events
from kvweave_client.errors import KVWeaveError
from kvweave_client.methods import Methods
from kvweave_client.plans import Ask, Pause, Plan
from kvweave_client.requests import Cursor, Listing, Operation, Streaming
from kvweave_client.streams import Stream
from kvweave_client.target import BASE_URL, LIMITS, RETRIES, TIMEOUTS, Retries, Target, Timeouts
from kvweave_client.uploads import Multipart
from kvweave_client.wires import Wire, wire

T = TypeVar("T")


class Client(Methods):
    """The service at `base_url`. Safe for threads; `close` it, or use it in a `with`.

    `http` is a client of yours with proxies, certificates or transports; it stays open.
    """

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

    def run(self, operation: Operation[T], *, within_s: float = math.inf) -> T:
        """The answer to an operation."""
        wire = Wire(Course(operation.request, self._target, within_s=within_s))
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

    def stream(self, streaming: Streaming[T]) -> Stream[T]:
        """What a stream says; it is opened where it is first asked for an event."""
        wire = Wire(Course(streaming.request, self._target))
        return Stream(wire, self._events(streaming, wire))

    def _events(self, streaming: Streaming[T], wire: Wire) -> Generator[T]:
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

    def __exit__(self, *_: object) -> None:
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
        course.sent(body, sent)
