"""Memory for what is read before it is asked for: bounded over all, and a fair share of it for each tenant."""

from collections import Counter, deque
from threading import Lock

READ_AHEAD_BYTES = 1 << 30


class ReadMemory:
    """Counts bytes. No tenant may have more than it leaves to the others, so that the next one finds some."""

    def __init__(self, limit_bytes: int = READ_AHEAD_BYTES) -> None:
        self._limit = limit_bytes
        self._held = Counter[str]()
        self._given: deque[tuple[str, int]] = deque()  # back, but not counted yet: whoever gives waits for no lock
        self._lock = Lock()

    def take(self, tenant: str, nbytes: int) -> bool:
        """Count so many bytes for a tenant, where they fit."""
        with self._lock:
            while self._given:
                of, back = self._given.popleft()
                self._held[of] -= back
            self._held = +self._held  # who has left is forgotten
            fits = self._held[tenant] + nbytes <= self._limit - self._held.total() - nbytes
            if fits:
                self._held[tenant] += nbytes
            return fits

    def give(self, tenant: str, nbytes: int) -> None:
        """Count so many bytes of a tenant no more. Safe wherever memory is collected."""
        self._given.append((tenant, nbytes))


class ReadLease:
    """What one blob holds of a memory, for as long as it is there itself."""

    def __init__(self, memory: ReadMemory, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Hold so many bytes more, where they fit."""
        taken = self._memory.take(self._tenant, nbytes)
        self._nbytes += nbytes if taken else 0
        return taken

    def give(self, nbytes: int) -> None:
        """Hold so many bytes less."""
        self._nbytes -= nbytes
        self._memory.give(self._tenant, nbytes)

    def __del__(self) -> None:
        if self._nbytes:
            self.give(self._nbytes)
