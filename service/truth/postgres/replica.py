"""One replica of a database's service: its heartbeat, others' deletions learned, those that died given up.

A lease is a duration on a clock of the machine's own. Who holds one counts from before it told that it lives, the
others count from after they saw it; so whoever is given up has stopped to answer before. What it then still tries to
change fails in the database.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

from retriever.errors import CatalogError
from retriever.postgres.connection import Session
from retriever.postgres.database import AnotherDatabase, NoTables, PostgresDatabase
from service.errors import AccessError
from service.telemetry.logs import fields
from service.truth.peers import Follower
from service.truth.postgres.postgres_peers import GIVEN_UP_S, LEASE_S, PostgresPeers
from service.truth.postgres.server_lock import IN_USE, KEY, Still
from store.errors import StoreError

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0  # between two signs of life
WORK_S: Final = 15.0  # between two looks for work, if nobody told of any
_WAIT_S: Final = 3.0  # for a migration that is just ending


def now() -> float:
    """Seconds of a clock that goes on while the machine is suspended, where it has one: the others do not wait."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Replica(PostgresPeers):
    """See `Peers`. `on_loss` is told where the database is not this service's any more, with the reason."""

    def __init__(self, database: PostgresDatabase, *, store: str, on_loss: Callable[[str], None]) -> None:
        super().__init__(database)
        self._store = store
        self._on_loss = on_loss
        self._follower: Follower | None = None
        self._closed = threading.Event()
        self._news = threading.Event()
        self._session = ExitStack()
        self._raw: Session | None = None
        self._until = 0.0  # when the lease ends
        self._learned = 0
        self._lapses, self._caught_up = 1, 0  # how often the lease ran out, and after how many of these it caught up
        self._seen = Still(GIVEN_UP_S)
        self._looked = 0.0
        self._threads = [
            threading.Thread(target=run, name=f"kvweave-replica-{name}", daemon=True)
            for name, run in (("beat", self._live), ("news", self._hear), ("learn", self._learn))
        ]

    def take(self) -> None:
        """Raises AccessError where the database is another's, or services keep their caches elsewhere."""
        until = time.monotonic() + GIVEN_UP_S + _WAIT_S
        while True:
            try:
                self._begin()
                break
            except AccessError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.2)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed.set()
        self._news.set()
        self._let_go_of_session()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self.leave()

    def follow(self, follower: Follower) -> None:
        self._follower = follower
        self._learn_once()

    def lease(self) -> int | None:
        lapses = self._lapses
        knows_all = self._caught_up == lapses or self._follower is None  # nothing is served yet that could be deleted
        return lapses if knows_all and now() < self._until else None

    def _lapse(self) -> None:
        """What others delete from now on, nobody waits for this one to learn."""
        self._lapses += 1
        self._news.set()

    def _begin(self) -> None:
        """Takes its share of the lock, and a row. Raises AccessError."""
        self._share()
        self._give_up_others()
        for other in self.others():
            if other.store != self._store:
                raise AccessError(
                    f"the database is served by another process whose caches are in {other.store}, and not in "
                    f"{self._store}: name one KVWEAVE_STORE for all services, which all of them reach"
                )
        sent = now()
        self._learned = self.register(self._store)
        self._database.fence_by_row(KEY, self.row)
        self._database.prove_by(self._proof)
        if self._follower is not None:
            self._follower.forget()
        self._until = sent + LEASE_S

    def _share(self) -> None:
        """A session that shares the lock, and hears of news. Raises AccessError where one has the lock alone."""
        if self._raw is not None and not self._raw.closed:
            return
        with ExitStack() as stack:
            raw = stack.enter_context(self._database.session())
            taken = self._database.watched(raw).execute(f"SELECT pg_try_advisory_lock_shared({KEY}, 1)").fetchone()
            if taken != (True,):
                raise AccessError(IN_USE)
            self._database.watched(raw).script("LISTEN kvweave")
            self._let_go_of_session()
            self._session, self._raw = stack.pop_all(), raw

    def _let_go_of_session(self) -> None:
        with suppress(CatalogError):
            self._session.close()

    def _live(self) -> None:
        """Tells, again and again, that this service lives."""
        while not self._closed.wait(EVERY_S):
            try:
                self._beat()
            except (CatalogError, NoTables):
                continue
            except AccessError as error:
                log.error("this service stops", extra=fields(reason=str(error)))
                self._on_loss(str(error))
                return

    def _beat(self) -> None:
        sent = now()
        if sent > self._until:
            self._lapse()
        try:
            is_known = self.beat(self._learned)
        except AnotherDatabase:
            is_known = False
        if not is_known:
            self._come_back()
            return
        self._share()
        self._until = sent + LEASE_S
        if self._give_up_others() or sent - self._looked > WORK_S:
            self._look_for_work()
        if self.swept_after(self._learned):
            self._news.set()

    def _come_back(self) -> None:
        """Is a service again, after others have given this one up, or of another database; nothing that it began goes
        on, and what it made of the database is made anew.
        """
        log.warning("the other services have given this one up, or the database is another one: it catches up")
        with ExitStack() as stack:
            if self._follower:
                stack.enter_context(self._follower.resting())
            self._until = 0.0
            self._lapse()
            self._database.prove_by(None)
            self._let_go_of_session()
            self._raw = None
            self._begin()

    def _give_up_others(self) -> bool:
        """Takes those out that stood still for too long. Returns whether there was any."""
        still = self._seen.still({other.row: other for other in self.others()})
        given_up = [other.row for other in still if self.give_up(other)]
        if given_up:
            log.warning("services that did not tell that they live are given up", extra=fields(count=len(given_up)))
        return bool(given_up)

    def _look_for_work(self) -> None:
        self._looked = time.monotonic()
        if self._follower is not None:
            with self._database.connection() as connection:
                found = connection.execute("SELECT tenant FROM schemas WHERE tenant IS NOT NULL").fetchall()
            for (tenant,) in found:
                self._follower.wake(tenant)

    def _hear(self) -> None:
        """Hears what others tell, at once; what is not heard is found a little later."""
        while not self._closed.is_set():
            raw = self._raw
            if raw is None or raw.closed:
                self._closed.wait(EVERY_S)
                continue
            try:
                for tenant in self._database.notices(raw, EVERY_S):
                    if not tenant:
                        self._news.set()
                    elif self._follower is not None:
                        self._follower.wake(tenant)
            except CatalogError:
                log.debug("the session of this service has ended")
                self._closed.wait(EVERY_S)

    def _learn(self) -> None:
        """Learns what others deleted. What cannot be learned just now is tried again."""
        while not self._closed.is_set():
            self._news.wait(EVERY_S)
            self._news.clear()
            if not self._learn_once():
                self._closed.wait(EVERY_S)
                self._news.set()

    def _learn_once(self) -> bool:
        try:
            self._catch_up()
        except (CatalogError, StoreError, NoTables) as error:
            log.warning("what other services deleted cannot be learned yet", extra=fields(reason=str(error)))
            return False
        return True

    def _catch_up(self) -> None:
        row, lapses = self.row, self._lapses
        is_behind = self._caught_up != lapses
        swept = self.swept_after(self._learned)
        follower = self._follower  # not before: whoever follows from here on learns all that was deleted until then
        if follower is not None and (is_behind or swept):
            follower.learn(None if is_behind else list(swept))
        if row != self.row:  # it is another service by now
            return
        self._learned = max([self._learned, *swept.values()])
        if swept:
            self.beat(self._learned)
        if follower is not None:
            self._caught_up = lapses
