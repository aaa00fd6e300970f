"""An evictor that finds out whether past uses tell of coming ones, by what two small tiers without blobs would hit."""

from collections.abc import Hashable
from typing import Generic, TypeVar
from zlib import crc32

from store.tiers.eviction import Evictor, Rule

K = TypeVar("K", bound=Hashable)

SHADOWED = 8  # one key in so many also goes through the shadows, which are as much smaller than the tier
LEAST = 256  # blobs of a shadow: what fewer hit is chance
LEAD = 0.05  # of the cost asked for, that the last use alone must have saved more: chance stays below it
FADES = 3 / 4  # what evidence is worth after as many uses as a shadow holds blobs


class _Shadow(Generic[K]):
    """What a tier would hold under one rule."""

    def __init__(self, rule: Rule) -> None:
        self.evictor: Evictor[K] = Evictor(rule)
        self.saved = 0.0

    def ask(self, key: K, nbytes: int, *, cost: float, limit: float) -> None:
        """A use: a hit where the key is held, and else it comes in."""
        evictor = self.evictor
        if key in evictor:
            self.saved += cost
            evictor.used(key)
        elif nbytes <= limit:
            evictor.inserted(key, nbytes, cost=cost)
        for victim in evictor.victims(int(evictor.bytes - limit), lambda other: other != key):
            evictor.evicted(victim)


class AdaptiveEvictor(Evictor[K]):
    """See `Evictor`. Follows the last use alone for as long as that saves clearly more.

    The shadows are asked what the tier is asked, and evict by themselves. A put that came to nothing and is tried again
    is a hit of both, and so decides nothing between them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shadows: dict[Rule, _Shadow[K]] = {rule: _Shadow(rule) for rule in Rule}
        self._asked = 0.0  # cost, of all uses that the shadows saw lately
        self._fresh = 0  # uses since evidence faded last

    @property
    def entries(self) -> int:
        return super().entries + sum(shadow.evictor.entries for shadow in self._shadows.values())

    def inserted(self, key: K, bytes: int, *, cost: float) -> None:
        if key not in self:
            self._ask(key, bytes, cost=cost)
        super().inserted(key, bytes, cost=cost)

    def used(self, key: K) -> None:
        known = self._residents.get(key)
        if known is not None:
            self._ask(key, known.bytes, cost=known.cost)
        super().used(key)

    def removed(self, key: K) -> None:
        for shadow in self._shadows.values():
            shadow.evictor.removed(key)
        super().removed(key)

    def _ask(self, key: K, nbytes: int, *, cost: float) -> None:
        if crc32(repr(key).encode()) % SHADOWED:
            return
        for shadow in self._shadows.values():
            shadow.ask(key, nbytes, cost=cost, limit=self.bytes / SHADOWED)
        self._asked += cost
        self._fresh += 1
        least = min(len(shadow.evictor) for shadow in self._shadows.values())
        if least >= LEAST and self._fresh >= least:
            self._judge()

    def _judge(self) -> None:
        uses, last = self._shadows[Rule.USES], self._shadows[Rule.LAST_USE]
        lead = last.saved - uses.saved
        if lead > LEAD * self._asked:
            self.follow(Rule.LAST_USE)
        elif lead <= 0:
            self.follow(Rule.USES)
        for shadow in (uses, last):
            shadow.saved *= FADES
        self._asked *= FADES
        self._fresh = 0
