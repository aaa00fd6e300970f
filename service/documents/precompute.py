"""Works through a corpus: reads ahead, computes what is missing, by need within a budget, makes it serve, prunes."""

import json
import time
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence, Set
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain

from blake3 import blake3

from retriever.catalog.change import CatalogChange
from retriever.documents import Document
from retriever.library import TOGETHER
from retriever.readers.reading import ReadingProblem
from retriever.types import Limit, SourceFile
from service.access.domains import DomainChunk
from service.documents.chunk_capture import CaptureItem, CaptureOutcome, ChunkCapture, Purpose, Sink
from service.documents.collection_rules import kept_rules
from service.documents.corpus_listing import CorpusFile
from service.documents.file_group import (
    CorpusReader,
    CorpusState,
    FileGroup,
    RunProgress,
    Shard,
    Target,
    look,
    signature,
)
from service.documents.fillers import divide, first_filler
from service.documents.need import BudgetedStore, CacheBudget, needs
from service.model.served_model import Ids
from store.blob_store import Put

RANKED = 256  # chunks whose texts are looked up together
SWEEP_S = 60.0  # what is left then is swept by the next run

OnProgress = Callable[[RunProgress], None]
# Of items behind a collection's prefix, and whatever else each of them is behind; in any order.
Capture = Callable[[Ids, Iterable[CaptureItem]], Iterator[CaptureOutcome]]


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """Which chunks are computed, and where: `capture` in the place of this process. A shard makes no catalog.

    `renew`: what an earlier release captured is computed again, too, and takes its place.
    """

    budget: CacheBudget | None = None
    shard: Shard | None = None
    capture: Capture | None = None
    renew: bool = False
    top_k: int = 5


