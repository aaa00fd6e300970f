"""What is missing or changed of a corpus, read and cut in groups of so many tokens; shards; what a run counts."""

import time
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, fields
from itertools import islice

from blend.errors import TokenizerError
from retriever.documents import Document, check_id
from retriever.errors import DocumentError
from retriever.readers.reading import Reading, ReadingProblem
from retriever.types import Limit, SourceFile
from service.access.domains import DomainChunk
from service.documents.chunk_capture import CaptureItem
from service.documents.chunk_captures import BlobKeys, CapturePrefix, PlannedChunk
from service.documents.collection_rules import CollectionRules
from service.documents.corpus_listing import CorpusFile
from service.documents.drafts import cut_draft, read_in
from service.documents.fillers import DOCUMENTS
from service.documents.tenants import Tenant
from service.errors import Invalid
from store.key import CacheKey, Scope

GROUP_TOKENS = 16_384  # to compute, between two transactions
GROUP_FILES = 256
FIRST_FILES = 64  # that are read ahead for a filler


@dataclass(frozen=True, slots=True)
class Target:
    """The collection that a corpus goes into. `url` names the store, and says its budgets.

    `lacks`: why the embedder is not there; empty where it is, or none is wanted.
    """

    tenant: Tenant
    collection: str
    rules: CollectionRules
    url: str
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several equal shares of all chunks; which, their ids tell."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """The share that a text such as `0/4` to `3/4` names. Raises Invalid for another text."""
        number, _, of = text.partition("/")
        if number.isdecimal() and of.isdecimal() and int(number) < int(of):
            return cls(int(number), int(of))
        raise Invalid(f"--shard takes a share such as 0/4, the first of four, up to 3/4; got {text!r}")

    def holds(self, chunk: str) -> bool:
        return int(chunk[:8], 16) % self.of == self.number


@dataclass(frozen=True, slots=True)
class CorpusState:
    """What there is before a run. `stored`: the bytes of each blob that the collection's model has there."""

    capture_prefix: CapturePrefix
    stored: dict[CacheKey, int]
    limit: Limit | None

    @property
    def nbytes(self) -> int:
        return sum(self.stored.values())


def look(target: Target) -> CorpusState:
    """What the catalog and the store hold now."""
    capture_prefix = target.tenant.captures.prefixes([target.collection])[target.collection]
    digest = capture_prefix.digest
    stored = {
        entry.key: entry.nbytes
        for entry in target.tenant.store.entries(Scope(target.tenant.name))
        if (entry.key.origin, entry.key.codec) == (digest, target.tenant.model.codec)
    }
    with target.tenant.catalog.view() as view:
        return CorpusState(capture_prefix, stored, view.limit(target.collection, model=digest))


