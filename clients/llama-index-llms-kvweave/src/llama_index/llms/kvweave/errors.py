"""What a model raises instead of a ValueError. Knows no request."""

from collections.abc import Generator
from contextlib import contextmanager

from kvweave_client import KVWeaveError


class Unanswered(KVWeaveError):
    """A request that is wrong, or an answer that no kvweave service gives; `__cause__` is the client's own error.

    It is no ValueError, because LlamaIndex's response synthesizers take those for an answer without content.
    """


@contextmanager
def told() -> Generator[None]:
    """Raises every ValueError as Unanswered."""
    try:
        yield
    except ValueError as error:
        raise Unanswered(str(error)) from error
