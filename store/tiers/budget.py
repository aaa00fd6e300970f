"""Decides what is evicted when a tier is full: bytes per tier and per tenant, evictable blobs. Knows no medium.

Keys are their texts here: a ledger of a large tier is read from the medium's own listing.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from store.tiers.adaptive_evictor import AdaptiveEvictor
from store.tiers.eviction import KeyMemory


@dataclass(frozen=True, slots=True)
class TierBudget:
    """Bytes of the medium that a tier may take, in all and for each tenant; None for no limit."""

    total: int | None = None
    per_tenant: int | None = None
    lowest: bool = True  # a lowest tier keeps precomputed blobs; a cache tier may evict all but pinned ones

    @property
    def is_limit(self) -> bool:
        """Whether there is any limit."""
        return self.total is not None or self.per_tenant is not None


@dataclass(frozen=True, slots=True)
class _Kept:
    nbytes: int
    evictable: bool


@dataclass(frozen=True, slots=True)
class BlobMemory:
    """All that a ledger holds about one blob."""

    kept: _Kept | None
    ranked: tuple[KeyMemory, ...]


class Ledger:
    """What a tier holds, in its medium's bytes. Thread safety is the tier's."""

    def __init__(self, budget: TierBudget) -> None:
        self._budget = budget
        self.total = 0
        self._by_tenant: defaultdict[str, int] = defaultdict(int)
        self._kept: dict[str, _Kept] = {}
        self._everyone: AdaptiveEvictor[str] = AdaptiveEvictor()
        # A tenant at its limit evicts its own: finding these through `everyone` would walk past all others.
        self._own: defaultdict[str, AdaptiveEvictor[str]] = defaultdict(AdaptiveEvictor)

    def learn(self, there: Mapping[str, tuple[int, int, bool]]) -> None:
        """Make these all blobs, told by their bytes, tokens, and whether they are evictable. What is known stays."""
        for key in self._kept.keys() - there.keys():
            self.removed(key)
        for key, (nbytes, tokens, evictable) in there.items():
            if not self.matches(key, nbytes, evictable=evictable):
                self.add(key, nbytes, tokens=tokens, evictable=evictable)

    def matches(self, key: str, nbytes: int, *, evictable: bool) -> bool:
        """Whether the ledger has the blob with just this size, and just as evictable."""
        return self._kept.get(key) == _Kept(nbytes, evictable)

    def add(self, key: str, nbytes: int, *, tokens: int, evictable: bool) -> None:
        """Record a blob, new or changed; a miss costs recomputing its tokens."""
        self._subtract(key)
        self._count(key, _Kept(nbytes, evictable))
        for evictor in self._evictors(key):
            if evictable:
                evictor.inserted(key, nbytes, cost=float(tokens))
            else:
                evictor.removed(key)

    def used(self, key: str) -> None:
        """Record a hit of a blob."""
        for evictor in self._evictors(key):
            evictor.used(key)

    def removed(self, key: str) -> None:
        """Record that a blob was deleted: its history is dropped."""
        self._subtract(key)
        for evictor in self._evictors(key):
            evictor.removed(key)

    def evicted(self, key: str) -> None:
        """Record that a blob was evicted."""
        self._subtract(key)
        for evictor in self._evictors(key):
            evictor.evicted(key)

    def memory(self, key: str) -> BlobMemory:
        """What the ledger holds about a blob now, to be restored should the next change not commit."""
        return BlobMemory(self._kept.get(key), tuple(evictor.memory(key) for evictor in self._evictors(key)))

    def restore(self, key: str, memory: BlobMemory) -> None:
        """Undo all changes to a blob since `memory` was taken."""
        self._subtract(key)
        if memory.kept is not None:
            self._count(key, memory.kept)
        for evictor, known in zip(self._evictors(key), memory.ranked, strict=True):
            evictor.restore(key, known)

    def victims(self, key: str, nbytes: int) -> list[str] | None:
        """The other keys to evict so that `nbytes` more fit under this one; None where that is not enough."""
        tenant = tenant_of(key)
        own = _excess(self._budget.per_tenant, self._by_tenant[tenant] + nbytes)
        overall = _excess(self._budget.total, self.total + nbytes)
        chosen = self._own[tenant].victims(own, lambda other: other != key) if own else []
        if self._freed(chosen) < overall:
            spared = {key, *chosen}
            chosen += self._everyone.victims(overall - self._freed(chosen), lambda other: other not in spared)
        freed_own = self._freed([victim for victim in chosen if tenant_of(victim) == tenant])
        return chosen if freed_own >= own and self._freed(chosen) >= overall else None

    def _evictors(self, key: str) -> tuple[AdaptiveEvictor[str], ...]:
        if self._budget.per_tenant is None:
            return (self._everyone,)
        return self._everyone, self._own[tenant_of(key)]

    def _freed(self, keys: list[str]) -> int:
        return sum(self._kept[key].nbytes for key in keys)

    def _count(self, key: str, kept: _Kept) -> None:
        self._kept[key] = kept
        self.total += kept.nbytes
        self._by_tenant[tenant_of(key)] += kept.nbytes

    def _subtract(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.total -= kept.nbytes
            self._by_tenant[tenant_of(key)] -= kept.nbytes


def _excess(limit: int | None, nbytes: int) -> int:
    return 0 if limit is None else max(0, nbytes - limit)


def tenant_of(key: str) -> str:
    """The tenant's part of a key's text, as spelled there."""
    return key.partition("/")[0]
