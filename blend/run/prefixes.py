"""The beginnings of prompts, and a conversation's rows, that are kept for prompts that begin alike: which are not kept,
for how long others are, which go to the disk for want of memory, which are dropped. Knows no engine.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from blend.run.context import Context
from blend.run.spill import Spill, SpilledContext

MOST = 256  # beginnings of an owner: each is compared with a prompt
FILES = 64  # of them that are on the disk: each takes one of the files that a process may have open
KEPT_S = 3600.0
ENDED = 1000  # sessions of a payer that are known by name to have ended

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation. What prompts of one `order` leave may hold documents, and goes on to no others; where there is
    none, what they leave is exact, and is kept for any prompt of its owner.

    `keep_s`: how long what is left is kept, and then before what else its owner has. `as_of`: when the documents of
    this prompt were looked up, on the monotonic clock.
    """

    payer: str
    name: str
    order: str = ""
    keep_s: float | None = field(default=None, compare=False)
    as_of: float = field(default_factory=time.monotonic, compare=False)


@dataclass(slots=True, eq=False)
class _Beginning:
    owner: str
    session: Session | None
    ids: NDArray[np.int64]
    context: Context | SpilledContext
    until: float
    least: int  # tokens that a prompt has in common with it, or nothing is of use to it
    cached: Tensor | None  # as a context's
    on_disk: bool = False  # or on its way there

    @property
    def is_pinned(self) -> bool:
        return self.session is not None and self.session.keep_s is not None

    def common(self, ids: NDArray[np.int64]) -> int:
        """How many of the first tokens are the same."""
        size = min(len(ids), len(self.ids))
        differing = np.flatnonzero(self.ids[:size] != ids[:size])
        return int(differing[0]) if len(differing) else size

    def usable(self, ids: NDArray[np.int64]) -> int:
        """How many of its rows a prompt may begin with."""
        common = self.common(ids)
        return common if common >= self.least else 0


