"""Works through a corpus, group by group: the next is read and cut while one is computed. Prints nothing."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from blend.errors import TokenizerError
from retriever.catalog.base import Collection, SourceFile, View
from retriever.documents import Document
from retriever.errors import DocumentError
from retriever.readers.reading import Problem
from service.ingest.capturing import Capturing, Item, Purpose
from service.ingest.drafts import cut_draft
from service.ingest.rules import CollectionRules
from service.precompute.corpus import CorpusFile, Read, read_in
from service.precompute.tally import Tally
from service.press import Ids, Press
from service.shelf import Behind
from service.tenants import Tenant
from store.base import BlobStore, Put
from store.key import Scope

GROUP_TOKENS = 16_384  # that are computed between two transactions
GROUP_FILES = 256


@dataclass(frozen=True, slots=True)
class Bench:
    """What it is worked with."""

    tenant: Tenant
    press: Press
    store: BlobStore
    collection: str
    rules: CollectionRules


@dataclass(slots=True)
class Group:
    """Files that go together. `chunks`: ids of what is to be computed, None for what can be text only."""

    fresh: list[tuple[CorpusFile, list[Document]]] = field(default_factory=list["tuple[CorpusFile, list[Document]]"])
    chunks: dict[str, Ids | None] = field(default_factory=dict[str, Ids | None])
    problems: list[Problem] = field(default_factory=list[Problem])
    files: int = 0
    unchanged: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids in self.chunks.values() if ids)

    @property
    def is_full(self) -> bool:
        return self.tokens >= GROUP_TOKENS or self.files >= GROUP_FILES


class Precompute:
    """Of one collection. May be stopped anywhere, and run again."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._behind: Behind | None = None
        self._stored: set[str] = set()
        self.tally = Tally()

    def run(self, found: Iterable[CorpusFile | Problem], *, told: Callable[[Tally], None]) -> Tally:
        """All files; `told` is called as it goes on. Raises StoreError and CatalogError; what was done is kept."""
        self._begin()
        groups = self.groups(found)
        with ThreadPoolExecutor(1, "kvweave-read") as reader:
            coming = reader.submit(next, groups, None)
            while (group := coming.result()) is not None:
                coming = reader.submit(next, groups, None)
                self._finish(group, told=told)
        return self.tally

    def prune(self, names: Iterable[str]) -> None:
        """Delete the documents of files that are remembered and not among these names."""
        bench, kept = self._bench, set(names)
        with bench.tenant.catalog.view() as view:
            known = view.sources(bench.collection)
        held = {document for name, source in known.items() if name in kept for document in source.documents}
        for name, source in known.items():
            if name not in kept:
                gone = [document for document in source.documents if document not in held]
                bench.tenant.delete(gone)
                with bench.tenant.catalog.change() as change:
                    change.forget_source(bench.collection, name)
                self.tally.removed += len(gone)

    def _begin(self) -> None:
        """The collection, and nothing left of a run that was killed."""
        bench = self._bench
        with bench.tenant.catalog.change() as change:
            change.drop_orphans()
        with bench.tenant.catalog.view() as view:
            is_new = view.collection(bench.collection) is None
        if is_new:
            with bench.tenant.catalog.change() as change:
                change.put_collection(Collection(bench.collection, bench.rules.to_json()))

    def _look(self) -> None:
        """What the store has already, behind this collection's prefix."""
        bench = self._bench
        self._behind = bench.tenant.shelf.behind([bench.collection])[bench.collection]
        digest = self._behind.fingerprint.digest
        self._stored = {
            entry.key.chunk
            for entry in bench.store.entries(Scope(bench.tenant.name))
            if (entry.key.fingerprint, entry.key.codec) == (digest, bench.press.codec)
        }

    @property
    def press(self) -> Press:
        """What computes."""
        return self._bench.press

    @property
    def prefix(self) -> Ids:
        """What the chunks are captured behind."""
        assert self._behind is not None, "the first group was read"
        return self._behind.prefix

    def groups(self, found: Iterable[CorpusFile | Problem]) -> Iterator[Group]:
        """What belongs together of what is missing or changed, read and cut."""
        self._look()
        bench = self._bench
        with bench.tenant.catalog.view() as view:
            known = view.sources(bench.collection)
        group, start = Group(), time.perf_counter()
        for each in found:
            if isinstance(each, Problem):
                group.problems.append(each)
                continue
            group.files += 1
            with bench.tenant.catalog.view() as view:
                is_same = self._is_same(view, known.get(each.name), file=each)
            if is_same:
                group.unchanged += 1
            self._add(group, each, source=known[each.name] if is_same else None)
            if group.is_full:
                group.seconds = time.perf_counter() - start
                yield group
                group, start = Group(), time.perf_counter()
        group.seconds = time.perf_counter() - start
        yield group

    def _signature(self, file: CorpusFile) -> str:
        return f"{file.signature} {self._bench.rules.chunk_tokens}"

    def _is_same(self, view: View, source: SourceFile | None, *, file: CorpusFile) -> bool:
        if source is None or source.signature != self._signature(file):
            return False
        return all(view.document(document) is not None for document in source.documents)

    def _add(self, group: Group, file: CorpusFile, *, source: SourceFile | None) -> None:
        if source is not None:
            with self._bench.tenant.catalog.view() as view:
                for document in source.documents:
                    self._add_chunks(group, ((each.id, each.text) for each in view.passages(document)))
            return
        read = read_in(file)
        group.problems += read.problems
        documents = list(self._cut(read, group.problems))
        if documents or not read.problems:
            group.fresh.append((file, documents))
        for document in documents:
            self._add_chunks(group, ((part.id, part.text) for part in document.parts))

    def _cut(self, read: Read, problems: list[Problem]) -> Iterator[Document]:
        bench = self._bench
        for draft in read.drafts:
            try:
                document = cut_draft(draft, draft.id, tokens=bench.rules.chunk_tokens, count=bench.press.counted)
                for part in document.parts:
                    bench.press.ids(part.text)
            except (DocumentError, TokenizerError) as error:
                problems.append(Problem(draft.id, str(error)))
            else:
                yield document

    def _add_chunks(self, group: Group, chunks: Iterable[tuple[str, str]]) -> None:
        for chunk, text in chunks:
            self.tally.chunks += 1
            if chunk in self._stored:
                self.tally.present += 1
            elif chunk not in group.chunks:
                group.chunks[chunk] = self._bench.press.ids(text)

    def _finish(self, group: Group, *, told: Callable[[Tally], None]) -> None:
        """Indexed, computed, stored, and then served."""
        tally = self.tally
        tally.problems += group.problems
        tally.seconds["read and cut"] = tally.seconds.get("read and cut", 0.0) + group.seconds
        with self._timed("index"):
            versions = self._staged([document for _, documents in group.fresh for document in documents])
        self._compute(group, told=told)
        with self._timed("index"):
            self._serve(group, versions)
        tally.files += group.files
        tally.unchanged += group.unchanged
        tally.documents += len(versions)
        told(tally)

    def _staged(self, documents: Sequence[Document]) -> list[int]:
        """Those that do not serve already, just so."""
        bench = self._bench
        with bench.tenant.catalog.view() as view:
            fresh = [each for each in documents if not view.serves(each, collection=bench.collection)]
        return bench.tenant.library.stage_all(fresh, collection=bench.collection) if fresh else []

    def _compute(self, group: Group, *, told: Callable[[Tally], None]) -> None:
        bench, tally, behind = self._bench, self.tally, self._behind
        assert behind is not None
        wanted = [Item(bench.tenant.shelf.key(chunk, behind), ids) for chunk, ids in group.chunks.items() if ids]
        tally.unsupported += len(group.chunks) - len(wanted)
        if tally.over_budget:  # what did not fit once is not tried again
            tally.over_budget += len(wanted)
            return
        with self._timed("compute and store"):
            capturing = Capturing(bench.press, bench.store, purpose=Purpose.JOB)
            for done, outcome in enumerate(capturing.run(behind.prefix, wanted), start=1):
                if outcome.put in (Put.STORED, Put.PRESENT):
                    tally.stored += 1
                    tally.tokens += len(outcome.item.ids)
                    tally.nbytes += outcome.nbytes
                    tally.raw_bytes += outcome.raw_bytes
                    self._stored.add(outcome.item.key.chunk)
                elif outcome.put is Put.OVER_BUDGET:
                    tally.over_budget += 1 + len(wanted) - done
                    break
                elif outcome.put is None:
                    tally.unsupported += 1
                    tally.problems.append(Problem(outcome.item.key.chunk, outcome.reason))
                told(tally)
            bench.store.flush()

    def _serve(self, group: Group, versions: Sequence[int]) -> None:
        """In one transaction with the memory of their files, so that a file is known when its documents serve."""
        bench = self._bench
        with bench.tenant.catalog.view() as view:
            known = view.sources(bench.collection) if group.fresh else {}
        dropped: list[str] = []
        with bench.tenant.catalog.change() as change:
            for version in versions:
                change.serve(version)
            for file, documents in group.fresh:
                ids = tuple(document.id for document in documents)
                before = known.get(file.name)
                dropped += [each for each in (before.documents if before else ()) if each not in ids]
                change.put_source(bench.collection, file.name, source=SourceFile(self._signature(file), ids))
            if dropped:
                change.delete(dropped)
        self.tally.removed += len(dropped)
        bench.tenant.sweep(5.0)

    def _timed(self, stage: str) -> "_Timer":
        return _Timer(self.tally, stage)


@dataclass(slots=True)
class _Timer:
    tally: Tally
    stage: str
    start: float = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self.start
        self.tally.seconds[self.stage] = self.tally.seconds.get(self.stage, 0.0) + spent
