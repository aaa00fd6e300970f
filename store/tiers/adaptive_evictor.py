"""An evictor that ranks by the last use alone (LRU) while that saves clearly more, by two small simulated tiers."""

import math
from collections.abc import Hashable
from typing import TypeVar
from zlib import crc32

from store.tiers.eviction import Evictor, Rule

K = TypeVar("K", bound=Hashable)

SHADOWED = 8  # one key in so many also goes through the shadows, which are as much smaller than the tier
TOGETHER = 32  # uses of the shadows that count as one observation: those of one prompt hit or miss together
ERRORS = 2.0  # standard errors by which the last use alone must lead: chance rarely does
FADES = 3 / 4  # the weight left to evidence after as many uses as a shadow holds blobs


class _Shadow(Evictor[K]):
    """Simulates what a tier would hold under one rule."""

    def ask(self, key: K, nbytes: int, *, cost: float, limit: float) -> float:
        """Simulate a use: a hit where the key is held, an insertion otherwise. Returns the cost that it saves."""
        is_held = key in self
        if is_held:
            self.used(key)
        elif nbytes <= limit:
            self.inserted(key, nbytes, cost=cost)
        for victim in self.victims(int(self.bytes - limit), lambda other: other != key):
            self.evicted(victim)
        return cost if is_held else 0.0


class AdaptiveEvictor(Evictor[K]):
    """See `Evictor`. Ranks by the last use alone for as long as that saves clearly more.

    The shadows see the tier's uses, and evict by themselves. A put that failed and is tried again is a hit in both, and
    so decides nothing between them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shadows: dict[Rule, _Shadow[K]] = {rule: _Shadow(rule) for rule in Rule}
        self._ahead = 0.0  # cost that the last use alone saved more, of the uses that are counted together
        self._lead = 0.0  # and in all, recently
        self._variance = 0.0  # of the lead, if neither were better
        self._fresh = 0  # uses since evidence faded last

    @property
    def entries(self) -> int:
        return super().entries + sum(shadow.entries for shadow in self._shadows.values())

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
            shadow.removed(key)
        super().removed(key)

    def _ask(self, key: K, nbytes: int, *, cost: float) -> None:
        if crc32(repr(key).encode()) % SHADOWED:
            return
        limit = self.bytes / SHADOWED
        saved = {rule: shadow.ask(key, nbytes, cost=cost, limit=limit) for rule, shadow in self._shadows.items()}
        self._ahead += saved[Rule.LAST_USE] - saved[Rule.USES]
        self._fresh += 1
        if not self._fresh % TOGETHER:
            self._judge()

    def _judge(self) -> None:
        self._lead += self._ahead
        self._variance += self._ahead**2
        self._ahead = 0.0
        if self._lead > ERRORS * math.sqrt(self._variance):
            self.follow(Rule.LAST_USE)
        elif self._lead < 0:
            self.follow(Rule.USES)
        if self._fresh >= min(map(len, self._shadows.values())):
            self._lead *= FADES
            self._variance *= FADES**2
            self._fresh = 0
