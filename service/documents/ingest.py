"""The thread that works on all tenants' uploads, a document or a few small ones each in turn, and fills what queries
found missing."""

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Condition, Lock, Thread

from blend.errors import Busy, TokenizerError
from retriever.catalog.change import CatalogChange
from retriever.embedders.embedding import EmbeddingError
from retriever.errors import CatalogError
from retriever.types import Collection, Passage
from retriever.upload_types import NewUpload, QueuedUpload
from service.access.domains import DomainChunk
from service.documents.chunk_capture import ChunkCapture, Purpose
from service.documents.collection_rules import CollectionRules
from service.documents.ingestion import Ingestion, next_uploads
from service.documents.tenants import Tenant, Tenants
from service.errors import Exhausted, Unavailable
from service.telemetry.logs import fields
from service.telemetry.metrics import Metrics
from service.truth.control import Quota
from store.blob_store import Put
from store.errors import Miss, StoreError

log = logging.getLogger(__name__)

FILLS = 4096  # chunks that wait to be filled; more are let go, and asked for again by the next query
FILL_BATCH = 16
PAUSE_S = 5.0  # before what failed for a reason that may pass is tried again
IDLE_S = 60.0  # without work before it is looked what can be tidied
BUSY_S = 600.0  # between two such looks of a service that never rests
RENEWED = 256  # blobs at a time, whose domains are looked at
EMBEDDED = 64  # chunks at a time, where the embedder changed
KEPT_S = 7 * 86_400.0  # how long ended jobs, deletions and damaged blobs are kept

_PASSING = (StoreError, CatalogError, EmbeddingError, Unavailable)


@dataclass(frozen=True, slots=True)
class _Fill:
    tenant: Tenant
    passage: Passage
    damaged: bool


