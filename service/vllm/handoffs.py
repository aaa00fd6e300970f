"""All prompts that wait to be fetched: handles, leases, a bound of memory, who may read, salts of caches."""

import hmac
import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from retriever.documents import Json
from service.access.principal import Principal
from service.errors import Exhausted, NotFound
from service.telemetry.logs import fields
from service.vllm.handoff import Handoff, LayerPart
from service.vllm.shared_memory import sweep_shared_memory

log = logging.getLogger(__name__)

LEASE_S = 60.0  # a prompt that nobody has fetched so long behind its last layer is forgotten
HANDLE_BYTES = 24
SALT_BYTES = 32
MOST_ENDED = 10_000  # names that are known to have ended; behind them everybody shares anew


@dataclass(frozen=True, slots=True)
class HandoffReaders:
    """Who may fetch a prompt besides those who fetch all: keys of the tenant with the same filter.

    An `is_internal` one is for these alone. `as_of`: when its documents were looked up, on the monotonic clock; what is
    deleted behind that voids the prompt.
    """

    tenant: str
    as_of: float
    bound: Json | None = None
    is_internal: bool = False

    def admit(self, who: Principal) -> bool:
        if who.fetches_all:
            return True
        return not self.is_internal and who.tenant == self.tenant and who.bound == self.bound


@dataclass(slots=True)
class Lease:
    """A prompt that was taken in, until a moment of the monotonic clock. `fetched`: layers whose last token went out,
    known also when the prompt is gone.
    """

    handle: str
    handoff: Handoff
    readers: HandoffReaders
    until: float
    fetched: set[int] = field(default_factory=set[int])

    @property
    def was_fetched(self) -> bool:
        """Whether each layer went out to its last token."""
        return self.fetched == {each.index for each in self.handoff.forms}


