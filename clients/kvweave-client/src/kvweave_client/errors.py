"""What can go wrong, one class for each remedy."""

import math
from collections.abc import Mapping
from functools import partial

import msgspec

from kvweave_client.answers import Job, JobItem


class FieldError(msgspec.Struct, frozen=True):
    """What is wrong with a field of the request, such as `sampling.top_p`."""

    field: str
    message: str


class Problem(msgspec.Struct, frozen=True):
    """What the service says of an error. `detail` says what is wrong and what to do."""

    status: int
    title: str = ""
    detail: str = ""
    type: str = "about:blank"
    request_id: str = ""
    errors: tuple[FieldError, ...] = ()


class OpenAIError(msgspec.Struct, frozen=True):
    """An error as OpenAI's API says it. `param`: the field of the request that is wrong."""

    message: str
    type: str = ""
    param: str | None = None

    @property
    def status(self) -> int:
        """The status that the error's type tells, for a stream, which has begun and has none of its own."""
        return {"invalid_request_error": 400, "permission_error": 403, "rate_limit_error": 429}.get(self.type, 500)


class KVWeaveError(Exception):
    """Whatever a call raises, but for mistakes in the call itself that Python finds."""


class ConnectionFailed(KVWeaveError, ConnectionError):
    """There was no answer: the service cannot be reached, or broke off. A request of it may have been served."""


class StreamCut(ConnectionFailed):
    """A stream ended before its last event. What came before is not the whole answer; it was not asked again."""


class TimedOut(KVWeaveError, TimeoutError):
    """The service took longer than the client's timeouts allow."""


class Cancelled(KVWeaveError):
    """A stream that `cancel` ended."""


class UnexpectedAnswer(KVWeaveError, ValueError):
    """An answer that no kvweave service gives: is it the right address, and of this version?"""


class RequestError(KVWeaveError, ValueError):
    """A request that cannot be sent as it is. Nothing was sent."""


class ServiceError(KVWeaveError):
    """The service refused or failed. `problem` is what it says; `retry_after_s` when it may be asked again."""

    def __init__(self, problem: Problem, *, retry_after_s: float | None = None) -> None:
        said = problem.detail or problem.title or "it says no more"
        named = f" (request {problem.request_id})" if problem.request_id else ""
        later = "" if retry_after_s is None else f", ask again in {math.ceil(retry_after_s)} s"
        super().__init__(f"{problem.status}: {said}{later}{named}")
        self.problem = problem
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), retry_after_s=self.retry_after_s), (self.problem,), self.__dict__


class BadRequest(ServiceError, ValueError):
    """400, 405, 422 and the like: the request is wrong. `problem.errors` name its fields."""


class Unauthorized(ServiceError):
    """401: the API key is missing, unknown or revoked."""


class Forbidden(ServiceError):
    """403: the API key may not do this."""


class NotFound(ServiceError, LookupError):
    """404: there is no such thing, or the API key does not see it."""


class TooLarge(ServiceError):
    """413: send less at once."""


class RateLimited(ServiceError):
    """429: too much at once, this minute, or beyond a quota."""


class ServiceFailed(ServiceError):
    """500 and above: the service, or something in front of it, failed."""


class Unavailable(ServiceFailed):
    """503: it does not serve now; it starts, stops, or its store does not answer."""


class JobFailed(KVWeaveError):
    """A job that did not end well. `items`: the first uploads that are not ready."""

    def __init__(self, job: Job, items: tuple[JobItem, ...] = ()) -> None:
        named = "; ".join(f"{item.document or item.file}: {item.detail or item.state}" for item in items[:3])
        super().__init__(f"{job.id} {'was' if job.status == 'cancelled' else 'has'} {job.status}. {named}".rstrip(". "))
        self.job = job
        self.items = items

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.job, self.items), self.__dict__


_BY_STATUS: Mapping[int, type[ServiceError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    413: TooLarge,
    429: RateLimited,
    503: Unavailable,
}


def error_of(problem: Problem, *, retry_after_s: float | None = None) -> ServiceError:
    """The exception of a problem's status."""
    kind = _BY_STATUS.get(problem.status, ServiceFailed if problem.status >= 500 else BadRequest)
    return kind(problem, retry_after_s=retry_after_s)
