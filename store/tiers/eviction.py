"""Ranks the keys of a tier for eviction, by cost, bytes, and how often and how lately each was used. No blob, no tier.

The worth of a key is the cost it saves per byte and per use of the tier. Its rate of use is estimated from
how often and how regularly it was used, in this stay and in earlier ones:

    worth = sqrt(uses) * cost / bytes / (age + interval / 4 + residents / 2)

`age` is the number of uses of the tier since the key's last one, `interval` the number between its last two. Where
the last use tells more than those before it, the worth is `cost / bytes / (age + residents / 2)`.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Powers of two, chosen by replay (tests.bench.eviction). Halving or doubling one moves the hit ratios of the
# trace by little over a point at most.
USES_COUNTED = 16  # more uses add nothing, so that past popularity does not linger
INTERVAL_SHARE = 1 / 4  # the weight of the last interval in the estimate of the next
FIRST_INTERVAL = 16  # in residents, of a key used once: longer than most evicted keys are remembered
LEAST_AGE = 1 / 2  # in residents: the differences in age below it do not outweigh cost and size
REMEMBERED = 4  # evicted keys per resident whose uses are kept
STEPS_PER_DOUBLING = 4  # keys whose weight falls into the same step share a queue

_LEAST_WEIGHT = 2.0**-64  # keeps the weight finite for a key without cost
_SLACK = 64  # fewer outdated queue entries are never worth a sweep

_Entry = tuple[float, int]  # anchor, ticket
_Class = tuple[int, bool]  # step of the weight; whether used more than once, so that an interval is known


class Rule(Enum):
    """What the rate of use is estimated from."""

    USES = auto()
    LAST_USE = auto()


@dataclass(slots=True)
class _Resident:
    uses: int
    last: int
    anchor: float  # the last use, less a share of the interval before it: an older one is worth less
    bytes: int = 0
    cost: float = 0.0
    ticket: int = -1  # of its only valid queue entry


@dataclass(frozen=True, slots=True)
class _Past:
    uses: int
    last: int


@dataclass(frozen=True, slots=True)
class KeyMemory:
    """All that an evictor holds about one key."""

    resident: _Resident | None
    past: _Past | None


class Evictor(Generic[K]):
    """Ranks the keys of one tier by worth. Not thread-safe: the tier holds its lock around every call.

    A tier tells what happened (`inserted`, `used`, `evicted`, `removed`) and asks for `victims`. The same
    calls give the same victims. A call costs O(log n) amortised for each key it looks at. Memory is in
    proportion to the resident keys.
    """

    def __init__(self, rule: Rule = Rule.USES) -> None:
        self._rule = rule
        self.bytes = 0  # of the resident keys
        self._now = 0  # counts the uses of the tier, first ones included
        self._residents: dict[K, _Resident] = {}
        self._past: OrderedDict[K, _Past] = OrderedDict()
        self._queues: dict[_Class, list[_Entry]] = {}  # heaps
        # Queues hold tickets, not keys, so that a deleted key is gone at once although its entry lingers.
        self._holders: dict[int, K] = {}
        self._tickets = 0
        self._queued = 0

    def __len__(self) -> int:
        """The number of resident keys."""
        return len(self._residents)

    def __contains__(self, key: K) -> bool:
        return key in self._residents

    @property
    def entries(self) -> int:
        """The number of entries held: residents, evicted keys and queue entries, outdated ones included."""
        return len(self._residents) + len(self._past) + self._queued

    def inserted(self, key: K, bytes: int, *, cost: float) -> None:
        """The tier now holds `key`; a miss of it would cost `cost`.

        Counts as a use when the key was absent. A resident key was only rewritten: its size and cost change.
        """
        assert bytes >= 0 and 0 <= cost < math.inf, f"{key!r}: {bytes} bytes, cost {cost}"
        resident = self._residents.get(key)
        if resident is None:
            resident = self._residents[key] = self._admit(key)
            self._forget_oldest()
        self.bytes += bytes - resident.bytes
        resident.bytes, resident.cost = bytes, cost
        self._enqueue(key, resident)

    def used(self, key: K) -> None:
        """The tier served `key`. A key that is not resident is ignored."""
        resident = self._residents.get(key)
        if resident is None:
            return
        self._now += 1
        resident.anchor = self._anchor(resident.last)
        resident.last = self._now
        resident.uses = min(resident.uses + 1, USES_COUNTED)
        self._enqueue(key, resident)

    def evicted(self, key: K) -> None:
        """The tier evicted `key`. Its uses count again should it come back soon."""
        resident = self._drop(key)
        if resident is not None:
            self._past[key] = _Past(resident.uses, resident.last)

    def removed(self, key: K) -> None:
        """`key` was deleted or left the budget. Its history is dropped, earlier evictions included."""
        self._past.pop(key, None)
        self._drop(key)
        self._forget_oldest()

    def follow(self, rule: Rule) -> None:
        """Rank by this rule from now on. Costs O(n log n) where it changes."""
        if rule is not self._rule:
            self._rule = rule
            self._rebuild()

    def memory(self, key: K) -> KeyMemory:
        """What the evictor holds about `key` now, to be restored should the next change not commit."""
        resident = self._residents.get(key)
        return KeyMemory(None if resident is None else replace(resident), self._past.get(key))

    def restore(self, key: K, memory: KeyMemory) -> None:
        """Undo all changes to `key` since `memory` was taken."""
        self._past.pop(key, None)
        self._drop(key)
        if memory.resident is not None:
            self._residents[key] = memory.resident
            self.bytes += memory.resident.bytes
            self._enqueue(key, memory.resident)
        if memory.past is not None:
            self._past[key] = memory.past

    def victims(self, bytes: int, among: Callable[[K], bool] | None = None) -> list[K]:
        """The keys of least worth, least first, that together free `bytes`; or all that `among` allows.

        Does not modify what is held: the tier reports each as evicted once it is.
        """
        chosen: list[K] = []
        freed = 0
        passed: list[tuple[_Class, _Entry]] = []
        fronts = [(worth, which) for which in self._queues if (worth := self._least_worth(which)) is not None]
        heapq.heapify(fronts)
        try:
            while fronts and freed < bytes:
                which = fronts[0][1]
                entry = heapq.heappop(self._queues[which])
                passed.append((which, entry))
                key = self._holders[entry[1]]
                if among is None or among(key):
                    chosen.append(key)
                    freed += self._residents[key].bytes
                worth = self._least_worth(which)
                if worth is None:
                    heapq.heappop(fronts)
                else:
                    heapq.heapreplace(fronts, (worth, which))
        finally:
            for which, entry in passed:
                heapq.heappush(self._queues[which], entry)
        return chosen

    def _admit(self, key: K) -> _Resident:
        self._now += 1
        past = self._past.pop(key, None)
        if past is None:
            return _Resident(uses=1, last=self._now, anchor=self._now)
        return _Resident(min(past.uses + 1, USES_COUNTED), self._now, self._anchor(past.last))

    def _anchor(self, previous_use: int) -> float:
        return self._now - INTERVAL_SHARE * (self._now - previous_use)

    def _least_worth(self, which: _Class) -> float | None:
        """The worth at the front of a queue, after dropping outdated entries; None for an empty queue."""
        queue = self._queues[which]
        while queue and queue[0][1] not in self._holders:
            heapq.heappop(queue)
            self._queued -= 1
        if not queue:
            return None
        step, repeated = which
        unknown = LEAST_AGE if repeated else LEAST_AGE + INTERVAL_SHARE * FIRST_INTERVAL
        unused = self._now - queue[0][0] + unknown * len(self._residents)
        return 2.0 ** (step / STEPS_PER_DOUBLING) / unused

    def _enqueue(self, key: K, resident: _Resident) -> None:
        self._holders.pop(resident.ticket, None)
        resident.ticket = self._tickets
        self._tickets += 1
        self._holders[resident.ticket] = key
        heapq.heappush(self._queues.setdefault(self._class(resident), []), self._entry(resident))
        self._queued += 1
        self._sweep()

    def _drop(self, key: K) -> _Resident | None:
        resident = self._residents.pop(key, None)
        if resident is not None:
            self.bytes -= resident.bytes
            del self._holders[resident.ticket]
            self._sweep()
        return resident

    def _sweep(self) -> None:
        """Rebuilds the queues once most of their entries are outdated."""
        if self._queued > 2 * len(self._residents) + _SLACK:
            self._rebuild()

    def _rebuild(self) -> None:
        self._queues = {}
        for resident in self._residents.values():
            self._queues.setdefault(self._class(resident), []).append(self._entry(resident))
        for queue in self._queues.values():
            heapq.heapify(queue)
        self._queued = len(self._residents)

    def _forget_oldest(self) -> None:
        while len(self._past) > REMEMBERED * max(1, len(self._residents)):
            self._past.popitem(last=False)

    def _entry(self, resident: _Resident) -> _Entry:
        return resident.anchor if self._rule is Rule.USES else resident.last, resident.ticket

    def _class(self, resident: _Resident) -> _Class:
        counted = math.sqrt(resident.uses) if self._rule is Rule.USES else 1.0
        weight = counted * resident.cost / max(1, resident.bytes)
        step = round(STEPS_PER_DOUBLING * math.log2(max(weight, _LEAST_WEIGHT)))
        return step, resident.uses > 1 or self._rule is Rule.LAST_USE
