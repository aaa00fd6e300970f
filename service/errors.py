"""What can go wrong between a request and its answer, each with the status that HTTP has for it."""

from typing import ClassVar


class ServiceError(Exception):
    """Whatever the service refuses on purpose. The text names the value and the remedy."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "The service failed"
    retry_after_s: float | None = None


class Invalid(ServiceError, ValueError):
    """A request that says something that cannot be meant. `field` is where, such as `sampling.top_p`."""

    status = 422
    title = "The request is not valid"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class Unauthorized(ServiceError):
    """A request without a key, or with one that is not known."""

    status = 401
    title = "A valid API key is needed"


class Forbidden(ServiceError, PermissionError):
    """A key that may not do this."""

    status = 403
    title = "The API key may not do this"


class NotFound(ServiceError, LookupError):
    """What is not there, or not for this key: both look the same."""

    status = 404
    title = "There is no such thing"


class Conflict(ServiceError):
    """A request that counts on a state which is none."""

    status = 409
    title = "The state is another one"


class TooSlow(ServiceError, TimeoutError):
    """A request whose body does not come."""

    status = 408
    title = "The request is too slow"


class TooLarge(ServiceError, ValueError):
    """More than a limit allows."""

    status = 413
    title = "The request is too large"


class HeadTooLarge(ServiceError, ValueError):
    """A request whose address and headers take more than a server should keep."""

    status = 431
    title = "The head of the request is too large"


class WrongMedia(ServiceError, ValueError):
    """A body of a kind that the endpoint does not take."""

    status = 415
    title = "The body is of a kind that is not taken here"


class Exhausted(ServiceError):
    """Too many at once, too many a minute, or a quota that is used up."""

    status = 429
    title = "Too many requests"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(ServiceError):
    """What this process cannot do just now."""

    status = 503
    title = "The service cannot do this now"

    def __init__(self, message: str, *, retry_after_s: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
