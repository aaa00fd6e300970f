"""Uploads, small ones together, from bytes to documents that serve with their caches. Steps may be redone."""

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from blend.errors import TokenizerError
from retriever.catalog.change import CatalogChange
from retriever.catalog.view import CatalogView
from retriever.documents import Document
from retriever.errors import DocumentError
from retriever.library import Embedded
from retriever.readers.files import read
from retriever.types import Label
from retriever.upload_types import QueuedUpload, UploadState
from service.access.interpreter_time import INTERPRETER
from service.documents.chunk_capture import CaptureItem, ChunkCapture, Purpose
from service.documents.chunk_captures import PlannedChunk
from service.documents.collection_rules import CollectionRules, kept_rules
from service.documents.drafts import cut_draft, decode_draft, named, told, upload_of
from service.documents.fillers import prepare
from service.documents.quotas import QuotaCheck
from service.documents.tenants import Tenant
from service.errors import Exhausted
from service.telemetry.logs import fields
from service.telemetry.metrics import Metrics
from service.truth.control import Quota
from store.blob_store import Put
from store.key import CacheKey
from store.reader import BlobReader

PROGRESS_S = 0.5  # until it is kept again how far uploads came
TOGETHER = 64  # uploads at most: as many chunks go through the model at once
TOGETHER_BYTES = 32 << 10  # of their contents at most; one that has more is large, and holds up no small one

log = logging.getLogger(__name__)


def next_large(view: CatalogView, *, but: Sequence[int] = ()) -> list[QueuedUpload]:
    """The oldest large upload that is live but these, if there is one."""
    return view.live(1, but=but, least=TOGETHER_BYTES + 1)


def next_small(view: CatalogView, *, alone: Container[int] = (), but: Sequence[int] = ()) -> list[QueuedUpload]:
    """The small uploads that are worked on next: the oldest live one but these, and others of its collection.

    A batch and four transactions for each small one would be too much. Files, and those in `alone`, go alone.
    """
    live = view.live(TOGETHER, but=but, most=TOGETHER_BYTES)
    if not live or live[0].name or live[0].number in alone:
        return live[:1]
    same = [each for each in live if each.collection == live[0].collection and not each.name]
    return list(_small(view, [each for each in same if each.number not in alone]))


def _small(view: CatalogView, uploads: Sequence[QueuedUpload]) -> Iterator[QueuedUpload]:
    """The first upload, and those behind it up to one that is too large: its turn comes next."""
    left = TOGETHER_BYTES
    for number, upload in enumerate(uploads):
        left -= len(view.content(upload.number) or b"")
        if number and left < 0:
            return
        yield upload


class _Unwanted(Exception):
    """Raised where every upload that was worked on has ended meanwhile."""


