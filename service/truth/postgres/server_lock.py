"""Who has a database alone, as a migration does: the process whose session holds a lock of the server's, which services
share.

The lock goes with the session: at once where a process ends, after half a minute where its machine is cut off. Who lost
it changes nothing any more, even before it has noticed.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final, TypeVar

from retriever.errors import CatalogError
from retriever.postgres.connection import PostgresConnection
from retriever.postgres.database import PostgresDatabase, explained
from service.errors import AccessError

log = logging.getLogger(__name__)

IN_USE: Final = "the database is served by another process, or migrated: stop all its services, or wait for the end"
EVERY_S: Final = 2.0
_WAIT_S: Final = 3.0  # for one that is just ending
KEY: Final = 1802925923  # precompute's has the next number
_SERVES: Final = f"SELECT pg_try_advisory_lock({KEY}, 1)"
_STILL: Final = "SELECT 1"


T = TypeVar("T")


class Still:
    """Which of several things have not changed for so long. Time in which nobody looked does not count."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._looked = -math.inf
        self._since: dict[int, tuple[object, float]] = {}

    def still(self, now: Mapping[int, T]) -> list[T]:
        """Those that are now what they were all the time."""
        clock = self._clock()
        known = self._since if clock - self._looked < self._seconds / 2 else {}
        self._looked = clock
        self._since = {
            name: known[name] if name in known and known[name][0] == each else (each, clock)
            for name, each in now.items()
        }
        return [each for name, each in now.items() if clock - self._since[name][1] >= self._seconds]


class ServerLock:
    """Holds the lock from `take` to `close`. `on_loss` is told when another process has got it in between."""

    def __init__(self, database: PostgresDatabase, on_loss: Callable[[str], None]) -> None:
        self._database = database
        self._on_loss = on_loss
        self._closed = threading.Event()
        self._session = ExitStack()
        self._thread = threading.Thread(target=self._look, name="kvweave-server-lock", daemon=True)

    def take(self) -> None:
        """Raises AccessError where another process serves."""
        until = time.monotonic() + _WAIT_S
        while (connection := self._taken()) is None:
            if time.monotonic() > until:
                raise AccessError(IN_USE)
            time.sleep(0.1)
        self._connection = connection
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._let_go()

    def _taken(self) -> PostgresConnection | None:
        with ExitStack() as stack:
            raw = stack.enter_context(self._database.session())
            connection = self._database.watched(raw)
            if connection.execute(_SERVES).fetchone() == (True,):
                self._database.fence(KEY, raw)
                connection.execute("DELETE FROM replicas")  # no session of theirs lives, and none changes anything more
                self._session = stack.pop_all()
                return connection
        return None

    def _let_go(self) -> None:
        try:
            self._session.close()
        except CatalogError:  # it is gone already
            log.debug("the session of the server's lock had ended")

    def _look(self) -> None:
        """Asks whether the session lives. Where it ended, as at a restart of the server, takes the lock again."""
        is_held = True
        while not self._closed.wait(EVERY_S):
            try:
                if is_held:
                    with explained():
                        self._connection.execute(_STILL)
                    continue
            except CatalogError:
                is_held = False
                self._let_go()
            try:
                connection = self._taken()
            except CatalogError:
                continue
            if connection is None:
                log.error("another process serves the database now: this one stops")
                self._on_loss(IN_USE)
                return
            self._connection, is_held = connection, True