class Ingest:
    """Accepts uploads and works on them until `close`; what is not done then goes on after the next start."""

    def __init__(self, tenants: Tenants, *, metrics: Metrics, chunk_tokens: int) -> None:
        self._tenants = tenants
        self._peers = tenants.peers
        self._metrics = metrics
        self._chunk_tokens = chunk_tokens
        self._changed = Condition()
        self._busy: OrderedDict[str, None] = OrderedDict()
        self._rests: dict[str, float] = {}  # when a tenant whose catalog failed is tried again
        self._fills: OrderedDict[tuple[str, str, DomainChunk], _Fill] = OrderedDict()
        self._tried_alone: set[tuple[str, int]] = set()  # uploads among which one went wrong
        self._closing = False
        self._is_held = False
        self._turns = Lock()  # held while something is worked on
        self._tidied = time.monotonic()
        self._thread = Thread(target=self._work, name="kvweave-ingest", daemon=True)

    def start(self) -> None:
        """Go on with what was accepted before."""
        for name in self._tenants.names():
            self._busy[name] = None
        self._thread.start()

    def close(self) -> None:
        """Stop after the batch at hand."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def accept(self, tenant: Tenant, uploads: Sequence[NewUpload], *, owner: str = "") -> str:
        """Keeps uploads for good, to work on them soon. Returns their job's id. Raises Exhausted beyond the quota."""
        job = f"job-{owner}-{secrets.token_hex(16)}" if owner else f"job-{secrets.token_hex(16)}"
        quota = self._tenants.control.quota(tenant.name)
        with tenant.catalog.change() as change:
            if quota == Quota():
                change.accept(job, uploads)
            else:
                _accept_within(quota, change, job=job, uploads=uploads, tenant=tenant.name)
        self.wake(tenant.name)
        return job

    def cancel(self, tenant: Tenant, job: str) -> bool:
        """Ends what of a job is not done. Returns whether there was such a job."""
        with tenant.catalog.view() as view:
            known = view.job(job) is not None
        if known:
            with tenant.catalog.change() as change:
                change.cancel(job)
            tenant.sweep(1.0)
        return known

    def put_collection(self, tenant: Tenant, name: str, *, rules: CollectionRules) -> None:
        """Makes a collection, or changes how its next documents are cut. Its prefix is rendered the first time only."""
        ids = self._tenants.model.prefix(rules.to_json())
        with tenant.catalog.change() as change:
            change.put_collection(Collection(name, rules.to_json()))
            change.keep_prefix(name, model=self._tenants.model.fingerprint.digest, ids=ids)

    def fill(self, tenant: Tenant, passages: Sequence[Passage], *, damaged: bool = False) -> None:
        """Computes the caches of passages when there is time, in the place of damaged ones too. Promises nothing."""
        with self._changed:
            for passage in passages:
                if len(self._fills) < FILLS:
                    chunk = tenant.captures.chunk(passage.id, passage.metadata)
                    self._fills[tenant.name, passage.collection, chunk] = _Fill(tenant, passage, damaged)
            self._changed.notify()

    def move(self, tenant: Tenant, passages: Sequence[Passage]) -> None:
        """Computes the caches of a document in the domain that it came into; those of the one that it left go."""
        tenant.sweep(1.0, kept={passage.id for passage in passages})
        self.fill(tenant, passages)

    def wake(self, tenant: str) -> None:
        """Looks whether there is work for a tenant."""
        with self._changed:
            self._busy[tenant] = None
            self._changed.notify()

    @contextmanager
    def resting(self) -> Generator[None]:
        """Works on no upload while the block runs; what is at hand is left as it is, and begun anew."""
        self._is_held = True
        try:
            with self._turns:
                yield
        finally:
            self._is_held = False

    @property
    def waiting_fills(self) -> int:
        """How many chunks wait to be filled."""
        return len(self._fills)

    def _work(self) -> None:
        while not self._closing:
            try:
                self._work_or_rest()
            except Exception as error:
                log.error("ingest goes on after a failure", exc_info=error)
                self._pause("something failed that nobody foresaw", error)

    def _work_or_rest(self) -> None:
        if self._turn():
            if time.monotonic() - self._tidied > BUSY_S:
                self._tidy()
            return
        if self._is_idle() and self._recapture():
            return
        with self._changed:
            if not self._is_idle():
                return
            woken = self._changed.wait(min(PAUSE_S, IDLE_S) if self._busy else IDLE_S)
        if not woken and (not self._busy or time.monotonic() - self._tidied > IDLE_S):
            self._tidy()

    def _next(self) -> str | None:
        """The next tenant with work that does not rest."""
        now = time.monotonic()
        return next((name for name in self._busy if self._rests.get(name, now) <= now), None)

    def _is_idle(self) -> bool:
        return not (self._next() or self._fills or self._closing)

    def _turn(self) -> bool:
        """Works on a document of the next tenant, or a few small ones, and a batch of fills; whether there was any."""
        with self._changed:
            name = self._next()
            if name is not None:
                del self._busy[name]  # before it is looked at: whoever wakes it meanwhile is not overheard
        if name is not None:
            with self._turns:
                self._work_for(name)
        return self._fill() or name is not None

    def _work_for(self, name: str) -> None:
        """Works on uploads of a tenant, which is then the last in the row, also where it failed."""
        more = True
        try:
            more = self._work_on_next(self._tenants.open(name))
            self._rests.pop(name, None)
        except CatalogError as error:  # the others do not wait for it
            what = f"the catalog of {name} does not answer"
            log.warning("ingest waits", extra=fields(what=what, reason=type(error).__name__))
            self._rests[name] = time.monotonic() + PAUSE_S
        finally:
            if more:
                with self._changed:
                    self._busy[name] = None

    def _work_on_next(self, tenant: Tenant) -> bool:
        """Works on a tenant's next uploads, those that fit together. Returns whether there may be more."""
        alone = {number for name, number in self._tried_alone if name == tenant.name}
        elsewhere = self._peers.taken(tenant.name)  # other services work on these
        with tenant.catalog.view() as view:
            uploads = next_uploads(view, alone=alone, but=elsewhere)
        if uploads:
            self._work_on(tenant, [upload.number for upload in uploads])
        elif not elsewhere:
            self._tried_alone = {each for each in self._tried_alone if each[0] != tenant.name}
        return bool(uploads)

    def _work_on(self, tenant: Tenant, numbers: Sequence[int]) -> None:
        """Works on those of these uploads that no other service is working on, or has just ended."""
        claimed = [*self._peers.claim(tenant.name, numbers)]
        try:
            with tenant.catalog.view() as view:
                uploads = view.live_of(claimed)
            if uploads:
                self._run(tenant, uploads)
        finally:
            self._peers.let_go(tenant.name, claimed)

    def _run(self, tenant: Tenant, uploads: Sequence[QueuedUpload]) -> None:
        ingestion = Ingestion(
            tenant,
            uploads,
            metrics=self._metrics,
            chunk_tokens=self._chunk_tokens,
            stops=lambda: self._closing or self._is_held,
        )
        names = {(tenant.name, upload.number) for upload in uploads}
        try:
            ingestion.run()
            self._tried_alone -= names
        except Busy:  # the engine is closing, and so are we
            self._pause("the engine takes nothing more", None)
        except EmbeddingError as error:
            if error.temporary:
                ingestion.wait(str(error))
                self._pause("the embedder does not answer", error)
            elif len(uploads) > 1:
                self._tried_alone |= names
            else:
                ingestion.fail(str(error))
        except (StoreError, Unavailable) as error:
            ingestion.wait(str(error))
            self._pause("the store or the control database does not answer", error)
        except CatalogError:
            raise
        except Exception as error:
            if len(uploads) > 1:  # nobody knows whose fault it is
                log.warning("uploads are worked on one by one", extra=fields(reason=type(error).__name__))
                self._tried_alone |= names
                return
            log.error("an upload failed", exc_info=error, extra=fields(upload=uploads[0].number))
            ingestion.fail(f"kvweave could not work on it: {type(error).__name__}; its log says more")

    def _pause(self, what: str, error: Exception | None) -> None:
        log.warning("ingest waits", extra=fields(what=what, reason=type(error).__name__ if error else ""))
        with self._changed:
            self._changed.wait_for(lambda: self._closing, PAUSE_S)

    def _fill(self) -> bool:
        """Fills a batch; whether there was one. A chunk waits until its turn is over, and is not asked for twice."""
        with self._changed:
            fills = dict(islice(self._fills.items(), FILL_BATCH))
        groups: dict[tuple[str, str], list[_Fill]] = {}
        for fill in fills.values():
            groups.setdefault((fill.tenant.name, fill.passage.collection), []).append(fill)
        try:
            for group in groups.values():
                try:
                    self._fill_group(group[0].tenant, group)
                except (*_PASSING, Busy, TokenizerError) as error:
                    log.warning("missing chunks were not filled", extra=fields(reason=type(error).__name__))
        finally:
            with self._changed:
                for key in fills:
                    del self._fills[key]
        return bool(fills)

    def _fill_group(self, tenant: Tenant, fills: Sequence[_Fill]) -> None:
        """Fills chunks of one collection; not those that are gone, or in another context, when computing begins."""
        caches = tenant.caches
        planned = tenant.captures.planned([fill.passage for fill in fills])
        items = [
            each.item
            for each, fill in zip(planned, fills, strict=True)
            if each.item and (fill.damaged or isinstance(self._tenants.store.open(each.keys.best), Miss))
        ]
        capturing = ChunkCapture(self._tenants.model, self._tenants.store, purpose=Purpose.FILL, wanted=caches.wanted)
        with caches.computing(items):
            for outcome in capturing.run(items):
                if outcome.put in (Put.STORED, Put.PRESENT):
                    caches.saw(outcome.item.key)

    def _recapture(self) -> bool:
        """Computes some chunks anew that have moved to another context; whether there were any."""
        for tenant in list(self._tenants.opened()):
            try:
                with self._turns:
                    if tenant.recapture(FILL_BATCH):
                        return True
            except (*_PASSING, Busy, TokenizerError) as error:
                log.warning("chunks that have moved wait", extra=fields(reason=type(error).__name__))
                self._pause("what has moved is not computed", error)
        return False

    def _tidy(self) -> None:
        """Does what needs doing now and then."""
        self._tidied, old = time.monotonic(), time.time() - KEPT_S
        for tenant in list(self._tenants.opened()):
            try:
                tenant.sweep(1.0)
                self._tenants.store.trim(tenant.name, old)
                with tenant.catalog.change() as change:
                    change.forget_uploads(old)
                while self._is_idle() and tenant.library.advance(EMBEDDED):
                    pass
                while self._is_idle() and (lacking := tenant.renew(RENEWED)) is not None:
                    self.fill(tenant, lacking)
                tenant.library.maintain()
            except _PASSING as error:
                log.warning("tidying waits", extra=fields(tenant=tenant.name, reason=type(error).__name__))
        try:
            self._tenants.store.forget_quarantined(old)
        except StoreError as error:
            log.warning("tidying waits", extra=fields(reason=str(error)))


def _accept_within(quota: Quota, change: CatalogChange, *, job: str, uploads: Sequence[NewUpload], tenant: str) -> None:
    """Accepts the uploads, or raises Exhausted, and with it gives up the change, where there would be too much."""
    before = change.expected()
    change.accept(job, uploads)
    limits = (("documents", quota.documents), ("chunks", quota.chunks))
    for (what, most), was, now in zip(limits, before, change.expected(), strict=True):
        if most is not None and now > max(most, was):
            raise Exhausted(
                f"the quota of tenant {tenant!r} is {most} {what}, this would be more: delete some, "
                "or have the quota raised",  # how many there are is not for a key with a filter to know
                retry_after_s=60,
            )
