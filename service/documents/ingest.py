"""The threads that work on uploads, fill missing chunks and tidy; refuses uploads beyond a quota, or if too much waits.

A tenant waits for no other but where they all need the model: there the engine shares out turns by weight.
"""

import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from threading import Lock, Thread

from blend.errors import Busy, TokenizerError
from retriever.catalog.change import CatalogChange
from retriever.errors import CatalogError, EmbeddingError
from retriever.readers.reading import megabytes
from retriever.types import Collection, Passage, Removal
from retriever.upload_types import NewUpload, QueuedUpload
from service.access.domains import DomainChunk
from service.documents.chunk_capture import ChunkCapture, Purpose
from service.documents.collection_rules import CollectionRules
from service.documents.ingestion import Ingestion, next_large, next_small
from service.documents.lines import Line, Lines
from service.documents.quotas import QuotaCheck
from service.documents.tenants import Tenant, Tenants
from service.errors import Exhausted, Unavailable
from service.telemetry.logs import fields
from service.telemetry.metrics import Metrics
from store.blob_store import Put
from store.errors import Miss, StoreError

log = logging.getLogger(__name__)

THREADS = 8
SLICE_S = 120.0  # of a large upload, where others wait for theirs; what it has cut is cut again then
FILLS = 4096  # chunks of a tenant that wait to be filled; more are let go, and asked for again by the next query
FILL_BATCH = 16
PAUSE_S = 5.0  # before what failed for a reason that may pass is tried again
RETRY_S = 10.0  # until what was too much may be sent again
IDLE_S = 60.0  # without work before it is looked what can be tidied
BUSY_S = 600.0  # between two such looks of a service that never rests
RENEWED = 256  # blobs at a time, whose domains are looked at
EMBEDDED = 64  # chunks at a time, where the embedder changed
TIDY_S = 1.0  # for each tenant, of what may go on another time, where there is other work
KEPT_S = 7 * 86_400.0  # how long ended jobs, deletions and damaged blobs are kept

_PASSING = (StoreError, CatalogError, EmbeddingError, Unavailable)


@dataclass(frozen=True, slots=True)
class _Fill:
    passage: Passage
    damaged: bool


class _Later(Exception):
    """Raised where something failed that may pass; told is what."""


