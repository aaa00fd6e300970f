"""Fair turns among tenants: which request is next, what rows cost, captures' share, whose rows a decoding step has.

Each payer's time in the engine is counted, over its weight. A request of the one with the least goes next; who comes
back after a while begins where the others are. Where answers of several payers run, a step has so few rows that it
takes nobody longer than its share of a lone step would let it.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

PATIENCE_S = 2.0  # a request that does not fit is passed by others for so long; then what runs has to end
FEW = 8  # who asks for so many times as much as another begins nothing while that one runs and had less
LATELY_S = 2.0  # of captures: so much of what they had beyond their share is counted
FORGOTTEN_S = 1e-3  # so little of that is as nothing
MUCH_S, WITHIN_S, OF_MUCH = 2.0, 10.0, 1 / 3  # who had so much within so long is owed this part of his share
FORGETS = 0.98  # the weight of what ran in the view of the next one of what work costs


class Paid(Protocol):
    """What somebody asked for."""

    @property
    def payer(self) -> str:
        """Who asked for it."""
        ...


Queued = TypeVar("Queued", bound=Paid)


class FairQueue(Generic[Queued]):
    """Requests that wait, in order for each payer, and the time that each payer has had. Not safe for threads.

    Of one payer's the next is the first of those whose `rank` is the least.
    """

    def __init__(self, weights: Mapping[str, float], *, rank: Callable[[Queued], float] = lambda queued: 0) -> None:
        self._weights = weights
        self._rank = rank
        self._waiting: dict[str, deque[Queued]] = {}
        self._spent: dict[str, float] = {}
        self.seconds: dict[str, float] = {}  # that each payer had, whatever its weight
        self._start_s = 0.0  # of a request, until it runs, lately
        self._blocked: dict[str, tuple[Queued, float]] = {}  # the first of a payer that does not fit, and since when

    def __len__(self) -> int:
        return sum(len(each) for each in self._waiting.values())

    def counts(self) -> Counter[str]:
        """How many requests wait, by payer."""
        return Counter({payer: len(each) for payer, each in self._waiting.items()})

    def add(self, queued: Queued, running: Collection[str]) -> None:
        """Takes a request; `running` are the payers of those that are computed now."""
        payer = queued.payer
        active = [self._spent.get(each, 0.0) for each in {*self._waiting, *running}]
        if not active:
            self._spent.clear()
        elif payer not in self._waiting and payer not in running:
            self._spent[payer] = max(self._spent.get(payer, 0.0), min(active))
        self._waiting.setdefault(payer, deque()).append(queued)

    def put_back(self, queued: Queued) -> None:
        """Takes one again that had its turn and is not over, before the others of its payer."""
        self._waiting.setdefault(queued.payer, deque()).appendleft(queued)

    def spend(self, payer: str, seconds: float) -> None:
        """Counts time that the engine gave to a payer."""
        self.seconds[payer] = self.seconds.get(payer, 0.0) + seconds
        self._spent[payer] = self._spent.get(payer, 0.0) + seconds / self._weights.get(payer, 1.0)

    def started(self, payer: str, seconds: float) -> None:
        """Counts the time that a request of a payer took until it ran."""
        self._start_s += (seconds - self._start_s) / 4
        self.spend(payer, seconds)

    def removed(self, wanted: Callable[[Queued], bool]) -> list[Queued]:
        """Takes out what is wanted no more."""
        found = [queued for each in self._waiting.values() for queued in each if wanted(queued)]
        for queued in found:
            self._take(queued)
        return found

    def next(
        self,
        fits: Callable[[Queued], bool],
        *,
        running: Mapping[str, int],
        has_share: Callable[[Queued], bool] = lambda queued: True,
    ) -> Queued | None:
        """Takes the request whose turn it is and that fits. One that does not lets others by, but not for ever, unless
        it is its payer's own that leave no room.
        """
        now = time.perf_counter()
        for payer in sorted(self._waiting, key=lambda each: self._spent.get(each, 0.0)):
            if self._yields(payer, running):
                continue
            blocked, since = self._blocked.get(payer, (None, now))
            first = blocked or min(self._waiting[payer], key=self._rank)
            if not has_share(first):
                continue
            if fits(first):
                self._take(first)
                return first
            self._blocked[payer] = first, since
            if now - since > PATIENCE_S:
                return None
        return None

    def _yields(self, payer: str, running: Mapping[str, int]) -> bool:
        """Whether it had more time than one whose answers run, and who asks for far less at once."""
        asked, had = self.counts() + Counter(running), Counter(self._spent)
        return any(FEW * asked[each] <= asked[payer] and had[each] < had[payer] for each in running)

    def lead_s(self, payer: str, seconds: float, *, running: Collection[str]) -> float:
        """How much more time than the others who wait or run a payer had, with these seconds that are not counted yet.

        It is less than nothing for the one who had the least, and nothing where there is nobody else.
        """
        others = [self._spent.get(each, 0.0) for each in {*self._waiting, *running} if each != payer]
        mine = self._spent.get(payer, 0.0) + seconds / self._weights.get(payer, 1.0)
        return mine - min(others) if others else 0.0

    def ahead(self, payer: str) -> int:
        """How many requests go before a new one of this payer, where all take as long."""
        own = len(self._waiting.get(payer, ()))
        return own + sum(min(len(each), own + 1) for name, each in self._waiting.items() if name != payer)

    def waits_s(self, payer: str) -> float:
        """How long a new request of this payer would wait for its turn."""
        return self.ahead(payer) * self._start_s

    def _take(self, queued: Queued) -> None:
        payer = queued.payer
        waiting = self._waiting[payer]
        if self._blocked.get(payer, (None,))[0] is queued:
            del self._blocked[payer]
        waiting.remove(queued)
        if not waiting:
            del self._waiting[payer]


class CaptureDebts:
    """What requests owe to captures: a share of the time, those that wait alike, less what each payer's had lately.

    So captures that have the time between requests take none from these, until requests leave no more. Of a large
    upload nobody waits for the next chunk: its payer is owed less, and a sentence beside it no less for that.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._owed: dict[str, float] = {}  # to payers whose captures wait
        self._lately: dict[str, float] = {}  # what each payer's had, the less it counts the longer ago

    def served(self, seconds: float, waiting: Collection[str]) -> bool:
        """Counts time that requests had while captures of these payers waited. Returns whether any is owed some."""
        self._pass(seconds)
        each_s = seconds * self._share / (1 - self._share) / max(1, len(waiting))
        parts = {payer: OF_MUCH if self._lately.get(payer, 0.0) > MUCH_S else 1.0 for payer in waiting}
        self._owed = {payer: self._owed.get(payer, 0.0) + part * each_s for payer, part in parts.items()}
        return self.any

    def had(self, payer: str, seconds: float) -> None:
        """Counts time that captures of a payer had."""
        self._pass(seconds)
        self._lately[payer] = self._lately.get(payer, 0.0) + seconds
        self._owed[payer] = max(self._owed.get(payer, 0.0) - seconds, -LATELY_S)

    def _pass(self, seconds: float) -> None:
        left = math.exp(-seconds / WITHIN_S)
        self._lately = {payer: had * left for payer, had in self._lately.items() if had > FORGOTTEN_S}

    @property
    def any(self) -> bool:
        """Whether the captures of any payer had less than was owed to them."""
        return any(owed_s > 0 for owed_s in self._owed.values())


