"""The course of a call: how long it may take, and whether what went wrong is tried again. Sends nothing itself.

Both clients go the same way: `with course.trying()` they open an answer and read its body, if it has one, and ask
`is_answered`; where it says no, they pause for `pause_s` and try again. The events of a stream they read
`with events.reading()`, and hand its bytes to `events.heard`.
"""

import math
import random
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final, Generic, TypeVar

import httpx

from kvweave_client.errors import (
    Cancelled,
    ConnectionFailed,
    KVWeaveError,
    StreamCut,
    TimedOut,
    UnexpectedAnswer,
    error_of,
)
from kvweave_client.events import EventReader
from kvweave_client.replies import MOST_OF_ERROR, check_kind, is_kind, problem_of, retry_after_s
from kvweave_client.requests import EVENTS, Request, Streaming
from kvweave_client.target import Target
from kvweave_client.uploads import Multipart

T = TypeVar("T")

_REFUSED: Final = (429, 503)  # said before anything was done
_GONE: Final = 404
_PASSING: Final = (*_REFUSED, 408, 502, 504)  # something in front of the service lost the answer
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_OWN_FAULT: Final = (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.LocalProtocolError)
# Who stood still once, and who writes what nobody can read, is not asked again.
_FINAL: Final = (*_OWN_FAULT, httpx.ReadTimeout, httpx.WriteTimeout, httpx.DecodingError)
LAST_S: Final = 0.25  # for the end of a stream, behind its last event
_SHORTEST_S, _LONGEST_S = 0.001, 1e6  # what sockets take

_PERHAPS_DONE: Final = "An earlier try of this call got no answer, and may be what removed it."


class Course:
    """One call. `pause_s`: how long to wait before the next try. `is_over`: a stream has said its last event.

    `cancelled` is set where another thread ends the call.
    """

    def __init__(self, request: Request, target: Target, *, within_s: float = math.inf) -> None:
        self.request = request
        self.pause_s = 0.0
        self.is_over = False
        self.cancelled = Event()
        self._target = target
        self._limit_s = min(target.timeouts.call_s, within_s)
        self._end = time.monotonic() + self._limit_s if request.is_bounded else math.inf
        self._tries = 1
        self._is_lost = False  # a try that may have been served
        self._sent = 0

    @property
    def left_s(self) -> float:
        """How long the call may still take."""
        return max(self._end - time.monotonic(), _SHORTEST_S)

    @contextmanager
    def trying(self) -> Generator[None]:
        """One try. Raises what the caller is told of a connection that fails in it and is not tried again."""
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self.check_cancelled()
            self.pause_s = self.failed(error)

    def is_streamed(self, response: httpx.Response) -> bool:
        """Whether this is the stream that was asked for, and so has no body that is read whole."""
        return self.request.accepts == EVENTS and is_kind(self.request, response)

    def is_answered(self, response: httpx.Response, body: bytes) -> bool:
        """Whether this is the answer. Raises what the caller is told where it is none and is not asked for again."""
        if response.is_error:
            self.pause_s = self.refused(response, body)
            return False
        check_kind(self.request, response, body=body)
        return True

    def begin(self) -> httpx.Timeout:
        """Begins the next try; returns its timeouts. What bounded the refusal of the one before does not bound it."""
        timeouts = self._target.timeouts
        if not self.request.is_bounded:
            self._end = math.inf
        silence = min(self.left_s if self.request.is_bounded else timeouts.silence_s, _LONGEST_S)
        return httpx.Timeout(silence, connect=min(timeouts.connect_s, silence))

    def bound(self) -> None:
        """Bounds what is read from here on, which is whole: a call's time, for uploads and streams too."""
        self._end = min(self._end, time.monotonic() + self._limit_s)

    def finish(self) -> None:
        """Ends the call: its answer is read on only if the end comes now, so that its connection can serve again."""
        self._end = min(self._end, time.monotonic() + LAST_S)

    @property
    def is_late(self) -> bool:
        """Whether the call's time is over."""
        return time.monotonic() >= self._end

    def check_cancelled(self) -> None:
        """Raise Cancelled where another thread ended the call before its end."""
        if self.cancelled.is_set() and not self.is_over:
            raise Cancelled("the stream was cancelled")

    def late(self) -> TimedOut:
        """The error for a caller whose time is over."""
        return TimedOut(f"{self.request.name} took longer than {self._limit_s:g} s: allow it more by `timeouts`")

    def sent(self, body: Multipart, size: int) -> None:
        """Tell of what has gone out of a body in this try. What is sent again is no progress."""
        if size > self._sent:
            self._sent = size
            if body.progress is not None:
                body.progress(size, body.length)

    def failed(self, error: httpx.HTTPError | httpx.InvalidURL) -> float:
        """The pause behind a connection that did not serve."""
        is_unsent = isinstance(error, (*_UNSENT, *_OWN_FAULT))
        self._is_lost = self._is_lost or not is_unsent
        may_repeat = not isinstance(error, _FINAL) and (is_unsent or self.request.repeats)
        pause = self._pause() if may_repeat else None
        if pause is None:
            raise self.told(error) from error
        return pause

    def refused(self, response: httpx.Response, body: bytes) -> float:
        """The pause behind an answer that is an error."""
        after = retry_after_s(response.headers)
        status, request = response.status_code, self.request
        pause = None
        if request.persists and (status in _REFUSED or (status in _PASSING and request.repeats)):
            self._is_lost = self._is_lost or status not in _REFUSED
            pause = self._pause(at_least=after or 0.0)
        if pause is None:
            error = error_of(problem_of(response, body), retry_after_s=after)
            if status == _GONE and request.method == "DELETE" and self._is_lost:
                error.add_note(_PERHAPS_DONE)
            raise error
        return pause

    def told(self, error: Exception) -> KVWeaveError:
        """The error for the caller of a connection that failed."""
        name, address, timeouts = self.request.name, self._target.address, self._target.timeouts
        match error:
            case httpx.ConnectTimeout():
                return TimedOut(f"{address} took no connection within {timeouts.connect_s:g} s: {name}")
            case httpx.PoolTimeout():
                return TimedOut(f"no connection was free for {name}: close streams that you leave, or ask less at once")
            case httpx.TimeoutException() if self._end < math.inf:
                return self.late()
            case httpx.TimeoutException():
                return TimedOut(f"{name} stood still for {timeouts.silence_s:g} s: the log of the service says why")
            case httpx.DecodingError():
                return UnexpectedAnswer(f"{name} was answered in no readable form: {error}")
            case _:
                what = "cannot be reached" if isinstance(error, (*_UNSENT, *_OWN_FAULT)) else "broke off"
                times = f", tried {self._tries} times" if self._tries > 1 else ""
                return ConnectionFailed(f"{address} {what} ({error or type(error).__name__}): {name}{times}")

    def _pause(self, at_least: float = 0.0) -> float | None:
        """The pause before the next try; None where it is not tried again."""
        retries = self._target.retries
        if self._tries > retries.most or at_least > retries.longest_s:
            return None
        widest = min(retries.first_s * 2 ** min(self._tries - 1, 30), retries.longest_s)
        pause = at_least + random.uniform(widest / 4, widest)
        if pause >= self._end - time.monotonic():
            return None
        self._tries += 1
        return pause


