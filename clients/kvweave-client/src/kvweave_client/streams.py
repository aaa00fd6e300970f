"""Streams as iterators: of events that come over either client. Knows no endpoint."""

from collections.abc import AsyncGenerator, Generator
from typing import Generic, Self, TypeVar

from kvweave_client.course import Course
from kvweave_client.errors import Cancelled
from kvweave_client.wires import Wire

T = TypeVar("T")


class Stream(Generic[T]):
    """Events as they come. Leave it early by `close`, or at the end of a `with`: the service then stops computing."""

    def __init__(self, wire: Wire, events: Generator[T]) -> None:
        self._wire = wire
        self._events = events  # knows nothing of the stream, so it ends with it

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

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(Generic[T]):
    """Events as they come. Leave it early by `aclose`, or at the end of an `async with`: the service then stops."""

    def __init__(self, course: Course, events: AsyncGenerator[T]) -> None:
        self._course = course
        self._events = events  # knows nothing of the stream, so it ends with it

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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
