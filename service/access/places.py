"""How many requests, event streams, scrapes and fetches run at once, by key, tenant and address; the rest get a 429.

A place is held from before a request's body is read until its response has ended: whoever sends or reads slowly takes
places of his own share alone.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Lock

from service.access.principal import Principal
from service.errors import Exhausted

# Followers and scrapes are cheap, so they have room of their own and no share of the places. So has vLLM: it fetches
# prompts of requests that hold places until it has them.
FOLLOWERS_OF_KEY, FOLLOWERS_OF_TENANT, FOLLOWERS = 16, 64, 256
SCRAPES = 4
LAYER_FETCHES = 256
LATELY_S = 300.0
RETRY_S = 1  # after so long who was turned away may try again

_FEWER = "end one of them, or ask for the job itself from time to time"


@dataclass(frozen=True, slots=True)
class Share:
    """How many requests of a group may run. `kind`: which sort of group, a label; `name`: the group of that sort."""

    kind: str
    name: str
    most: int
    refusal: str

    @property
    def group(self) -> tuple[str, str]:
        """What is counted together."""
        return self.kind, self.name


class NoPlace(Exhausted):
    """A request whose caller has all that it may have. `kind`: the label of the share that is used up."""

    def __init__(self, share: Share) -> None:
        super().__init__(share.refusal, retry_after_s=RETRY_S)
        self.kind = share.kind


class Places:
    """Counts what runs. Safe for threads. Each method takes a place, or raises NoPlace, and holds it for a block.

    A key has half of the places where another one asked lately, else all that its tenant may have. The last few of the
    tenant and of all are for keys that hold none. `clock`: seconds that only grow.
    """

    def __init__(self, total: int, *, has_keys: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._has_keys, self._clock = total, has_keys, clock
        self._seen: dict[str, float] = {}  # when a key asked last
        self._running = Counter[tuple[str, str]]()
        self._guard = Lock()

    @property
    def taken(self) -> int:
        """The requests that hold one of the places."""
        return self._running["all", ""]

    @property
    def followers(self) -> int:
        """The streams of jobs' events that are open."""
        return self._running["followers", ""]

    def request(self, who: Principal | None, *, address: str) -> AbstractContextManager[None]:
        """A place for a request. Without a valid key there are few, and of these half for one address."""
        if not self._has_keys:
            return self._held([self._all(self._total)])
        if who is None:
            most = _part(self._total, 4)
            refusal = f"{most} requests without a valid key are running already: send a key, or try again"
            shares = [
                Share("address", address, _part(most, 2), refusal),
                Share("anonymous", "", most, refusal),
                self._all(self._total - self._total // 8),
            ]
            return self._held(shares)
        operators = 0 if who.is_operator else self._total // 8  # kept for those who have to look after it
        few = self._total // 16 if self._running["key", who.key_id] else 0  # kept for keys that hold no place
        tenant = max(1, self._total * 3 // 4 - few)
        key = _part(self._total, 2) if self._is_contested(who.key_id) else tenant
        shares = [
            Share("key", who.key_id, key, f"{key} requests of this key are running already: wait until one has ended"),
            Share("tenant", who.tenant, tenant, f"{tenant} requests of this tenant are running already: try again"),
            self._all(self._total - operators - few),
        ]
        return self._held(shares)

    def follower(self, who: Principal) -> AbstractContextManager[None]:
        """Room for one who follows a job's events."""
        every = Share("followers", "", FOLLOWERS, f"{FOLLOWERS} streams of events are open already: {_FEWER}")
        if not self._has_keys:
            return self._held([every])
        of_key = f"this key has {FOLLOWERS_OF_KEY} streams of events open already: {_FEWER}"
        of_tenant = f"this tenant has {FOLLOWERS_OF_TENANT} streams of events open already: {_FEWER}"
        shares = [
            Share("followers_of_key", who.key_id, FOLLOWERS_OF_KEY, of_key),
            Share("followers_of_tenant", who.tenant, FOLLOWERS_OF_TENANT, of_tenant),
            every,
        ]
        return self._held(shares)

    def scrape(self) -> AbstractContextManager[None]:
        """Room for an operator's look at the metrics, whatever else runs."""
        return self._held([Share("scrapes", "", SCRAPES, f"{SCRAPES} scrapes are running already: try again")])

    def fetch(self) -> AbstractContextManager[None]:
        """Room for an operator's fetch of a prompt that was handed over."""
        return self._held(
            [Share("fetches", "", LAYER_FETCHES, f"{LAYER_FETCHES} fetches are running already: try again")]
        )

    def _is_contested(self, key: str) -> bool:
        """Has another key asked lately? Notes that this one does."""
        now = self._clock()
        with self._guard:
            self._seen = {each: at for each, at in self._seen.items() if now - at < LATELY_S} | {key: now}
            return len(self._seen) > 1

    def _all(self, most: int) -> Share:
        return Share("all", "", max(1, most), f"{self.taken} requests are running already: try again")

    def _held(self, shares: Sequence[Share]) -> AbstractContextManager[None]:
        with self._guard:
            for share in shares:
                if self._running[share.group] >= share.most:
                    raise NoPlace(share)
            self._running.update(share.group for share in shares)
        return self._until_end(shares)

    @contextmanager
    def _until_end(self, shares: Sequence[Share]) -> Generator[None]:
        try:
            yield
        finally:
            with self._guard:
                self._running.subtract(share.group for share in shares)
                self._running = +self._running  # who has left is forgotten


def _part(places: int, of: int) -> int:
    return max(1, places // of)