class RowCosts:
    """What work takes by its rows, learned from what ran: `base_s` in any case, and `row_s` for each."""

    def __init__(self) -> None:
        self.base_s = self.row_s = 0.0
        self._count = self._rows = self._seconds = self._squares = self._products = 0.0

    def learn(self, rows: int, seconds: float) -> None:
        """Notes what so many rows took."""
        self._count = FORGETS * self._count + 1
        self._rows = FORGETS * self._rows + rows
        self._seconds = FORGETS * self._seconds + seconds
        self._squares = FORGETS * self._squares + rows * rows
        self._products = FORGETS * self._products + rows * seconds
        mean_rows, mean_s = self._rows / self._count, self._seconds / self._count
        spread = self._squares / self._count - mean_rows**2
        guess = mean_s / mean_rows / 2  # of a row's cost, for as long as all had as many
        row_s = (self._products / self._count - mean_rows * mean_s + guess) / (spread + 1)
        self.row_s = min(max(row_s, 0.0), mean_s / mean_rows)
        self.base_s = mean_s - self.row_s * mean_rows


class StepShares:
    """Whose rows a step has, by what steps cost."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self.costs = RowCosts()

    def chosen(self, payers: Sequence[str]) -> list[int]:
        """The places of those rows that the next step has: all, or as many of each payer as its share allows."""
        counts = Counter(payers)
        weights = {payer: self._weights.get(payer, 1.0) for payer in counts}
        rows = self._rows_within(counts, weights) if len(counts) > 1 else math.inf
        if rows >= len(payers):
            return [*range(len(payers))]
        left = dealt(counts, rows, weights=weights)
        found: list[int] = []
        for place, payer in enumerate(payers):
            if left[payer]:
                left[payer] -= 1
                found.append(place)
        return found

    def _rows_within(self, counts: Mapping[str, int], weights: Mapping[str, float]) -> float:
        """So many rows that nobody waits longer for the step than its share of a lone step of its own."""
        base, row = self.costs.base_s, self.costs.row_s
        if row <= 0:
            return math.inf
        whole = sum(weights.values())
        return min(((base + row * counts[each]) * whole / weights[each] - base) / row for each in counts)


def dealt(counts: Mapping[str, int], rows: float, *, weights: Mapping[str, float]) -> dict[str, int]:
    """Deals the rows of a step among payers, by weight; what one does not need goes to the others. Each gets one."""
    found: dict[str, int] = {}
    left, weight = rows, sum(weights[each] for each in counts)
    for payer in sorted(counts, key=lambda each: counts[each] / weights[each]):
        share = left * weights[payer] / weight
        found[payer] = counts[payer] if share >= counts[payer] else max(1, math.floor(share))
        left, weight = left - found[payer], weight - weights[payer]
    return found