class Handoffs:
    """The prompts of one service that wait. Safe for threads.

    One leaves when it is released, when its lease ends, and when a document of its tenant is deleted, whichever
    document that is: what it costs is that somebody else computes the prompt.
    """

    def __init__(self, limit_bytes: int, *, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._limit_bytes = limit_bytes
        self._secret = secrets.token_bytes(SALT_BYTES)
        self._ended = Counter[str]()  # how often those who share by a name have ended
        self._held: dict[str, Lease] = {}
        self._deleted: dict[str, float] = {}  # when something of a tenant last was, on the monotonic clock
        self._changed = threading.Condition()
        self._closing = False
        sweep_shared_memory()
        self._copies = ThreadPoolExecutor(1, "kvweave-handover")
        threading.Thread(target=self._forget, name="kvweave-leases", daemon=True).start()

    @property
    def nbytes(self) -> int:
        """How much memory all of them take."""
        with self._changed:
            return self._nbytes()

    def __len__(self) -> int:
        return len(self._held)

    def has_room(self, nbytes: int) -> bool:
        """Whether a prompt of this size would be taken now."""
        with self._changed:
            return self._nbytes() + nbytes <= self._limit_bytes

    def salt(self, sharing: str, order: str = "") -> str:
        """A secret for whoever goes on with a prompt, the same for all that share and are blended alike; empty: it
        shares nothing.
        """
        if not sharing:
            return secrets.token_urlsafe(SALT_BYTES)
        with self._changed:
            return hmac.new(self._secret, f"{self._ended[sharing]} {order} {sharing}".encode(), "sha256").hexdigest()

    def end_sharing(self, sharing: str) -> None:
        """Nobody goes on with what was shared by this name so far."""
        with self._changed:
            self._ended[sharing] += 1
            if len(self._ended) > MOST_ENDED:
                self._secret = secrets.token_bytes(SALT_BYTES)
                self._ended.clear()

    def add(self, handoff: Handoff, readers: HandoffReaders) -> Lease:
        """Takes a prompt in, under a new handle. Raises Exhausted where there is no room for it."""
        lease = Lease(secrets.token_urlsafe(HANDLE_BYTES), handoff, readers, time.monotonic() + self.lease_s)
        with self._changed:
            if self._nbytes() + handoff.nbytes > self._limit_bytes:
                handoff.let_go()
                raise Exhausted(
                    f"prompts of {self._nbytes():,} bytes wait to be fetched, and they may take {self._limit_bytes:,}: "
                    "fetch or release some, or raise kv_bytes",
                    retry_after_s=1.0,
                )
            if self._closing or self._deleted.get(readers.tenant, -math.inf) >= readers.as_of:
                handoff.let_go()
            else:
                self._held[lease.handle] = lease
                self._changed.notify()
        return lease

    def put(self, lease: Lease, layer: int, *, pair: tuple[Tensor, Tensor]) -> None:
        """Takes keys and values (H, T, D) of a layer that is final. Returns at once: a thread copies them."""
        with self._changed:
            if not self._closing:
                device = pair[0].device
                ready = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
                self._copies.submit(self._copy, lease, layer, pair=pair, ready=ready)

    def get(self, handle: str, who: Principal) -> Handoff:
        """The prompt of a handle. Raises NotFound where there is none for whoever asks: both look the same."""
        return self._found(handle, who).handoff

    def part(self, handle: str, who: Principal, *, layer: int, wanted: LayerPart) -> bytes:
        """A part of a layer. Raises NotFound as `get`, and where the prompt was let go of meanwhile."""
        body = self._found(handle, who).handoff.part(layer, wanted)
        lease = self._found(handle, who)
        if wanted.stop == len(lease.handoff.ids) - 1:
            lease.fetched.add(layer)
        return body

    def map(self, handle: str, who: Principal) -> None:
        """Notes that somebody has all layers, by their shared memory. Raises NotFound as `get`."""
        lease = self._found(handle, who)
        lease.fetched.update(each.index for each in lease.handoff.forms)

    def release(self, handle: str, who: Principal, *, used: bool = True) -> None:
        """Lets go of a prompt; whether it was `used` after all counts where it went out. Raises NotFound as `get`."""
        lease = self._found(handle, who)
        self.drop(handle)
        if not used:
            lease.fetched.clear()

    def drop(self, handle: str) -> None:
        """Lets go of a prompt, if it is still there."""
        self._let_go([handle])

    def void(self, tenant: str) -> None:
        """Lets go of all prompts of a tenant, those too whose documents were looked up and that are not in yet."""
        with self._changed:
            self._deleted[tenant] = time.monotonic()
            self._let_go([name for name, each in self._held.items() if each.readers.tenant == tenant])

    def close(self) -> None:
        """Lets go of everything, and takes nothing more."""
        with self._changed:
            self._closing = True
            self._let_go([*self._held])
            self._changed.notify()
        self._copies.shutdown(cancel_futures=True)

    def _found(self, handle: str, who: Principal) -> Lease:
        with self._changed:
            held = self._held.get(handle)
        if held is None or held.until <= time.monotonic() or not held.readers.admit(who):
            raise NotFound("there is no such handle: it was released, its lease has ended, or it is not for this key")
        return held

    def _let_go(self, handles: Iterable[str]) -> None:
        with self._changed:
            for lease in [self._held.pop(each) for each in handles if each in self._held]:
                lease.handoff.let_go()

    def _copy(self, lease: Lease, layer: int, *, pair: Sequence[Tensor], ready: torch.Event | None) -> None:
        if lease.handle in self._held:
            try:
                lease.handoff.put(layer, pair if ready is None else _copied(pair, ready))
            except (OSError, RuntimeError, MemoryError) as error:  # RuntimeError: what torch says of a GPU
                log.warning("a prompt was let go of: a layer could not be copied", extra=fields(reason=str(error)))
                self.drop(lease.handle)
            lease.until = time.monotonic() + self.lease_s

    def _nbytes(self) -> int:
        return sum(each.handoff.nbytes for each in self._held.values())

    def _forget(self) -> None:
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                self._let_go([name for name, each in self._held.items() if each.until <= now])
                soonest = min((each.until for each in self._held.values()), default=None)
                self._changed.wait(None if soonest is None else soonest - now)


def _copied(pair: Sequence[Tensor], ready: torch.Event) -> Sequence[Tensor]:
    """The keys and values in main memory, copied beside what the GPU goes on with."""
    stream = torch.cuda.Stream(pair[0].device)
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        return [each.transpose(0, 1).contiguous().cpu().transpose(0, 1) for each in pair]