@contextmanager
def _if_there_is_memory() -> Generator[None]:
    """Has what is kept for later cost nobody an answer, or the engine its thread."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch has no other for what it finds no memory for
        log.warning("a beginning of a prompt is not kept", exc_info=error)


class Prefixes:
    """Keeps the beginnings that were used last, within a number of bytes and a time since their last use. What is kept
    for one owner serves no other. Used by one thread, but for `tokens` and `end_sessions`.

    Where there is a `spill`, it gets what memory has no room for.
    """

    def __init__(
        self, bytes_at_most: int, *, spill: Spill | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._room = bytes_at_most
        self._spill = spill
        self._clock = clock
        self._ended: dict[str, dict[str, float]] = {}  # when a payer's session last was; without a name: when all were
        self._late: dict[str, float] = {}  # of this payer's prompts those that are no newer leave nothing
        self._kept: list[_Beginning] = []  # the one used last is the last; never changed, but replaced

    @property
    def left_s(self) -> float | None:
        """How long the first of them stays if nobody uses it; None where there is none."""
        left = [0.0 if self._is_over(each.session) else each.until - self._clock() for each in self._kept]
        return max(0.0, min(left)) if left else None

    def tokens(self, ids: Sequence[int], *, owner: str, session: Session | None = None) -> int:
        """How many of these the longest beginning has that is kept for the owner, and the session."""
        return self._longest(ids, owner, session=session)[0]

    def restore(self, ids: Sequence[int], context: Context, *, owner: str = "", session: Session | None = None) -> None:
        """Copy the longest beginning of these ids that is kept for them into the context's first slots."""
        self.expire()
        tokens, found = self._longest(ids, owner, session=session)
        rows = self._read(found) if found and tokens else None
        if found and rows:
            self._use(found)
            context.copy_first(tokens, rows)
            context.placed, context.cached = tokens, found.cached

    @_if_there_is_memory()
    def keep(
        self, ids: Sequence[int], context: Context, *, owner: str = "", session: Session | None = None, least: int = 0
    ) -> None:
        """Keep these first tokens as the context holds them, and the states behind them. A prompt gets nothing of it
        that has not the first `least` tokens in common. A session has its last one alone, which may have rows out of
        records.
        """
        states, wanted = context.states.behind(len(ids)), np.asarray(ids, np.int64)
        if not len(wanted) or states is None or self._is_over(session):
            return
        if session and (session.keep_s == 0 or session.as_of <= self._late.get(session.payer, -math.inf)):
            return
        if len(wanted) * context.token_bytes + states.nbytes > self._room:
            return
        tokens, found = self._longest(ids, owner, session=session)
        if found and tokens == len(wanted) and not found.on_disk and _keep_s(found.session) == _keep_s(session):
            self._use(found)
            return
        is_blended = session is not None and bool(session.order)
        covered = [each for each in self._own(owner, session) if is_blended or each.common(wanted) == len(each.ids)]
        covered = [each for each in covered if not each.is_pinned or each.session == session]  # nobody else ends a pin
        cached = context.cached if is_blended else None
        if states.nbytes:  # they are of use behind their own last token alone, and no row before them is computed anew
            least, cached = len(wanted), None
            covered = [each for each in covered if is_blended or len(each.ids) >= len(wanted)]
        rows, until = context.first(len(wanted)), self._clock() + _keep_s(session)
        added = _Beginning(owner, session, wanted, rows, until, least, cached)
        self._kept = self._within([*_without(self._kept, covered), added])

    def end_sessions(self, payer: str, name: str = "") -> None:
        """Keep nothing of this payer's session of this name, or of what any has of documents that were looked up so
        far.
        """
        ended = self._ended.setdefault(payer, {})
        ended.pop(name, None)  # the one that ended last is the last
        ended[name] = self._clock()
        while len(ended) > ENDED and not any(self._is_over(each.session) for each in self._kept):
            self._late[payer] = ended.pop(next(iter(ended)))

    def _is_over(self, session: Session | None) -> bool:
        if session is None:
            return False
        names, ended = (session.name, "") if session.order else (session.name,), self._ended.get(session.payer, {})
        return session.as_of <= max(ended.get(name, -math.inf) for name in names)

    def expire(self) -> None:
        """Drop what was not used for too long."""
        now = self._clock()
        self._kept = [each for each in self._kept if each.until > now and not self._is_over(each.session)]

    def _own(self, owner: str, session: Session | None) -> list[_Beginning]:
        own = [each for each in self._kept if each.owner == owner and _blended(each.session) == _blended(session)]
        return [each for each in own if not self._is_over(each.session)]

    def _longest(self, ids: Sequence[int], owner: str, *, session: Session | None) -> tuple[int, _Beginning | None]:
        wanted = np.asarray(ids, np.int64)
        own = [(each.usable(wanted), each) for each in self._own(owner, session)]
        return max(own, key=lambda each: each[0], default=(0, None))

    def _use(self, beginning: _Beginning) -> None:
        beginning.until = max(beginning.until, self._clock() + _keep_s(beginning.session))
        self._kept = [*_without(self._kept, [beginning]), beginning]

    def _read(self, beginning: _Beginning) -> Context | None:
        """Its rows; None where the disk has lost them, and then nothing is kept of it."""
        rows = beginning.context
        if isinstance(rows, Context):
            return rows
        try:
            return rows.read()
        except OSError as error:
            log.warning("a kept beginning of a prompt is lost", exc_info=error)
            self._kept = _without(self._kept, [beginning])
            return None

    def _within(self, kept: list[_Beginning]) -> list[_Beginning]:
        """Those that stay: what was used longest ago goes first, of those who have more than their share."""
        own = [each for each in kept if each.owner == kept[-1].owner]
        if len(own) > MOST:
            kept = _without(kept, [min(own, key=lambda each: each.is_pinned)])
        for leaving in _beyond(self._room, [each for each in kept if not each.on_disk]):
            kept = self._spilled(kept, leaving)
        return kept

    def _spilled(self, kept: list[_Beginning], leaving: _Beginning) -> list[_Beginning]:
        """Those that stay: with this one on its way to the disk, where older ones make room for it, or without it."""
        if not self._spill or _blended(leaving.session):  # what documents are in stays in memory
            return _without(kept, [leaving])
        on_disk = [each for each in kept if each.on_disk]
        taken = sum(each.context.nbytes for each in on_disk)
        gone = _beyond(self._spill.room(taken), [*on_disk[1 - FILES :], leaving]) + on_disk[: 1 - FILES]
        if leaving not in gone and self._spill.put(leaving.context, partial(_moved, leaving)):
            leaving.on_disk = True
            return _without(kept, gone)
        return _without(kept, [*gone, leaving])


def _moved(beginning: _Beginning, there: SpilledContext | None) -> None:
    """The disk has taken it, or not, and then nothing is kept of it."""
    if there:
        beginning.context = there
    else:
        beginning.until = 0.0


def _keep_s(session: Session | None) -> float:
    return KEPT_S if session is None or session.keep_s is None else session.keep_s


def _blended(session: Session | None) -> Session | None:
    """Whose rows they are; None where they are exact."""
    return session if session and session.order else None


def _without(kept: Iterable[_Beginning], gone: Sequence[_Beginning]) -> list[_Beginning]:
    return [each for each in kept if each not in gone]


def _beyond(room: int, kept: Sequence[_Beginning]) -> list[_Beginning]:
    """Those to part with, so that the others are no more than the room."""
    left, taken = list(kept), Counter[str]()
    for each in kept:
        taken[each.owner] += each.context.nbytes
    while taken.total() > room:
        share = room / len(taken)
        oldest = min((each for each in left if taken[each.owner] > share), key=lambda each: each.is_pinned)
        left.remove(oldest)
        taken[oldest.owner] -= oldest.context.nbytes
    return _without(kept, left)