class Body:
    """An answer that is read whole: within the call's time, and of what is no answer only the beginning."""

    def __init__(self, response: httpx.Response, course: Course) -> None:
        course.bound()
        self._course = course
        self._left = math.inf if is_kind(course.request, response) else MOST_OF_ERROR
        self._pieces: list[bytes] = []

    def takes(self, piece: bytes) -> bool:
        """Adds what came; returns whether it takes more."""
        if self._course.is_late:
            raise self._course.late()
        self._pieces.append(piece)
        self._left -= len(piece)
        return self._left > 0

    @property
    def content(self) -> bytes:
        """The bytes that came."""
        return b"".join(self._pieces)


class Events(Generic[T]):
    """What a stream says, until its end: that is told from a connection that was cut."""

    def __init__(self, streaming: Streaming[T], course: Course) -> None:
        self._streaming = streaming
        self._course = course
        self._reader = EventReader()

    @contextmanager
    def reading(self) -> Generator[None]:
        """The reading of the stream. Raises what the caller is told where it ends before its last event."""
        try:
            yield
        except httpx.HTTPError as error:
            self._course.check_cancelled()
            if not self._course.is_over:
                raise self._cut(error) from error
        self._course.check_cancelled()
        if not self._course.is_over:
            raise self._cut()

    def heard(self, piece: bytes) -> Iterator[T]:
        """Yields what these bytes complete."""
        try:
            for event in self._reader.feed(piece):
                said = self._streaming.parse(event)
                self._course.is_over = self._streaming.ends(event)
                if said is not None:
                    yield said
                    self._course.check_cancelled()
                if self._course.is_over:
                    return
        except OverflowError as error:
            raise UnexpectedAnswer(f"this is no stream of events: {error}") from error

    def _cut(self, error: httpx.HTTPError | None = None) -> KVWeaveError:
        """The error for the caller of a stream that was cut off before its end."""
        if isinstance(error, (httpx.TimeoutException, httpx.DecodingError)):
            return self._course.told(error)
        why = f" ({error or type(error).__name__})" if error else ""
        return StreamCut(f"the answer was cut off before its end{why}: ask again")