class Ingestion:
    """The work on one upload, or on several of one collection; of these each ends by itself, and a file is alone.

    `chunk_tokens` are for a new collection. `stops`: whether the service is to end, and the uploads to go on after
    its next start.
    """

    def __init__(
        self,
        tenant: Tenant,
        uploads: Sequence[QueuedUpload],
        *,
        metrics: Metrics,
        chunk_tokens: int,
        stops: Callable[[], bool],
    ) -> None:
        self._tenant = tenant
        self._metrics = metrics
        self._chunk_tokens = chunk_tokens
        self._stops = stops
        self._collection = uploads[0].collection
        self._live = {upload.number: upload for upload in uploads}  # as far as they came; none whose end is known
        self._full: set[int] = set()  # those for which the store's budget is used up
        self._owners: dict[CacheKey, list[int]] = {}  # of each blob that is missing
        self._has_moved = False  # whether chunks came into another context since it was planned
        self._kept_at, self._began = 0.0, time.monotonic()

    def run(self) -> None:
        """Works on the uploads to their ends, whatever these are. Raises what may pass: StoreError, CatalogError,
        a temporary EmbeddingError; and of several uploads whatever else one of them may be at fault for.
        """
        with self._tenant.catalog.view() as view:
            found = {number: view.content(number) for number in self._live}
        contents = {number: content for number, content in found.items() if content is not None}
        self._go_on_with(contents)
        first = next(iter(self._live.values()), None)
        try:
            if first and first.name:
                self._expand(first, contents[first.number])
            elif first:
                with suppress(_Unwanted):
                    self._ingest(contents)
        except (DocumentError, TokenizerError, Exhausted) as error:
            if len(self._live) > 1:
                raise
            self.fail(str(error))

    def fail(self, reason: str) -> None:
        """Ends all uploads as failed, for good."""
        for upload in [*self._live.values()]:
            self._fail(upload, reason)

    def wait(self, reason: str) -> None:
        """Notes in the catalog why the uploads do not go on just now."""
        with self._tenant.catalog.change() as change:
            for upload in self._live.values():
                change.advance(replace(upload, detail=reason))

    def _fail(self, upload: QueuedUpload, reason: str) -> None:
        self._live.pop(upload.number, None)
        failed = replace(upload, state=UploadState.FAILED, version=None, detail=reason)
        with self._tenant.catalog.change() as change:
            if change.advance(failed):
                self._metrics.uploaded(self._tenant.name, state=failed.state.value)
        self._tenant.sweep(1.0)

    def _expand(self, upload: QueuedUpload, content: bytes) -> None:
        """Turns a file into its documents. What of it cannot be read is told beside those that can."""
        reading = read(upload.name, content)
        problems = told(reading.problems)
        drafts = named(reading.drafts, upload.name)
        if not drafts:
            self.fail(problems or f"{upload.name} holds no text")
            return
        quota = self._tenant.captures.quota
        with self._tenant.catalog.change() as change:
            within = QuotaCheck(change, quota, tenant=self._tenant.name)
            if change.advance(replace(upload, detail=problems)):
                change.expand(upload.number, [upload_of(draft, upload.collection) for draft in drafts])
                within.check(change)
        self._metrics.uploaded(self._tenant.name, state=UploadState.READY.value)

    def _ingest(self, contents: Mapping[int, bytes]) -> None:
        documents = {number: each for number, each in [*self._cut(contents)] if number in self._live}
        with self._tenant.catalog.view() as view:
            serving = {number for number, each in documents.items() if view.serves(each, collection=self._collection)}
        for number in serving:  # the same was put in before
            self._live[number] = replace(self._live[number], state=UploadState.COMPUTING)
        fresh = [number for number in documents if number not in serving and self._live[number].version is None]
        self._stage({number: documents[number] for number in fresh})
        if self._compute({number: document for number, document in documents.items() if number in self._live}):
            self._serve()

    def _cut(self, contents: Mapping[int, bytes]) -> Iterator[tuple[int, Document]]:
        """Yields the documents that can be cut; the uploads of the others fail."""
        fresh = CollectionRules(self._chunk_tokens, self._tenant.model.system)
        tokens = kept_rules(self._tenant.catalog, self._collection, fresh=fresh).chunk_tokens
        for number, content in contents.items():
            if upload := self._live.get(number):
                try:
                    draft = decode_draft(content)
                    yield number, cut_draft(draft, upload.document, tokens=tokens, count=self._counted)
                except (DocumentError, TokenizerError) as error:
                    self._fail(upload, str(error))

    def _counted(self, texts: Sequence[str]) -> list[int]:
        """The tokens of pieces of a text. Raises _Unwanted where no upload is live any more."""
        if time.monotonic() - self._began > PROGRESS_S:
            self._keep_progress()
        if not self._live:
            raise _Unwanted
        return self._tenant.model.counted(INTERPRETER.uploads(texts, self._tenant.name))

    def _stage(self, documents: Mapping[int, Document]) -> None:
        """Stages the documents whose uploads are live still."""
        within: QuotaCheck | None = None  # what is there is counted for a quota alone

        def claim(change: CatalogChange, versions: Sequence[int]) -> list[int]:
            claimed: list[int] = []
            for version, (number, document) in zip(versions, documents.items(), strict=True):
                if number not in self._live:
                    continue
                upload = replace(self._live[number], state=UploadState.COMPUTING, version=version, detail="")
                upload = replace(upload, chunks=len(self._tenant.captures.chunks(document)))
                if change.advance(upload):
                    claimed.append(version)
                    self._live[number] = upload
                else:
                    del self._live[number]
            found = (documents[number].metadata for number in documents if number in self._live)
            labels = [Label(self._collection, metadata) for metadata in found]
            prepare(change, labels, staged=claimed, fields=self._tenant.captures.domain_fields)
            if within:
                within.check(change)
            return claimed

        if documents:
            if (quota := self._tenant.captures.quota) != Quota():
                with self._tenant.catalog.change() as before:
                    within = QuotaCheck(before, quota, tenant=self._tenant.name)
            wanted = [*documents.values()]
            anew = self._tenant.captures.unshared(wanted)
            with suppress(_Unwanted):
                self._tenant.library.stage_all(
                    wanted, collection=self._collection, claim=claim, anew=anew, on_embedded=self._keep_embedded
                )

    def _compute(self, documents: Mapping[int, Document]) -> bool:
        """Computes all chunks whose blobs are not there. Where the budget is used up, the others are left.

        Returns whether documents serve then: none does that nobody wants any more, and none where the service stops.
        """
        tenant, captures = self._tenant, self._tenant.captures
        planned = captures.planned_with([*documents.values()], self._collection)
        by_key = {each.keys.best: each for each in planned.values()}
        keys = {
            number: {planned[chunk].keys.best for chunk in captures.chunks(document)}
            for number, document in documents.items()
        }
        wanting = INTERPRETER.uploads(by_key, tenant.name)
        self._owners = {key: [] for key in wanting if not isinstance(tenant.store.open(key), BlobReader)}
        for number, wanted in keys.items():
            lacking = wanted & self._owners.keys()
            for key in lacking:
                self._owners[key].append(number)
            counts = {"stored": len(wanted) - len(lacking), "unsupported": 0, "over_budget": 0}
            self._live[number] = replace(self._live[number], chunks=len(wanted), **counts)
        self._keep_progress()
        self._has_moved = False
        with tenant.caches.computing(self._owners):
            is_done = self._capture(self._items(by_key[key] for key in self._owners))
        if not is_done:
            return False
        if self._has_moved:
            return self._compute({number: each for number, each in documents.items() if number in self._live})
        tenant.store.flush()
        return True

    def _items(self, planned: Iterable[PlannedChunk]) -> Iterator[CaptureItem]:
        """What is to be computed, as it is needed. Counts what is served as text only."""
        for each in INTERPRETER.uploads(planned, self._tenant.name):
            if item := each.item():
                yield item
            else:
                self._count(each.keys.best, None)

    def _capture(self, missing: Iterable[CaptureItem]) -> bool:
        """Computes chunks. Returns False where no upload is live any more, or the service stops."""
        start = time.perf_counter()
        capturing = ChunkCapture(self._tenant.model, self._tenant.store, purpose=Purpose.JOB, wanted=self._wanted)
        for outcome in capturing.run(missing):
            end = time.perf_counter()
            self._metrics.captured(
                self._tenant.name, tokens=len(outcome.item.chunk.all), nbytes=outcome.nbytes, seconds=end - start
            )
            start = end
            self._count(outcome.item.key, outcome.put)
            if outcome.put is None:
                log.warning("a chunk cannot be computed", extra=fields(reason=outcome.reason.partition(":")[0]))
            if self._live and self._full.issuperset(self._live):
                return True
            self._keep_progress()
            if not self._live or self._stops():
                return False
        return bool(self._live)

    def _count(self, key: CacheKey, put: Put | None) -> None:
        """Counts what became of a chunk, for all uploads that hold it; None: it is served as text only."""
        owners = [number for number in self._owners[key] if number in self._live]
        is_stored = put in (Put.STORED, Put.PRESENT)
        if is_stored:
            self._tenant.caches.saw(key)
        elif put is Put.OVER_BUDGET:
            self._full.update(owners)
        for number in owners:
            upload = self._live[number]
            stored, unsupported = upload.stored + is_stored, upload.unsupported + (put is None)
            left = upload.chunks - stored - unsupported if number in self._full else 0
            self._live[number] = replace(upload, stored=stored, unsupported=unsupported, over_budget=left)

    def _wanted(self, batch: Sequence[CaptureItem]) -> Sequence[CaptureItem]:
        """The chunks that live uploads want: whoever ends one later makes the store drop what is computed for it."""
        with self._tenant.catalog.view() as view:
            self._go_on_with({upload.number for upload in view.live_of([*self._live])})
        wanting = self._live.keys() - self._full
        items = [item for item in batch if not wanting.isdisjoint(self._owners[item.key])]
        still = self._tenant.caches.wanted(items)
        self._has_moved = self._has_moved or len(still) < len(items)
        return still

    def _keep_progress(self) -> None:
        """Keeps in the catalog how far the uploads came, now and then."""
        if time.monotonic() - self._kept_at > PROGRESS_S:
            with self._tenant.catalog.change() as change:
                live = {number for number, upload in self._live.items() if change.advance(upload)}
            self._go_on_with(live)
            self._kept_at = time.monotonic()

    def _keep_embedded(self, embedded: Embedded) -> None:
        """Keeps in the catalog, now and then, how far vectors came. Raises _Unwanted where no upload is live."""
        if embedded.made and time.monotonic() - self._kept_at > PROGRESS_S:
            detail = f"vectors of {embedded.made:,} of {embedded.chunks:,} chunks are made"
            self._live = {number: replace(upload, detail=detail) for number, upload in self._live.items()}
            self._keep_progress()
            if not self._live:
                raise _Unwanted

    def _go_on_with(self, wanted: Container[int]) -> None:
        """Lets go of all other uploads: they were deleted, cancelled or overtaken meanwhile, and stay as they are."""
        self._live = {number: upload for number, upload in self._live.items() if number in wanted}

    def _serve(self) -> None:
        """Makes all documents serve whose uploads are live still, at once."""
        ended = [replace(upload, state=UploadState.READY, detail=_summary(upload)) for upload in self._live.values()]
        ready: list[QueuedUpload] = []

        def mark(change: CatalogChange) -> list[int]:
            ready.extend(upload for upload in ended if change.advance(upload))
            return [upload.version for upload in ready if upload.version is not None]

        kept = self._tenant.serve([upload.document for upload in ended], mark)
        for upload in ready:
            self._metrics.uploaded(self._tenant.name, state=upload.state.value)
        self._tenant.sweep(1.0, kept=kept)


def _summary(upload: QueuedUpload) -> str:
    """What a person should know of an upload."""
    remarks: list[str] = []
    if upload.over_budget:
        remarks.append(f"{upload.stored} of {upload.chunks} chunks are stored: the store's budget is used up")
    if upload.unsupported:
        remarks.append(f"{upload.unsupported} of {upload.chunks} chunks are served as text only")
    return "; ".join(remarks)
