"""The beginnings of prompts that stay in memory for prompts that begin alike: exact rows alone. Knows no engine."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blend.run.context import Context

MOST = 256  # beginnings: each that its owner has is compared with a prompt
KEPT_S = 3600.0


@dataclass(slots=True, eq=False)
class _Beginning:
    owner: str
    ids: NDArray[np.int64]
    context: Context
    until: float

    def common(self, ids: NDArray[np.int64]) -> int:
        """How many of the first tokens are the same."""
        size = min(len(ids), len(self.ids))
        differing = np.flatnonzero(self.ids[:size] != ids[:size])
        return int(differing[0]) if len(differing) else size

    def usable(self, ids: NDArray[np.int64]) -> int:
        """How many of its rows a prompt may begin with. A state is known behind the last one alone."""
        common = self.common(ids)
        return 0 if self.context.states.nbytes and common < len(self.ids) else common


class Prefixes:
    """Keeps the beginnings that were used last, within a number of bytes and a time since their last use. What is kept
    for one owner serves no other. Used by one thread, but for `tokens`.
    """

    def __init__(self, bytes_at_most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._room = bytes_at_most
        self._clock = clock
        self._kept: list[_Beginning] = []  # the one used last is the last; never changed, but replaced

    @property
    def left_s(self) -> float | None:
        """How long the first of them stays if nobody uses it; None where there is none."""
        return max(0.0, min(each.until for each in self._kept) - self._clock()) if self._kept else None

    def tokens(self, ids: Sequence[int], *, owner: str) -> int:
        """How many of these the longest beginning has that is kept for the owner."""
        return self._longest(ids, owner)[0]

    def restore(self, ids: Sequence[int], context: Context, *, owner: str = "") -> None:
        """Copy the longest beginning of these ids that is kept for the owner into the context's first slots."""
        self.expire()
        tokens, found = self._longest(ids, owner)
        if found and tokens:
            self._use(found)
            context.copy_first(tokens, found.context)
            context.exact = tokens

    def keep(self, ids: Sequence[int], context: Context, *, owner: str = "") -> None:
        """Keep these first tokens as the context holds them, computed in place, and the states behind them."""
        states, wanted = context.states.behind(len(ids)), np.asarray(ids, np.int64)
        if not len(wanted) or states is None or len(wanted) * context.token_bytes + states.nbytes > self._room:
            return
        tokens, found = self._longest(ids, owner)
        if found and tokens == len(wanted):
            self._use(found)
            return
        own = [each for each in self._kept if each.owner == owner and not states.nbytes]
        covered = [each for each in own if each.common(wanted) == len(each.ids)]
        added = _Beginning(owner, wanted, context.first(len(wanted)), self._clock() + KEPT_S)
        self._kept = self._within([*(each for each in self._kept if each not in covered), added])

    def expire(self) -> None:
        """Drop what was not used for too long."""
        now = self._clock()
        self._kept = [each for each in self._kept if each.until > now]

    def _longest(self, ids: Sequence[int], owner: str) -> tuple[int, _Beginning | None]:
        wanted = np.asarray(ids, np.int64)
        own = [(each.usable(wanted), each) for each in self._kept if each.owner == owner]
        return max(own, key=lambda each: each[0], default=(0, None))

    def _use(self, beginning: _Beginning) -> None:
        beginning.until = self._clock() + KEPT_S
        self._kept = [*(each for each in self._kept if each is not beginning), beginning]

    def _within(self, kept: list[_Beginning]) -> list[_Beginning]:
        """Those that stay: what was used longest ago goes first, of those who have more than their share."""
        del kept[:-MOST]
        taken = Counter[str]()
        for each in kept:
            taken[each.owner] += each.context.nbytes
        while taken.total() > self._room:
            share = self._room / len(taken)
            oldest = next(each for each in kept if taken[each.owner] > share)
            kept.remove(oldest)
            taken[oldest.owner] -= oldest.context.nbytes
        return kept
