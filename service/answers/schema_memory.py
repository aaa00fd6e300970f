"""Memory that JSON schemas take while their answers run: no tenant's take more than its share. Knows no schema."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from service.errors import Exhausted

SHARE_BYTES = 256 << 20
RETRY_S = 1.0


class SchemaMemory:
    """Counts it by tenant. Its methods are called in one event loop."""

    def __init__(self, share_bytes: int = SHARE_BYTES) -> None:
        self._share_bytes = share_bytes
        self._taken = Counter[str]()

    @contextmanager
    def held(self, tenant: str, nbytes: int) -> Generator[None]:
        """Counts a compiled schema while a block runs. Raises Exhausted where the tenant's share is used up."""
        if self._taken[tenant] + nbytes > self._share_bytes:
            raise Exhausted(
                f"the JSON schemas of this tenant's answers take {self._taken[tenant] >> 20} MiB of the "
                f"{self._share_bytes >> 20} that they may have together: try again when one has ended",
                retry_after_s=RETRY_S,
            )
        self._taken[tenant] += nbytes
        try:
            yield
        finally:
            self._taken[tenant] -= nbytes
            self._taken = +self._taken  # who has left is forgotten