class Precompute:
    """Works through the corpus of one collection. May be stopped anywhere, and run again."""

    def __init__(self, target: Target, plan: CapturePlan = CapturePlan()) -> None:
        self.progress = RunProgress()
        self._target = target
        self._plan = plan

    def run(
        self, found: Iterable[CorpusFile | ReadingProblem], *, on_progress: OnProgress, gone: Set[str] = frozenset()
    ) -> RunProgress:
        """Works on all files, and prunes remembered ones that are `gone`. Calls `on_progress`.

        Raises StoreError and CatalogError; what was done is kept.
        """
        kept_rules(self._target.tenant.catalog, self._target.collection, fresh=self._target.rules)
        found = self._with_filler(iter(found))
        state = look(self._target)
        terms = self._terms()
        limit = state.limit
        settled = limit is not None and limit.terms == terms and self._held(state) >= limit.nbytes
        reader = CorpusReader(self._target, state, shard=self._plan.shard, renew=self._plan.renew, settled=settled)
        run = _Run(self._target, self._plan, state=state, progress=self.progress, on_progress=on_progress)
        with ThreadPoolExecutor(1, "kvweave-read") as pool:
            groups = _ahead(reader.groups(found, gone=gone), pool)
            if self._plan.budget is None:
                run.compute_all(groups)
            else:
                run.compute_needed(groups, self._plan.budget, reader=reader)
        self._target.tenant.store.flush()
        if self._plan.shard is None:
            self._remember(state, terms)
            self._sweep()
            self._embed(on_progress)
            self._prune(gone, read=run.read)
        return self.progress

    def _embed(self, on_progress: OnProgress) -> None:
        """Makes the vectors that documents of before lack, as where the embedder is new."""
        library = self._target.tenant.library
        while library.advance(TOGETHER):
            self.progress.vectors, self.progress.vectors_of = library.embedded or (0, 0)
            on_progress(self.progress)

    def _prune(self, names: Set[str], *, read: Container[str]) -> None:
        """Deletes the documents of these remembered files, but for those that were read in other files."""
        target = self._target
        with target.tenant.catalog.view() as view:
            known = view.sources(target.collection)
        for name in names:
            gone = _in_collection(target, [each for each in known[name].documents if each not in read])
            target.tenant.delete(gone)
            with target.tenant.catalog.change() as change:
                change.forget_source(target.collection, name)
            self.progress.removed += len(gone)
        self._recapture()

    def _with_filler(self, found: Iterator[CorpusFile | ReadingProblem]) -> Iterator[CorpusFile | ReadingProblem]:
        """The files. Where the collection has no filler, one is made of their first documents: all is captured once."""
        target, fields = self._target, self._target.tenant.captures.domain_fields
        with target.tenant.catalog.change() as change:
            divide(change, [target.collection], fields=fields)
        with target.tenant.catalog.view() as view:
            if view.fillers(target.collection):
                return found
        taken: list[CorpusFile | ReadingProblem] = []
        documents = CorpusReader(target, look(target)).first_documents(found, taken)
        with target.tenant.catalog.change() as change:
            for domain, passages in first_filler(documents, fields=fields).items():
                if not change.has_filler(target.collection, domain):
                    change.keep_filler(target.collection, domain, passages=passages)
        return chain(taken, found)

    def _sweep(self) -> None:
        """What runs that were killed left behind goes, and the caches of all that is gone.

        Not earlier: until all files are read, any of them may bring a text back whose cache is there.
        """
        with self._target.tenant.catalog.change() as change:
            change.drop_orphans()
        self._target.tenant.sweep(SWEEP_S)
        self._recapture()

    def _recapture(self) -> None:
        while self._target.tenant.recapture(RANKED):
            pass

    def _terms(self) -> str:
        """What limits this run, in words that tell whether another run might come further."""
        plan, store = self._plan, blake3(self._target.url.encode()).hexdigest(16)
        if plan.budget is None:
            return json.dumps([store])
        asked = blake3("\0".join(plan.budget.questions).encode()).hexdigest(16)
        return json.dumps([store, plan.budget.nbytes, plan.top_k, asked])

    def _held(self, state: CorpusState) -> int:
        """Bytes of all that stands in the way: where it falls below what it was, there is room again."""
        if self._plan.budget is not None:
            return state.nbytes
        return sum(entry.nbytes for entry in self._target.tenant.store.entries())

    def _remember(self, state: CorpusState, terms: str) -> None:
        """Why not all is stored, so that the next run need not try."""
        limit = Limit(terms, self._held(look(self._target))) if self.progress.over_budget else None
        if limit != state.limit:
            with self._target.tenant.catalog.change() as change:
                change.put_limit(self._target.collection, limit, model=state.capture_prefix.digest)


