"""One upload from its bytes to a document that serves with all its caches. Each step may be done again."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from blend.errors import TokenizerError
from retriever.catalog.base import Change, Collection
from retriever.catalog.upload_types import Upload, UploadState
from retriever.documents import Document, Draft
from retriever.errors import DocumentError
from retriever.readers.files import read
from service.ingest.capturing import Capturing, Item, Purpose
from service.ingest.drafts import cut_draft, decode_draft, named, upload_of
from service.ingest.rules import CollectionRules
from service.press import Ids, Press
from service.telemetry.logs import fields
from service.telemetry.metrics import Metrics
from service.tenants import Tenant
from store.base import BlobStore, Put
from store.reader import BlobReader

PROGRESS_S = 0.5  # between two marks of how far an upload came

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tools:
    """What an upload is worked on with."""

    press: Press
    store: BlobStore
    metrics: Metrics
    chunk_tokens: int


class _Ended(Exception):
    """The upload was deleted, cancelled or overtaken meanwhile, or the service stops: then it stays as it is."""


class Ingestion:
    """Of one upload. `stops`: whether the service is to end, and the upload to go on after its next start."""

    def __init__(self, tools: Tools, tenant: Tenant, *, upload: Upload, stops: Callable[[], bool]) -> None:
        self._tools = tools
        self._stops = stops
        self._tenant = tenant
        self._upload = upload
        self._marked = 0.0

    def run(self) -> None:
        """To its end, whatever that is. Raises what may pass: StoreError, CatalogError, a temporary EmbeddingError."""
        with self._tenant.catalog.view() as view:
            content = view.content(self._upload.number)
        if content is None:
            return
        try:
            if self._upload.name:
                self._expand(content)
            else:
                self._ingest(decode_draft(content))
        except _Ended:
            return
        except (DocumentError, TokenizerError) as error:
            self.fail(str(error))

    def fail(self, reason: str) -> None:
        """For good."""
        failed = replace(self._upload, state=UploadState.FAILED, version=None, detail=reason)
        with self._tenant.catalog.change() as change:
            if change.advance(failed):
                self._tools.metrics.uploaded(self._tenant.name, state=failed.state.value)
        self._tenant.sweep(1.0)

    def wait(self, reason: str) -> None:
        """Say why it does not go on just now."""
        with self._tenant.catalog.change() as change:
            change.advance(replace(self._upload, detail=reason))

    def _expand(self, content: bytes) -> None:
        """A file into its documents. What of it cannot be read is told beside those that can."""
        reading = read(self._upload.name, content)
        problems = "; ".join(f"{problem.place}: {problem.reason}" for problem in reading.problems)
        drafts = named(reading.drafts, self._upload.name)
        if not drafts:
            self.fail(problems or f"{self._upload.name} holds no text")
            return
        with self._tenant.catalog.change() as change:
            if change.advance(replace(self._upload, detail=problems)):
                change.expand(self._upload.number, [upload_of(draft, self._upload.collection) for draft in drafts])
        self._tools.metrics.uploaded(self._tenant.name, state=UploadState.READY.value)

    def _ingest(self, draft: Draft) -> None:
        rules = self._rules()
        document = cut_draft(draft, self._upload.document, tokens=rules.chunk_tokens, count=self._tools.press.counted)
        with self._tenant.catalog.view() as view:
            serves = view.serves(document, collection=self._upload.collection)
        if serves:  # the same was put in before
            self._upload = replace(self._upload, state=UploadState.COMPUTING, chunks=_chunks(document))
        elif self._upload.version is None:
            self._stage(document)
        self._compute(document)
        with self._tenant.catalog.change() as change:
            ready = replace(self._upload, state=UploadState.READY, detail=self._summary())
            if not change.advance(ready):
                raise _Ended
            if ready.version is not None:
                change.serve(ready.version)
        self._tools.metrics.uploaded(self._tenant.name, state=ready.state.value)
        self._tenant.sweep(1.0)

    def _rules(self) -> CollectionRules:
        """Of its collection, which is made where it is not there."""
        name = self._upload.collection
        with self._tenant.catalog.view() as view:
            found = view.collection(name)
        if found is None:
            fresh = CollectionRules(self._tools.chunk_tokens)
            with self._tenant.catalog.change() as change:
                change.put_collection(Collection(name, fresh.to_json()))
            return fresh
        return CollectionRules.from_json(found.rules)

    def _stage(self, document: Document) -> None:
        def claim(change: Change, version: int) -> None:
            claimed = replace(self._upload, state=UploadState.COMPUTING, version=version, detail="")
            claimed = replace(claimed, chunks=_chunks(document))
            if not change.advance(claimed):
                raise _Ended
            self._upload = claimed

        self._tenant.library.stage(document, collection=self._upload.collection, claim=claim)

    def _compute(self, document: Document) -> None:
        """All chunks whose blobs are not there. Where the budget is used up, the others are left."""
        tools, shelf = self._tools, self._tenant.shelf
        behind = shelf.behind([self._upload.collection])[self._upload.collection]
        texts = {part.id: part.text for part in document.parts}
        known = {chunk: tools.press.ids(text) for chunk, text in texts.items()}
        items = [Item(shelf.key(chunk, behind), ids) for chunk, ids in known.items() if ids is not None]
        missing = [item for item in items if not isinstance(tools.store.open(item.key), BlobReader)]
        counts = {"stored": len(items) - len(missing), "over_budget": 0, "unsupported": len(known) - len(items)}
        self._mark(counts)
        self._capture(behind.prefix, missing, counts=counts)
        tools.store.flush()
        self._marked = 0.0
        self._mark(counts)

    def _capture(self, prefix: Ids, missing: Sequence[Item], *, counts: dict[str, int]) -> None:
        start = time.perf_counter()
        capturing = Capturing(self._tools.press, self._tools.store, purpose=Purpose.JOB, wanted=self._wanted)
        for outcome in capturing.run(prefix, missing):
            end = time.perf_counter()
            self._tools.metrics.captured(
                self._tenant.name,
                chunks=1,
                tokens=len(outcome.item.ids),
                nbytes=outcome.nbytes,
                seconds=end - start,
            )
            start = end
            match outcome.put:
                case None:
                    log.warning("a chunk cannot be computed", extra=fields(reason=outcome.reason.partition(":")[0]))
                    counts["unsupported"] += 1
                case Put.STORED | Put.PRESENT:
                    self._tenant.shelf.saw(outcome.item.key)
                    counts["stored"] += 1
                case Put.DELETED:
                    pass
                case Put.OVER_BUDGET:
                    counts["over_budget"] = self._upload.chunks - counts["stored"] - counts["unsupported"]
                    return
            self._mark(counts)
            if self._stops():
                raise _Ended

    def _wanted(self, batch: Sequence[Item]) -> Sequence[Item]:
        """All of it, while the upload is live: whoever ends it later makes the store drop what is computed now."""
        upload = self._upload
        with self._tenant.catalog.view() as view:
            found = view.uploads(upload.job, after=upload.number - 1, limit=1)
        if not found or found[0].number != upload.number or not found[0].state.is_live:
            raise _Ended
        return batch

    def _mark(self, counts: Mapping[str, int]) -> None:
        """Keep how far it came, now and then. Raises _Ended where nobody wants it any more."""
        self._upload = replace(self._upload, **counts)
        if time.monotonic() - self._marked > PROGRESS_S:
            with self._tenant.catalog.change() as change:
                if not change.advance(self._upload):
                    raise _Ended
            self._marked = time.monotonic()

    def _summary(self) -> str:
        """What a person should know of it."""
        upload = self._upload
        told: list[str] = []
        if upload.over_budget:
            told.append(f"{upload.stored} of {upload.chunks} chunks are stored: the store's budget is used up")
        if upload.unsupported:
            told.append(f"{upload.unsupported} of {upload.chunks} chunks are served as text only")
        return "; ".join(told)


def _chunks(document: Document) -> int:
    return len({part.id for part in document.parts})
