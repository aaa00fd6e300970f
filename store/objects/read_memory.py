"""Memory for reading ahead: bounded in all, with a fair share for each tenant."""

from collections import Counter, deque
from threading import Lock

READ_AHEAD_BYTES = 1 << 30


class ReadMemory:
    """Counts bytes. No tenant may hold more than is left for the others, so that the next one finds some."""

    def __init__(self, limit_bytes: int = READ_AHEAD_BYTES) -> None:
        self._limit = limit_bytes
        self._held = Counter[str]()
        self._given: deque[tuple[str, int]] = deque()  # given back, but not counted yet: `give` takes no lock
        self._lock = Lock()

    def take(self, tenant: str, nbytes: int) -> bool:
        """Reserve `nbytes` for a tenant, if they fit; returns whether they do."""
        with self._lock:
            while self._given:
                of, back = self._given.popleft()
                self._held[of] -= back
            self._held = +self._held  # tenants without bytes are dropped
            fits = self._held[tenant] + nbytes <= self._limit - self._held.total() - nbytes
            if fits:
                self._held[tenant] += nbytes
            return fits

    def give(self, tenant: str, nbytes: int) -> None:
        """Release `nbytes` of a tenant. Safe inside the garbage collector."""
        self._given.append((tenant, nbytes))


class ReadLease:
    """The bytes that one blob holds of a memory, for as long as the blob lives."""

    def __init__(self, memory: ReadMemory, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Hold `nbytes` more, if they fit; returns whether they do."""
        taken = self._memory.take(self._tenant, nbytes)
        self._nbytes += nbytes if taken else 0
        return taken

    def give(self, nbytes: int) -> None:
        """Hold `nbytes` less."""
        self._nbytes -= nbytes
        self._memory.give(self._tenant, nbytes)

    def __del__(self) -> None:
        if self._nbytes:
            self.give(self._nbytes)