class _Run:
    """One run, from the first group to the last outcome."""

    def __init__(
        self, target: Target, plan: CapturePlan, *, state: CorpusState, progress: RunProgress, on_progress: OnProgress
    ) -> None:
        self._target = target
        self._plan = plan
        self._standing = state
        self._tally = progress
        self._on_progress = on_progress
        self._owner: dict[DomainChunk, FileGroup] = {}
        self._is_full = False
        self._opened = 0
        self.read: dict[str, int] = {}  # documents, and the last group that brings each, whose text is to serve
        with target.tenant.catalog.view() as view:
            self._known = view.sources(target.collection)  # nobody else changes them meanwhile

    def compute_all(self, groups: Iterable[FileGroup]) -> None:
        """Each group serves when all its chunks are stored, or cannot be."""
        self._take(self._asked(groups), sink=self._target.tenant.store)

    def compute_needed(self, groups: Iterable[FileGroup], budget: CacheBudget, *, reader: CorpusReader) -> None:
        """All groups serve first; then what the questions need most is computed, until the budget is used up."""
        progress, target, stored, seen = self._tally, self._target, self._standing.stored, reader.seen
        whole = FileGroup()  # what its chunks wait for is nothing but the end of the run
        for group in groups:
            self._open(group)
            whole.nbytes, whole.tokens = whole.nbytes + group.nbytes, whole.tokens + group.tokens
            self._leave(group)
            self._close(group)
        if not any(seen.values()):
            progress.worked_bytes += whole.nbytes
            return
        self._owner = {chunk: whole for chunk, wanted in seen.items() if wanted}
        whole.waiting = len(self._owner)
        with self._timed("rank"):
            need = needs(
                target.tenant.library, budget.questions, collection=target.collection, top_k=self._plan.top_k
            )  # fmt: skip
        ranked = sorted(seen, key=lambda chunk: -need[chunk.id])
        keys = [reader.present[chunk] for chunk in ranked if chunk in reader.present]
        there = [(key, stored[key]) for key in keys]

        def room() -> int:
            stored = look(target).stored.items()
            return budget.nbytes - sum(nbytes for key, nbytes in stored if DomainChunk.of(key) in seen)

        sink = BudgetedStore(target.tenant.store, room, spare=there, need=need)
        wanted = self._texts([chunk for chunk in ranked if seen[chunk]], sink)
        self._take(wanted, sink=sink)
        progress.worked_bytes += whole.work(whole.tokens - whole.worked)
        progress.dropped, progress.present = sink.dropped, progress.present - sink.dropped
        progress.over_budget = progress.chunks - progress.present - progress.stored - progress.unsupported

    def _take(self, items: Iterable[CaptureItem], *, sink: Sink) -> None:
        capturing = ChunkCapture(self._target.tenant.model, sink, purpose=Purpose.JOB)
        elsewhere = self._plan.capture
        capture = partial(elsewhere, self._standing.capture_prefix.prefix) if elsewhere else capturing.run
        start = time.perf_counter() - self._tally.seconds.get("index", 0.0)
        for outcome in capture(items):
            if self._plan.capture is None:
                self._tally.seconds |= asdict(capturing.spent)
            else:  # what is not spent on indexing here is waited for
                self._tally.seconds["compute"] = time.perf_counter() - start - self._tally.seconds.get("index", 0.0)
            self._count(outcome)
            self._on_progress(self._tally)

    def _asked(self, groups: Iterable[FileGroup]) -> Iterator[CaptureItem]:
        """The chunks of each group in turn. A group that waits for none serves at once."""
        for group in groups:
            self._open(group)
            if self._is_full:
                self._leave(group)
            self._owner |= dict.fromkeys(group.items, group)
            if not group.waiting:
                self._tally.worked_bytes += group.work(group.tokens)
                self._close(group)
            yield from group.items.values()

    def _texts(self, chunks: Sequence[DomainChunk], sink: BudgetedStore) -> Iterator[CaptureItem]:
        """Yields chunks with their token ids, as long as there is room."""
        origin = self._standing.capture_prefix.digest
        for start in range(0, len(chunks), RANKED):
            some = chunks[start : start + RANKED]
            lacking = self._target.tenant.caches.lacking([chunk.id for chunk in some])
            items = {DomainChunk.of(item.key): item for item in lacking if item.key.origin == origin}
            for chunk in some:
                if sink.is_full:
                    return
                if chunk in items:  # somebody may have deleted it meanwhile, or it is damaged
                    yield items[chunk]

    def _count(self, outcome: CaptureOutcome) -> None:
        progress, chunk = self._tally, DomainChunk.of(outcome.item.key)
        match outcome.put:
            case Put.STORED | Put.PRESENT:
                progress.stored += 1
                progress.tokens += len(outcome.item.chunk.all)
                progress.nbytes += outcome.nbytes
                progress.raw_bytes += outcome.raw_bytes
                if self._plan.renew:
                    self._target.tenant.caches.supersede(outcome.item.key)
            case Put.OVER_BUDGET:
                self._is_full = True
                progress.over_budget += 1
            case Put.DELETED:
                progress.problems.append(
                    ReadingProblem(chunk.id, "it was deleted again and again while it was computed: run again")
                )
            case None:
                progress.unsupported += 1
                progress.problems.append(ReadingProblem(chunk.id, outcome.reason))
        group = self._owner.pop(chunk, None)
        if group is not None:
            progress.worked_bytes += group.work(len(outcome.item.chunk.all))
            group.waiting -= 1
            if not group.waiting:
                self._close(group)

    def _leave(self, group: FileGroup) -> None:
        """Counts a group's chunks as over budget."""
        self._tally.over_budget += len(group.items)
        group.items.clear()
        group.waiting = 0

    def _open(self, group: FileGroup) -> None:
        """Keeps and indexes a group's documents, to serve later: those that do not serve already, just so."""
        self._tally.add(group.progress)
        if self._plan.shard is not None:
            return
        self._opened += 1
        group.number = self._opened
        self.read |= {document.id: group.number for document in group.documents}
        with self._timed("index"):
            self._stage(group, group.documents)
        self._on_progress(self._tally)

    def _stage(self, group: FileGroup, documents: Iterable[Document]) -> None:
        target = self._target
        with target.tenant.catalog.view() as view:
            fresh, ids = list[Document](), set[str]()
            for each in documents:  # of one that several files bring, the last serves, behind the others once more
                if each.id in ids or not view.serves(each, collection=target.collection):
                    ids.add(each.id)
                    fresh.append(each)
        if fresh:
            versions = target.tenant.library.stage_all(fresh, collection=target.collection)
            group.staged += zip([each.id for each in fresh], versions, strict=True)

    def _close(self, group: FileGroup) -> None:
        """Makes a group's documents serve, in one transaction with the memory of files: a known file's do serve."""
        target = self._target
        if self._plan.shard is not None or not group.fresh:
            return
        with self._timed("index"):
            fresh = [each for each in group.documents if self.read[each.id] == group.number]
            staged = {name for name, _ in group.staged}
            self._stage(group, [each for each in fresh if each.id not in staged])  # that another file let go
            versions = [version for name, version in group.staged if self.read[name] == group.number]
            sources, dropped = self._sources(group)

            def mark(change: CatalogChange) -> Iterable[int]:
                for name, source in sources.items():
                    change.put_source(target.collection, name, source=source)
                return versions

            target.tenant.clear(target.tenant.serve([each.id for each in fresh], mark, dropped=dropped))
        self._tally.removed += len(dropped)
        self._tally.documents += len(versions)
        self._on_progress(self._tally)

    def _sources(self, group: FileGroup) -> tuple[dict[str, SourceFile], list[str]]:
        """What is remembered of a group's files, and the documents that no file has any more.

        What could not be read of a file stays as it was, and the file is read again by the next run.
        """
        sources: dict[str, SourceFile] = {}
        left: list[str] = []
        for fresh in group.fresh:
            ids = tuple(document.id for document in fresh.documents)
            before = self._known.get(fresh.file.name)
            others = tuple(each for each in (before.documents if before else ()) if each not in ids)
            if fresh.whole:
                sources[fresh.file.name] = SourceFile(signature(fresh.file, self._target.rules), ids, fresh.file.base)
                left += others
            else:
                sources[fresh.file.name] = SourceFile("", (*ids, *others), fresh.file.base)
        self._known |= sources
        return sources, _in_collection(self._target, [each for each in dict.fromkeys(left) if each not in self.read])

    @contextmanager
    def _timed(self, stage: str) -> Generator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._tally.spend(stage, time.perf_counter() - start)


def _in_collection(target: Target, documents: Iterable[str]) -> list[str]:
    """The documents that are in the collection: a corpus that was put into another one took its documents there."""
    with target.tenant.catalog.view() as view:
        found = [view.document(document) for document in documents]
    return [entry.id for entry in found if entry and entry.collection == target.collection]


def _ahead(groups: Iterator[FileGroup], pool: Executor) -> Iterator[FileGroup]:
    """Yields the groups; the next is read while one is worked on."""
    coming = pool.submit(next, groups, None)
    while (group := coming.result()) is not None:
        coming = pool.submit(next, groups, None)
        yield group
