"""Answers kept in memory for a while, each for its key alone: how long, how many, and how many bytes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from sys import getsizeof
from threading import Lock
from typing import Final

from service.access.principal import Principal

KEPT_S: Final = 3600.0
MOST_KEPT: Final = 1000  # answers of one key
MOST_KEPT_BYTES: Final = 8 << 20  # of one key
ALL_KEPT_BYTES: Final = 256 << 20

Owner = tuple[str, str]


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer with the conversation up to it, each message as text of JSON; the first `asked` of them it answers.

    `sources`: the documents and chunks, by their ids, that this or an earlier answer of the conversation rests on.
    """

    body: str
    messages: tuple[str, ...]
    sources: frozenset[tuple[str, str]] = frozenset()
    asked: int = 0

    @property
    def nbytes(self) -> int:
        """What it takes, messages that others share with it included."""
        own = sum(getsizeof(each) for each in (self.body, *self.messages))
        return own + sum(getsizeof(name) for each in self.sources for name in each)


@dataclass(slots=True)
class _OfKey:
    answers: dict[str, tuple[KeptAnswer, float]] = field(default_factory=dict[str, tuple[KeptAnswer, float]])
    nbytes: int = 0

    def take(self, name: str) -> int:
        """The bytes that are free without the answer of this name."""
        nbytes = self.answers.pop(name)[0].nbytes
        self.nbytes -= nbytes
        return nbytes


class KeptAnswers:
    """All answers that are kept; the oldest go first, of a key or of the one that has most. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._keys: dict[Owner, _OfKey] = {}
        self._nbytes = 0

    def keep(self, who: Principal, name: str, *, answer: KeptAnswer) -> None:
        """Keeps an answer under this name, unless it alone is more than a key may have."""
        nbytes = answer.nbytes
        with self._lock:
            self._drop_expired()
            if nbytes > MOST_KEPT_BYTES:
                return
            own = self._keys.setdefault(_owner(who), _OfKey())
            own.answers[name] = (answer, self._clock() + KEPT_S)
            own.nbytes += nbytes
            self._nbytes += nbytes
            while len(own.answers) > MOST_KEPT or own.nbytes > MOST_KEPT_BYTES:
                self._nbytes -= own.take(next(iter(own.answers)))
            while self._nbytes > ALL_KEPT_BYTES:
                largest = max(self._keys.values(), key=lambda each: each.nbytes)
                self._nbytes -= largest.take(next(iter(largest.answers)))

    def answer(self, who: Principal, name: str) -> KeptAnswer | None:
        """The answer of this name, if it is kept for this key still."""
        with self._lock:
            self._drop_expired()
            own = self._keys.get(_owner(who))
            found = own and own.answers.get(name)
            return found[0] if found else None

    def forget(self, who: Principal, name: str) -> None:
        with self._lock:
            own = self._keys.get(_owner(who))
            if own and name in own.answers:
                self._nbytes -= own.take(name)

    def _drop_expired(self) -> None:
        now = self._clock()
        for owner, own in list(self._keys.items()):
            for name in [name for name, (_, until) in own.answers.items() if until <= now]:
                self._nbytes -= own.take(name)
            if not own.answers:
                del self._keys[owner]


def _owner(who: Principal) -> Owner:
    return who.tenant, who.key_id