@dataclass(slots=True)
class RunProgress:
    """`stored` chunks were computed now, `present` ones were there, `dropped` ones made room; bytes are of new blobs,
    `worked_bytes` of the files whose chunks are done, in part for a file of many.

    `chunks` are told apart by their text: of these some are present, stored, over budget or text only (unsupported).
    `vectors` of `vectors_of` chunks of the whole catalog are made, where an embedder is new to it.
    """

    files: int = 0
    unchanged: int = 0
    documents: int = 0
    removed: int = 0
    chunks: int = 0
    present: int = 0
    stored: int = 0
    over_budget: int = 0
    unsupported: int = 0
    dropped: int = 0
    tokens: int = 0
    nbytes: int = 0
    raw_bytes: int = 0
    worked_bytes: int = 0
    vectors: int = 0
    vectors_of: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    problems: list[ReadingProblem] = field(default_factory=list[ReadingProblem])

    def add(self, other: "RunProgress") -> None:
        for each in fields(self):
            value = getattr(other, each.name)
            if isinstance(value, int):
                setattr(self, each.name, getattr(self, each.name) + value)
        self.problems += other.problems
        for stage, spent in other.seconds.items():
            self.spend(stage, spent)

    def spend(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read again. One that is not `whole` has documents that could not be read."""

    file: CorpusFile
    documents: list[Document]
    whole: bool


@dataclass(slots=True)
class FileGroup:
    """Files that go together. `items` are to be computed; `waiting` counts those that are not yet.

    `nbytes` of files take `tokens` to compute, of which `worked` are done.
    """

    fresh: list[ReadFile] = field(default_factory=list[ReadFile])
    items: dict[DomainChunk, CaptureItem] = field(default_factory=dict[DomainChunk, CaptureItem])
    progress: RunProgress = field(default_factory=RunProgress)
    staged: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # documents, and their versions
    waiting: int = 0
    nbytes: int = 0
    tokens: int = 0
    worked: int = 0
    number: int = 0  # among those of the run

    @property
    def documents(self) -> list[Document]:
        return [document for fresh in self.fresh for document in fresh.documents]

    @property
    def is_full(self) -> bool:
        return self.tokens >= GROUP_TOKENS or self.progress.files >= GROUP_FILES

    def work(self, tokens: int) -> int:
        """Notes so many tokens as done. Returns the bytes of files that they stand for; all where there are none."""
        before = self.nbytes * self.worked // self.tokens if self.tokens else 0
        self.worked += tokens
        return (self.nbytes * self.worked // self.tokens if self.tokens else self.nbytes) - before


class CorpusReader:
    """Reads for one run. `seen`: all chunks that came by, in the corpus's order, and whether they are to be computed;
    `present`: the keys of those that are there. Of a `shard`, others are passed by.

    `renew`: what an earlier release captured is missing, too. `settled`: what is missing of files that did not change
    is over budget, and is not asked for again.
    """

    def __init__(
        self,
        target: Target,
        state: CorpusState,
        *,
        shard: Shard | None = None,
        renew: bool = False,
        settled: bool = False,
    ) -> None:
        self.seen: dict[DomainChunk, bool] = {}
        self.present: dict[DomainChunk, CacheKey] = {}
        self._target = target
        self._standing = state
        self._shard = shard
        self._renew = renew
        self._settled = settled

    def groups(
        self, found: Iterable[CorpusFile | ReadingProblem], *, gone: Set[str] = frozenset()
    ) -> Iterator[FileGroup]:
        """Yields the groups of the corpus; the last may be empty. `gone`: remembered files that are to be pruned."""
        found = list(found)
        known = self._unchanged(found, gone)
        group, start = FileGroup(), time.perf_counter()
        for each in found:
            if isinstance(each, ReadingProblem):
                group.progress.problems.append(each)
                continue
            group.progress.files += 1
            group.nbytes += each.nbytes
            if each.name not in known or not self._add_known(group, known[each.name]):
                self._add_fresh(group, each)
            if group.is_full:
                group.progress.spend("read and cut", time.perf_counter() - start)
                yield group
                group, start = FileGroup(), time.perf_counter()
        group.progress.spend("read and cut", time.perf_counter() - start)
        yield group

    def _unchanged(self, found: Iterable[CorpusFile | ReadingProblem], gone: Set[str]) -> dict[str, SourceFile]:
        """The files that are as they were when their documents came to serve, and share none with one that is not."""
        with self._target.tenant.catalog.view() as view:
            known = view.sources(self._target.collection)
        signed = {
            each.name: (each.base, signature(each, self._target.rules))
            for each in found
            if isinstance(each, CorpusFile) and each.name in known
        }
        same = {name: known[name] for name, now in signed.items() if now == (known[name].base, known[name].signature)}
        changed = (signed.keys() | gone) - same.keys()
        while changed:  # whose text a document has that two files bring, is known of neither
            doubted = {document for name in changed for document in known[name].documents}
            changed = {name for name, source in same.items() if not doubted.isdisjoint(source.documents)}
            for name in changed:
                del same[name]
        return same

    def _add_known(self, group: FileGroup, source: SourceFile) -> bool:
        """Adds a file's chunks and returns True if its documents serve as they came to."""
        with self._target.tenant.catalog.view() as view:
            entries = [view.document(document) for document in source.documents]
            if not all(entry and entry.collection == self._target.collection for entry in entries):
                return False
            passages = [each for document in source.documents for each in view.passages(document)]
            if len(passages) < sum(entry.parts for entry in entries if entry):  # a text is damaged, and read again
                return False
            group.progress.unchanged += 1
        captures = self._target.tenant.captures
        missing = [
            passage for passage, keys in zip(passages, captures.keys(passages), strict=True) if self._lacks(group, keys)
        ]
        for planned in captures.planned(missing):
            self._add(group, planned, settled=self._settled)
        return True

    def _add_fresh(self, group: FileGroup, file: CorpusFile) -> None:
        read = read_in(file)
        problems = list(read.problems)
        documents = list({each.id: each for each in self._cut(read, problems)}.values())  # of one id the last
        group.progress.problems += problems
        if documents or not problems:
            group.fresh.append(ReadFile(file, documents, whole=not problems))
        for planned in self._target.tenant.captures.planned_with(documents, self._target.collection).values():
            if self._lacks(group, planned.keys):
                self._add(group, planned, settled=False)

    def first_documents(
        self, found: Iterator[CorpusFile | ReadingProblem], taken: list[CorpusFile | ReadingProblem]
    ) -> list[Document]:
        """The documents of the first files, enough for a filler; `taken` gets what came by."""
        documents: list[Document] = []
        for each in islice(found, FIRST_FILES):
            taken.append(each)
            if isinstance(each, CorpusFile):
                documents += self._cut(read_in(each), [])
            if len(documents) >= DOCUMENTS:
                break
        return documents

    def _cut(self, read: Reading, problems: list[ReadingProblem]) -> Iterator[Document]:
        target = self._target
        for draft in read.drafts:
            try:
                document = cut_draft(
                    draft, draft.id, tokens=target.rules.chunk_tokens, count=target.tenant.model.counted
                )
                check_id(document.id)  # a file's name may be none
                for part in document.parts:
                    target.tenant.model.ids(part.text)
            except (DocumentError, TokenizerError) as error:
                problems.append(ReadingProblem(draft.id, str(error)))
            else:
                yield document

    def _lacks(self, group: FileGroup, keys: BlobKeys) -> bool:
        """Counts a chunk. Returns whether it is the run's, came by for the first time, and is not there."""
        chunk, shard, stored = DomainChunk.of(keys.best), self._shard, self._standing.stored
        if chunk in self.seen or (shard and not shard.holds(chunk.id)):
            return False
        self.seen[chunk] = False
        group.progress.chunks += 1
        serving = (keys.best,) if self._renew else (keys.best, *keys.lesser[-1:])  # captured by an earlier release
        present = next((key for key in serving if key in stored), None)
        if present is not None:
            self.present[chunk] = present
            group.progress.present += 1
        return present is None

    def _add(self, group: FileGroup, planned: PlannedChunk, *, settled: bool) -> None:
        item = planned.item()
        if item is None:
            group.progress.unsupported += 1
        elif settled:
            group.progress.over_budget += 1
        else:
            chunk = DomainChunk.of(planned.keys.best)
            self.seen[chunk] = True
            group.items[chunk] = item
            group.waiting += 1
            group.tokens += len(item.chunk.all)


def signature(file: CorpusFile, rules: CollectionRules) -> str:
    """What tells whether a file must be read and cut again."""
    return f"{file.signature} {rules.chunk_tokens}"
