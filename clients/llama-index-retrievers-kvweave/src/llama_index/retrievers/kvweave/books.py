"""What happens to a collection where its service is away: deletions are owed, and made up for before anything else."""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kvweave_client import (
    Connection,
    ConnectionFailed,
    KVWeaveError,
    RateLimited,
    ServiceFailed,
    TimedOut,
    UnexpectedAnswer,
)
from llama_index.retrievers.kvweave.registry import Registry

PASSING: Final = (ConnectionFailed, RateLimited, ServiceFailed, TimedOut, UnexpectedAnswer)
PAUSE_S: Final = 30.0  # without a try after a failure: who ingests does not wait for a service that is away

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Owed:
    """What kvweave may hold and should not: nodes, the nodes of source documents, or all that there is."""

    nodes: set[str] = field(default_factory=set[str])
    ref_docs: set[str] = field(default_factory=set[str])
    everything: bool = False

    def add(self, other: "Owed") -> None:
        """Owe what another one owes, too."""
        self.nodes |= other.nodes
        self.ref_docs |= other.ref_docs
        self.everything = self.everything or other.everything

    def clear(self) -> None:
        """Owe nothing any more."""
        self.nodes.clear()
        self.ref_docs.clear()
        self.everything = False

    def __bool__(self) -> bool:
        return bool(self.nodes or self.ref_docs or self.everything)


class Books:
    """The books of one collection, for threads. A copy, in another process too, begins with empty ones."""

    def __init__(self, connection: Connection, collection: str, *, search: bool, timeout_s: float) -> None:
        self.connection = connection
        self._collection = collection
        self._search = search
        self._timeout_s = timeout_s
        self._registry = Registry(connection, collection, search=search, timeout_s=timeout_s)
        self._owed = Owed()
        self._resumes = 0.0
        self._lock = threading.RLock()
        weakref.finalize(self, _end, collection, self._owed)

    @property
    def owed(self) -> Owed:
        """What is owed now."""
        with self._lock:
            return deepcopy(self._owed)

    def read(self, look: Callable[[Registry], set[str]]) -> set[str]:
        """What `look` finds in the registry. Raises where the service does not answer."""
        with self._lock:
            return look(self._registry)

    def settle(self) -> None:
        """Make up for what is owed, now. Raises where the service does not answer."""
        with self._lock:
            self._settle()
            self._resumes = 0.0

    def write(self, act: Callable[[Registry], None], *, owing: Owed, strict: bool) -> None:
        """Changes the registry. Where that fails, `owing` is owed. What only an operator can mend is always raised."""
        with self._lock:
            if not strict and time.monotonic() < self._resumes:
                self._owe(owing, why="it did not answer before")
                return
            try:
                self._settle()
                act(self._registry)
                self._resumes = 0.0
            except PASSING as error:
                self._resumes = time.monotonic() + PAUSE_S
                if strict:
                    self._owed.add(owing)
                    raise
                self._owe(owing, why=str(error))
            except KVWeaveError:
                self._owed.add(owing)
                raise

    def _settle(self) -> None:
        if self._owed:
            if self._owed.everything:
                self._registry.clear()
            self._registry.delete(self._owed.nodes | self._registry.nodes_of(self._owed.ref_docs))
            self._owed.clear()

    def _owe(self, owing: Owed, *, why: str) -> None:
        self._owed.add(owing)
        _log.warning(
            "kvweave's collection %r lacks changes of %d nodes and %d source documents (%s): the index goes on "
            "without it, and what it should not hold is deleted when it answers again",
            self._collection,
            len(owing.nodes),
            len(owing.ref_docs),
            why,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Books, search=self._search, timeout_s=self._timeout_s), (self.connection, self._collection)


def _end(collection: str, owed: Owed) -> None:
    """Says that what is owed is forgotten with these books."""
    if owed:
        _log.error("kvweave's collection %r still holds what was deleted: delete it there, or all of it", collection)
