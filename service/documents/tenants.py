"""A tenant's documents and caches changed together: served, deleted, swept; caches in a wrong domain then."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from threading import Lock

from retriever.catalog.change import CatalogChange
from retriever.errors import CatalogError
from retriever.library import Library
from retriever.types import Passage, Removal
from service.documents.chunk_caches import ChunkCaches
from service.documents.chunk_capture import CaptureItem, ChunkCapture, Purpose
from service.documents.chunk_captures import ChunkCaptures
from service.documents.fillers import divide, settle
from service.documents.libraries import Libraries
from service.model.served_model import ServedModel
from service.telemetry.logs import fields
from service.truth.control import Control
from service.truth.peers import Passed, Peers
from service.truth.truth import Truth
from store.blob_store import BlobStore, Put, StoredBlob
from store.errors import StoreError
from store.key import Scope

log = logging.getLogger(__name__)

SWEEP_S = 10.0  # how long a delete waits for the caches to go; the rest goes behind its back
_SWEPT = 2048  # chunks between two marks of how far it came
_PIECE_S = 0.1  # in which a store deletes what goes together


@dataclass(frozen=True, slots=True)
class Removed:
    """Ids of chunks that left with what was deleted. `done`: every tier answers that their caches are absent.

    Every other service has let go of what it had of them, too. `kept` are held by other documents.
    """

    chunks: tuple[str, ...]
    kept: tuple[str, ...]
    done: bool


class Tenant:
    """A tenant's catalog, library and store, and the model that computes what is stored. Safe for threads.

    A delete reaches all of them together.
    """

    def __init__(
        self, name: str, library: Library, *, caches: ChunkCaches, store: BlobStore, peers: Peers | None = None
    ) -> None:
        self.name = name
        self._peers = peers or Peers()
        self.library = library
        self.catalog = library.catalog
        self.caches = caches
        self.captures = caches.captures
        self.model = caches.captures.model
        self.store = store
        self._sweeping = Lock()
        self._together = 1  # scopes that the store deletes in a piece of time, as it was lately
        self._divided: tuple[frozenset[str], Iterator[StoredBlob]] = frozenset(), iter(())

    def serve(
        self, documents: Sequence[str], mark: Callable[[CatalogChange], Iterable[int]], *, dropped: Sequence[str] = ()
    ) -> set[str]:
        """Makes documents serve and others go, all at once. `mark` keeps in the same transaction how far they came, and
        tells the staged versions of those that are still wanted.

        Returns chunks that other documents hold, and whose caches may be in domains that have them no more.
        """
        before = self.domains(documents)
        with self.catalog.change() as change:
            removals = [change.serve(version) for version in mark(change)]
            if dropped:
                removals.append(change.delete(dropped))
            settle(change, [*documents, *dropped], fields=self.captures.domain_fields)
        if before == self.domains(documents) and not dropped:
            return set()
        return {chunk for removal in removals for chunk in removal.kept}

    def delete(
        self, documents: Sequence[str], *, instead: Callable[[CatalogChange, Removal], None] | None = None
    ) -> Removed:
        """Deletes all versions of documents, what waits to be cut too; then the caches that nothing else needs.

        `instead` puts something in their place, in the same transaction.
        """
        with self.catalog.change() as change:
            removal = change.delete(documents)
            if instead:
                instead(change, removal)
            settle(change, documents, fields=self.captures.domain_fields)
        return self._removed(removal)

    def delete_collection(self, name: str) -> Removed:
        with self.catalog.change() as change:
            removal = change.delete_collection(name)
        return self._removed(removal)

    def _removed(self, removal: Removal) -> Removed:
        self.void()
        is_swept = self.sweep(SWEEP_S, kept=removal.kept)
        return Removed(removal.gone, removal.kept, self._peers.passed(Passed(self.name)) and is_swept)

    def sweep(self, limit_s: float, *, kept: Collection[str] = ()) -> bool:
        """Deletes the caches of chunks that are gone. Returns whether none is left; anybody finds the rest again.

        Of chunks that are `kept` by documents of other domains it deletes those of the domains that lost them.
        """
        end = time.monotonic() + limit_s
        with self._sweeping:
            is_swept = self._sweep_removed(end) and self._sweep_moved(end)
            return self.clear(kept) and is_swept

    def _sweep_removed(self, end: float) -> bool:
        """Deletes the caches of chunks that no document has. Returns whether none is left."""
        while time.monotonic() < end:
            with self.catalog.view() as view:
                removed = view.state().removed
                rows = view.unswept(_SWEPT)
            if not self._forget([chunk for _, chunk in rows], until=end):
                return False
            with self.catalog.change() as change:
                change.swept(rows[-1][0] if rows else removed)
            if len(rows) < _SWEPT:
                return True
        return False

    def _sweep_moved(self, end: float) -> bool:
        """Deletes the caches of contexts that chunks stand in no more. Returns whether none is left."""
        while time.monotonic() < end:
            with self.catalog.view() as view:
                rows = view.moved(_SWEPT, swept=False)
            if not rows:
                return True
            self.void()
            try:
                stale, uses = self.caches.moved([*{chunk for _, chunk in rows}])
                with self.catalog.change() as change:  # before they go: who is killed meanwhile would not know it later
                    change.lack_contexts(uses)
                if not self._delete(stale, until=end):
                    return False
            except StoreError as error:
                log.warning("caches of old contexts could not be removed yet", extra=fields(reason=str(error)))
                return False
            with self.catalog.change() as change:
                change.settled([row for row, _ in rows])
        return False

    def domains(self, documents: Iterable[str]) -> dict[str, str]:
        """The domains of those of these documents that serve; nothing where no filter divides the tenant's."""
        if not self.captures.domain_fields:
            return {}
        with self.catalog.view() as view:
            found = [view.document(document) for document in documents]
        return {each.id: self.captures.chunk("", each.metadata).domain for each in found if each}

    def renew(self, count: int) -> list[Passage] | None:
        """Looks at so many blobs, whether their domain is still one: filters of new keys make others, and a kill may
        leave some. Returns what is to be computed for new domains; None when all blobs were looked at.
        """
        fields, (before, blobs) = self.captures.domain_fields, self._divided
        if fields != before:
            with self.catalog.view() as view:
                names = [each.name for each in view.collections()]
            with self.catalog.change() as change:
                divide(change, names, fields=fields)
            blobs = self.store.entries(Scope(self.name))
        self._divided = frozenset(), iter(())  # of what fails all is looked at again
        batch = list(islice(blobs, count))
        lacking = self.caches.clear(batch)
        self._divided = fields, blobs
        return lacking if batch else None

    def recapture(self, count: int) -> bool:
        """Computes at most so many chunks anew that have moved to another context, those most used first, once no blob
        of an old one is left. Returns whether there may be more."""
        with self.catalog.view() as view:
            unswept, rows = view.moved(1, swept=False), view.moved(count, swept=True)
        if unswept:
            self.sweep(1.0)
            with self.catalog.view() as view:
                return view.moved(1, swept=False) != unswept
        if not rows:
            return False
        items = self.caches.lacking([*dict.fromkeys(chunk for _, chunk in rows)])
        left = {item.key for item in items}  # of what moves, or an upload brings meanwhile, nothing comes out

        def wanted(batch: Sequence[CaptureItem]) -> Sequence[CaptureItem]:
            lacking = {each.key for each in self.caches.lacking([item.key.chunk for item in batch])}
            return [item for item in batch if item.key in lacking]

        capturing = ChunkCapture(self.model, self.store, purpose=Purpose.JOB, wanted=wanted)
        with self.caches.computing(item.key for item in items):
            for outcome in capturing.run(items):
                left.discard(outcome.item.key)
                if outcome.put in (Put.STORED, Put.PRESENT):
                    self.caches.saw(outcome.item.key)
                    self.caches.supersede(outcome.item.key)
        again = {key.chunk for key in left}
        with self.catalog.change() as change:
            change.settled([row for row, chunk in rows if chunk not in again])
        return True

    def clear(self, chunks: Collection[str]) -> bool:
        """Deletes the caches of these chunks in domains in which no document has them. Returns whether all went."""
        try:
            for chunk in chunks if self.captures.domain_fields else ():
                self.caches.clear(list(self.store.entries(Scope(self.name, chunk))))
        except StoreError as error:
            log.warning("caches of domains without documents could not be removed yet", extra=fields(reason=str(error)))
            return False
        return True

    def _forget(self, chunks: Sequence[str], *, until: float) -> bool:
        """Deletes the blobs of these chunks. Returns whether all went. A kill in between costs that some go twice."""
        if chunks:
            self.void()
        try:
            return self._delete([Scope(self.name, chunk) for chunk in chunks], until=until)
        except StoreError as error:
            log.warning("caches of deleted chunks could not be removed yet", extra=fields(reason=str(error)))
            return False

    def _delete(self, scopes: Sequence[Scope], *, until: float) -> bool:
        """Deletes these scopes, as many together as take no time. Returns whether all went. Raises StoreError."""
        left = scopes
        while left and (began := time.monotonic()) < until:
            piece, left = left[: self._together], left[self._together :]
            self.store.delete_all(piece)
            if time.monotonic() - began > _PIECE_S:
                self._together = max(1, self._together // 2)
            elif len(piece) == self._together:
                self._together *= 2
        return not left

    def void(self) -> None:
        """Lets go of prompts that wait to be fetched, and of sessions: what is gone or moved may be in them."""
        self.model.let_go(self.name)


class Tenants:
    """All tenants of a service, and their one model. A tenant is opened once, and made when it is first asked for."""

    def __init__(
        self,
        model: ServedModel,
        *,
        store: BlobStore,
        control: Control,
        libraries: Libraries,
        truth: Truth,
    ) -> None:
        self.model = model
        self.store = store
        self.control = control
        self.peers = truth.peers
        self._names = truth.tenants
        self.libraries = libraries
        self._open: dict[str, Tenant] = {}
        self._are_anew = False  # what files have of the catalogs is not of these
        self._opening: defaultdict[str, Lock] = defaultdict(Lock)
        self._lock = Lock()

    def open(self, name: str) -> Tenant:
        """The tenant of this name. Names are checked where keys are made. Raises CatalogError where it is damaged."""
        with self._lock:
            if name in self._open:
                return self._open[name]
            opening = self._opening[name]
        with opening:  # nobody waits for the catalog of another tenant
            if name not in self._open:
                made = self._made(name)
                with self._lock:
                    self._open[name] = made
            return self._open[name]

    def _made(self, name: str) -> Tenant:
        library = self.libraries.open(name)
        if self._are_anew:
            library.forget_indexes()
        captures = ChunkCaptures(name, library.catalog, model=self.model, control=self.control)
        caches = ChunkCaches(name, library.catalog, store=self.store, captures=captures, control=self.control)
        return Tenant(name, library, caches=caches, store=self.store, peers=self.peers)

    def names(self) -> list[str]:
        return self._names()

    def learn(self, passed: Collection[Passed] | None) -> None:
        """Lets go of what other services have deleted of these tenants, or of all, and of sessions that have ended.
        Raises StoreError.
        """
        for tenant, session in [Passed(each.name) for each in self.opened()] if passed is None else passed:
            if session:
                self.model.end_session(tenant, session)
            else:
                self.model.let_go(tenant)
        self.store.learn_deletions(None if passed is None else [each.tenant for each in passed if not each.session])

    def forget(self) -> None:
        """Opens all tenants anew, without what was made of their catalogs: these may be others."""
        self.control.forget()
        with self._lock:
            gone, self._open, self._are_anew = list(self._open.values()), {}, True
        for tenant in gone:
            tenant.catalog.close()
            tenant.library.forget_indexes()

    def opened(self) -> list[Tenant]:
        with self._lock:
            return [*self._open.values()]

    def serving(self) -> set[str]:
        """The names of embedders whose vectors are searched."""
        found: set[str] = set()
        for name in self.names():
            with (
                suppress(CatalogError),
                self.open(name).catalog.view() as view,
            ):  # raised again at this tenant's requests
                found |= {each.name for each in view.embedders() if each.serving}
        return found

    def close(self) -> None:
        """Let go of all catalogs, and of the model."""
        self.libraries.close()
        for tenant in self.opened():
            tenant.catalog.close()
        self.model.engine.close()