class Ingest:
    """Accepts uploads and works on them until `close`; what is not done then goes on after the next start."""

    def __init__(self, tenants: Tenants, *, metrics: Metrics, chunk_tokens: int, waiting_bytes: int) -> None:
        """`waiting_bytes`: of a tenant's uploads that are not done, and as many of its files in no collection."""
        self._tenants = tenants
        self._peers = tenants.peers
        self._metrics = metrics
        self._chunk_tokens = chunk_tokens
        self._waiting_bytes = waiting_bytes
        self._lines = Lines()
        self._filling = Lock()
        self._fills: dict[str, OrderedDict[tuple[str, DomainChunk], _Fill]] = {}
        self._tried_alone: dict[str, set[int]] = {}  # small uploads of each tenant among which one went wrong
        self._tidying = Lock()
        self._tidied = time.monotonic()
        names = (f"kvweave-ingest-{number}" for number in range(THREADS))
        self._threads = [Thread(target=self._work, name=name, daemon=True) for name in names]

    def start(self) -> None:
        """Go on with what was accepted before."""
        self.wake_all()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop after the batches at hand."""
        self._lines.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def accept(self, tenant: Tenant, uploads: Sequence[NewUpload], *, owner: str = "") -> str:
        """Keeps uploads for good, to work on them soon. Returns their job's id. Raises Exhausted beyond the quota, and
        where too much of the tenant's would wait."""
        job = _new_job(owner)
        quota = tenant.captures.quota
        with tenant.catalog.change() as change:
            waiting, within = change.waiting_bytes(), QuotaCheck(change, quota, tenant=tenant.name)
            change.accept(job, uploads)
            within.check(change)
            for place, now in enumerate(change.waiting_bytes()):
                self._check_waiting(waiting[place], now, is_idle=place == 1)
        self.wake(tenant.name)
        return job

    def _check_waiting(self, before: int, now: int, *, is_idle: bool = False) -> None:
        if before and now > max(self._waiting_bytes, before):
            size, most = megabytes(now - before), megabytes(self._waiting_bytes)
            raise Exhausted(
                f"files of this tenant are in no vector store, and with the {size} of this one it would be more than "
                f"{most}: put some into one, or delete some"
                if is_idle
                else f"uploads of this tenant wait to be computed, and with the {size} of this one it would be more "
                f"than {most}: send it when some are done, or cancel a job",
                retry_after_s=RETRY_S,
            )

    def withdraw(self, tenant: Tenant, document: str, *, upload: NewUpload, owner: str = "") -> None:
        """Takes a document out of its collection, and keeps in its place what it can be put in again from.

        Where it was deleted meanwhile, it stays so.
        """

        def keep(change: CatalogChange, removal: Removal) -> None:
            if removal != Removal():
                change.accept(_new_job(owner), [upload])

        tenant.delete([document], instead=keep)
        self.wake(tenant.name)  # others may stand in another context now

    def cancel(self, tenant: Tenant, job: str) -> bool:
        """Ends what of a job is not done. Returns whether there was such a job."""
        with tenant.catalog.view() as view:
            known = view.job(job) is not None
        if known:
            with tenant.catalog.change() as change:
                change.cancel(job)
            tenant.sweep(1.0)
        return known

    def put_collection(self, tenant: Tenant, name: str, *, rules: CollectionRules, only_new: bool = False) -> bool:
        """Makes a collection, or changes how its next documents are cut. Its prefix is rendered the first time only.
        False, and nothing is done, where one is there and only a new one is wanted.
        """
        ids = self._tenants.model.prefix(rules.to_json())
        with tenant.catalog.change() as change:
            is_put = change.put_collection(Collection(name, rules.to_json()), only_new=only_new)
            if is_put:
                change.keep_prefix(name, model=self._tenants.model.fingerprint.digest, ids=ids)
        return is_put

    def fill(self, tenant: Tenant, passages: Sequence[Passage], *, damaged: bool = False) -> None:
        """Computes the caches of passages when there is time, in the place of damaged ones too. Promises nothing."""
        with self._filling:
            waiting = self._fills.setdefault(tenant.name, OrderedDict())
            for passage in passages:
                if len(waiting) < FILLS:
                    chunk = tenant.captures.chunk(passage.id, passage.metadata)
                    waiting[passage.collection, chunk] = _Fill(passage, damaged)
        self._lines.wake(Line(tenant.name, is_large=False))

    def move(self, tenant: Tenant, passages: Sequence[Passage]) -> None:
        """Computes the caches of a document in the domain that it came into; those of the one that it left go."""
        tenant.sweep(1.0, kept={passage.id for passage in passages})
        self.fill(tenant, passages)

    def wake(self, tenant: str) -> None:
        self._lines.wake(Line(tenant, is_large=False))
        self._lines.wake(Line(tenant, is_large=True))

    def wake_all(self) -> None:
        for name in self._tenants.names():
            self.wake(name)

    def resting(self) -> AbstractContextManager[None]:
        """Works on no upload while the block runs; what is at hand is left as it is, and begun anew."""
        return self._lines.resting()

    @property
    def waiting_fills(self) -> int:
        """How many chunks wait to be filled."""
        with self._filling:
            return sum(len(each) for each in self._fills.values())

    def _work(self) -> None:
        while not self._lines.closing:
            line = self._lines.taken(failed_s=PAUSE_S, idle_s=IDLE_S)
            try:
                if line:
                    self._turn(line)
                self._tidy_if_due()
            except Exception as error:
                log.error("ingest goes on after a failure", exc_info=error)

    def _turn(self, line: Line) -> None:
        """Works on what is next in a line, which has more where it failed, too."""
        more, failed_s = True, PAUSE_S
        try:
            tenant = self._tenants.open(line.tenant)
            more = self._work_on_large(tenant) if line.is_large else self._work_on_small(tenant)
        except (_Later, CatalogError) as error:  # the others do not wait for it
            what = str(error) if isinstance(error, _Later) else f"the catalog of {line.tenant} does not answer"
            log.warning("ingest waits", extra=fields(what=what, reason=type(error.__cause__ or error).__name__))
        else:
            failed_s = 0.0
        finally:
            self._lines.leave(line, more=more, rests_s=failed_s)
            if not (more or line.is_large):  # what has moved waited for these
                self._lines.wake(Line(line.tenant, is_large=True))

    def _work_on_small(self, tenant: Tenant) -> bool:
        """Works on a tenant's next small uploads, those that fit together, and on a batch of fills.

        Returns whether there may be more.
        """
        alone = self._tried_alone.setdefault(tenant.name, set())
        elsewhere = self._peers.taken(tenant.name)  # other services work on these
        with tenant.catalog.view() as view:
            uploads = next_small(view, alone=alone, but=elsewhere)
        if uploads:
            self._work_on(tenant, uploads)
        elif not elsewhere:
            alone.clear()
        return self._fill(tenant) or bool(uploads)

    def _work_on_large(self, tenant: Tenant) -> bool:
        """Works on a tenant's next large upload, or on chunks that have moved. Returns whether there may be more."""
        with tenant.catalog.view() as view:
            uploads = next_large(view, but=self._peers.taken(tenant.name))
        if uploads:
            self._work_on(tenant, uploads)
            self._lines.wake(Line(tenant.name, is_large=False))  # a file may have small documents
            return True
        if self._lines.has(Line(tenant.name, is_large=False)):
            return False
        return self._recapture(tenant) or self._embed(tenant)

    def _work_on(self, tenant: Tenant, found: Sequence[QueuedUpload]) -> None:
        """Works on those of these uploads that no other service is working on, or has just ended."""
        claimed = [*self._peers.claim(tenant.name, [upload.number for upload in found])]
        try:
            with tenant.catalog.view() as view:
                uploads = view.live_of(claimed)
            if uploads:
                with self._lines.computing():
                    self._run(tenant, uploads)
        finally:
            self._peers.let_go(tenant.name, claimed)

    def _run(self, tenant: Tenant, uploads: Sequence[QueuedUpload]) -> None:
        end = math.inf

        def stops() -> bool:
            nonlocal end
            end = min(end, time.monotonic() + SLICE_S)  # from the first chunk on: what was cut is not for nothing
            return self._lines.is_held or (time.monotonic() > end and self._lines.is_crowded)

        ingestion = Ingestion(
            tenant,
            uploads,
            metrics=self._metrics,
            chunk_tokens=self._chunk_tokens,
            stops=stops,
        )
        numbers, alone = {upload.number for upload in uploads}, self._tried_alone.setdefault(tenant.name, set())
        try:
            ingestion.run()
            alone -= numbers
        except Busy as error:  # the engine is closing, and so are we
            raise _Later("the engine takes nothing more") from error
        except EmbeddingError as error:
            if error.temporary:
                ingestion.wait(str(error))
                raise _Later("the embedder does not answer") from error
            if len(uploads) > 1:
                alone |= numbers
            else:
                ingestion.fail(str(error))
        except (StoreError, Unavailable) as error:
            ingestion.wait(str(error))
            raise _Later("the store or the control database does not answer") from error
        except CatalogError:
            raise
        except Exception as error:
            if len(uploads) > 1:  # nobody knows whose fault it is
                log.warning("uploads are worked on one by one", extra=fields(reason=type(error).__name__))
                alone |= numbers
                return
            log.error("an upload failed", exc_info=error, extra=fields(upload=uploads[0].number))
            ingestion.fail(f"kvweave could not work on it: {type(error).__name__}; its log says more")

    def _fill(self, tenant: Tenant) -> bool:
        """Fills a batch; whether there was one. A chunk waits until its turn is over, and is not asked for twice."""
        with self._filling:
            waiting = self._fills.setdefault(tenant.name, OrderedDict())
            fills = dict(islice(waiting.items(), FILL_BATCH))
        groups: dict[str, list[_Fill]] = {}
        for fill in fills.values():
            groups.setdefault(fill.passage.collection, []).append(fill)
        try:
            for group in groups.values():
                try:
                    self._fill_group(tenant, group)
                except (*_PASSING, Busy, TokenizerError) as error:
                    log.warning("missing chunks were not filled", extra=fields(reason=type(error).__name__))
        finally:
            with self._filling:
                for key in fills:
                    del waiting[key]
        return bool(fills)

    def _fill_group(self, tenant: Tenant, fills: Sequence[_Fill]) -> None:
        """Fills chunks of one collection; not those that are gone, or in another context, when computing begins."""
        caches = tenant.caches
        planned = tenant.captures.planned([fill.passage for fill in fills])
        lacking = (
            each.item()
            for each, fill in zip(planned, fills, strict=True)
            if fill.damaged or isinstance(self._tenants.store.open(each.keys.best), Miss)
        )
        items = [item for item in lacking if item]
        capturing = ChunkCapture(self._tenants.model, self._tenants.store, purpose=Purpose.FILL, wanted=caches.wanted)
        with caches.computing(item.key for item in items):
            for outcome in capturing.run(items):
                if outcome.put in (Put.STORED, Put.PRESENT):
                    caches.saw(outcome.item.key)

    def _recapture(self, tenant: Tenant) -> bool:
        """Computes some chunks anew that have moved to another context; whether there were any."""
        try:
            with self._lines.computing():
                return not self._lines.closing and tenant.recapture(FILL_BATCH)
        except (*_PASSING, Busy, TokenizerError) as error:
            raise _Later("what has moved is not computed") from error

    def _embed(self, tenant: Tenant) -> bool:
        """Makes some of the vectors that are missing, as where the embedder is new; whether there were any."""
        try:
            with self._lines.computing():
                return not self._lines.closing and tenant.library.advance(EMBEDDED) > 0
        except EmbeddingError as error:
            if not error.temporary:  # said when it is tidied
                return False
            raise _Later("the embedder does not answer") from error

    def _tidy_if_due(self) -> None:
        """Does what needs doing now and then, where nobody else is at it."""
        if self._tidying.acquire(blocking=False):
            try:
                now = time.monotonic()
                is_at_rest = self._lines.is_idle and now - max(self._tidied, self._lines.worked) > IDLE_S
                if is_at_rest or now - self._tidied > BUSY_S:
                    self._tidy()
            finally:
                self._tidying.release()

    def _tidy(self) -> None:
        self._tidied, old = time.monotonic(), time.time() - KEPT_S
        for tenant in self._tenants.opened():
            end = time.monotonic() + TIDY_S
            try:
                tenant.sweep(1.0)
                self._tenants.store.trim(tenant.name, old)
                with tenant.catalog.change() as change:
                    change.forget_uploads(old)
                while self._goes_on(end) and tenant.library.advance(EMBEDDED):
                    pass
                while self._goes_on(end) and (lacking := tenant.renew(RENEWED)) is not None:
                    self.fill(tenant, lacking)
                tenant.library.maintain()
            except _PASSING as error:
                log.warning("tidying waits", extra=fields(tenant=tenant.name, reason=type(error).__name__))
            self._lines.wake(Line(tenant.name, is_large=True))  # for what has moved
        try:
            self._tenants.store.forget_quarantined(old)
        except StoreError as error:
            log.warning("tidying waits", extra=fields(reason=str(error)))

    def _goes_on(self, end: float) -> bool:
        return self._lines.is_idle or (time.monotonic() < end and not self._lines.closing)


def _new_job(owner: str) -> str:
    return f"job-{owner}-{secrets.token_hex(16)}" if owner else f"job-{secrets.token_hex(16)}"
