"""What can go wrong between a request and its answer: the kinds, and each one's HTTP status, title, code and retry.

REST, OpenAI's interface and the command line render it. Knows no request and no form of an answer.
"""

from dataclasses import dataclass
from typing import Final

from blend.errors import BlendError, Busy, Late, NotFinite, PromptError, SamplingError, TokenizerError
from retriever.errors import CatalogError, DocumentError, EmbeddingError, FilterError, RetrieverError, SearchError
from store.errors import StoreError


class ServiceError(Exception):
    """Whatever the service refuses on purpose. The text names the value and the remedy."""

    retry_after_s: float | None = None


class Invalid(ServiceError, ValueError):
    """A request that says something that cannot be meant. `field` is where, such as `sampling.top_p`."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class AccessError(ServiceError, ValueError):
    """A name, a key, an archive or a folder that will not do."""


class Unauthorized(ServiceError):
    """A request without a key, or with one that is not known."""


class Forbidden(ServiceError, PermissionError):
    """A key that may not do this."""


class NotFound(ServiceError, LookupError):
    """What is not there, or not for this key: both look the same."""


class ModelNotFound(NotFound):
    """A model that this service does not have."""


class Conflict(ServiceError):
    """A request that counts on a state which is none."""


class TooSlow(ServiceError, TimeoutError):
    """A request whose body does not come."""


class TooLarge(ServiceError, ValueError):
    """More than a limit allows."""


class HeadTooLarge(ServiceError, ValueError):
    """A request whose address and headers take more than a server should keep."""


class WrongMedia(ServiceError, ValueError):
    """A body of a kind that the endpoint does not take."""


class Exhausted(ServiceError):
    """Too many at once, too many a minute, or a quota that is used up."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(ServiceError):
    """What this process cannot do just now."""

    def __init__(self, message: str, *, retry_after_s: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class FailureKind:
    """How a kind of errors is told: HTTP's status, a sentence, OpenAI's code for it, and when to try again."""

    status: int
    title: str
    code: str | None = None
    retry_after_s: float | None = None


_FAILED: Final = "The service failed"
_INVALID: Final = "The request is not valid"
_TOO_MANY: Final = "Too many requests"

# The first row that fits an error tells of it.
TABLE: Final[dict[type[Exception], FailureKind]] = {
    PromptError: FailureKind(422, _INVALID, "context_length_exceeded"),
    **dict.fromkeys((Invalid, AccessError, FilterError, DocumentError, SearchError), FailureKind(422, _INVALID)),
    **dict.fromkeys((SamplingError, TokenizerError), FailureKind(422, _INVALID)),
    Unauthorized: FailureKind(401, "A valid API key is needed", "invalid_api_key"),
    Forbidden: FailureKind(403, "The API key may not do this", "insufficient_permissions"),
    ModelNotFound: FailureKind(404, "There is no such thing", "model_not_found"),
    NotFound: FailureKind(404, "There is no such thing", "not_found"),
    Conflict: FailureKind(409, "The state is another one"),
    TooSlow: FailureKind(408, "The request is too slow"),
    TooLarge: FailureKind(413, "The request is too large", "request_too_large"),
    HeadTooLarge: FailureKind(431, "The head of the request is too large"),
    WrongMedia: FailureKind(415, "The body is of a kind that is not taken here"),
    Exhausted: FailureKind(429, _TOO_MANY, "rate_limit_exceeded"),
    Busy: FailureKind(429, _TOO_MANY, "rate_limit_exceeded", retry_after_s=1.0),
    Unavailable: FailureKind(503, "The service cannot do this now"),
    CatalogError: FailureKind(503, "The catalog cannot be used", retry_after_s=5.0),
    EmbeddingError: FailureKind(503, "The embedder cannot be used", retry_after_s=5.0),
    StoreError: FailureKind(503, "The store does not answer", retry_after_s=5.0),
    Late: FailureKind(503, "The answer would come too late"),
    NotFinite: FailureKind(500, "The model failed"),
    ServiceError: FailureKind(500, _FAILED),
}
UNFORESEEN: Final = FailureKind(500, _FAILED)
OURS: Final = (ServiceError, BlendError, RetrieverError, StoreError)  # whose texts are for people


def kind_of(error: Exception) -> FailureKind:
    """The row of an error. What no row foresees is told as nothing but a failure."""
    return next((row for kind, row in TABLE.items() if isinstance(error, kind)), UNFORESEEN)
