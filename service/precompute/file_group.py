"""What is missing or changed of a corpus, read and cut, in groups that go together. Computes and stores nothing."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from blend.errors import TokenizerError
from retriever.contract.types import Limit, SourceFile
from retriever.documents import Document
from retriever.errors import DocumentError
from retriever.readers.reading import ReadingProblem
from service.access.domains import DomainChunk
from service.corpus.chunk_caches import CapturePrefix
from service.corpus.collection_rules import CollectionRules
from service.corpus.drafts import cut_draft
from service.corpus.tenants import Tenant
from service.errors import Invalid
from service.model.capture_context import ChunkIds
from service.model.prompt_builder import PromptPassage
from service.precompute.corpus_file import CorpusFile, FileDocuments, read_in
from service.precompute.progress import RunProgress
from store.key import Scope

GROUP_TOKENS = 16_384  # to compute, between two transactions
GROUP_FILES = 256


@dataclass(frozen=True, slots=True)
class Target:
    """The collection that a corpus goes into. `url` names the store, and says its budgets."""

    tenant: Tenant
    collection: str
    rules: CollectionRules
    url: str


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
        """Is the chunk of this share?"""
        return int(chunk[:8], 16) % self.of == self.number


@dataclass(frozen=True, slots=True)
class CorpusState:
    """What there is before a run. `stored`: the bytes of each chunk that the collection's model has there."""

    capture_prefix: CapturePrefix
    stored: dict[DomainChunk, int]
    limit: Limit | None

    @property
    def nbytes(self) -> int:
        """The bytes of all that is stored."""
        return sum(self.stored.values())


def look(target: Target) -> CorpusState:
    """What the catalog and the store hold now."""
    capture_prefix = target.tenant.caches.capture_prefixes([target.collection])[target.collection]
    digest = capture_prefix.digest
    stored = {
        DomainChunk.of(entry.key): entry.nbytes
        for entry in target.tenant.store.entries(Scope(target.tenant.name))
        if (entry.key.origin, entry.key.codec) == (digest, target.tenant.model.codec)
    }
    with target.tenant.catalog.view() as view:
        return CorpusState(capture_prefix, stored, view.limit(target.collection, model=digest))


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read again. One that is not `whole` has documents that could not be read."""

    file: CorpusFile
    documents: list[Document]
    whole: bool


@dataclass(slots=True)
class FileGroup:
    """Files that go together. `chunks` are to be computed; `waiting` counts those that are not yet.

    `nbytes` of files take `tokens` to compute, of which `worked` are done.
    """

    fresh: list[ReadFile] = field(default_factory=list[ReadFile])
    chunks: dict[DomainChunk, ChunkIds] = field(default_factory=dict[DomainChunk, ChunkIds])
    progress: RunProgress = field(default_factory=RunProgress)
    versions: list[int] = field(default_factory=list[int])
    staged: set[str] = field(default_factory=set[str])
    waiting: int = 0
    nbytes: int = 0
    tokens: int = 0
    worked: int = 0

    @property
    def documents(self) -> list[Document]:
        """Those that were read."""
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
    """Reads for one run. `seen`: all chunks that came by, in the corpus's order, and whether they are to be computed.

    `settled`: what is missing of files that did not change is over budget, and is not asked for again.
    """

    def __init__(
        self, target: Target, state: CorpusState, *, shard: Shard | None = None, settled: bool = False
    ) -> None:
        self.seen: dict[DomainChunk, bool] = {}
        self._target = target
        self._standing = state
        self._shard = shard
        self._settled = settled

    def groups(self, found: Iterable[CorpusFile | ReadingProblem]) -> Iterator[FileGroup]:
        """Yields the groups of the corpus; the last may be empty."""
        with self._target.tenant.catalog.view() as view:
            known = view.sources(self._target.collection)
        group, start = FileGroup(), time.perf_counter()
        for each in found:
            if isinstance(each, ReadingProblem):
                group.progress.problems.append(each)
                continue
            group.progress.files += 1
            group.nbytes += each.nbytes
            if not self._add_known(group, each, source=known.get(each.name)):
                self._add_fresh(group, each)
            if group.is_full:
                group.progress.spend("read and cut", time.perf_counter() - start)
                yield group
                group, start = FileGroup(), time.perf_counter()
        group.progress.spend("read and cut", time.perf_counter() - start)
        yield group

    def _add_known(self, group: FileGroup, file: CorpusFile, *, source: SourceFile | None) -> bool:
        """Adds a file's chunks and returns True if it is as it was when its documents came to serve, and these do."""
        if source is None or (source.base, source.signature) != (file.base, signature(file, self._target.rules)):
            return False
        with self._target.tenant.catalog.view() as view:
            entries = [view.document(document) for document in source.documents]
            if not all(entry and entry.collection == self._target.collection for entry in entries):
                return False
            passages = [each for document in source.documents for each in view.passages(document)]
            if len(passages) < sum(entry.parts for entry in entries if entry):  # a text is damaged, and read again
                return False
            group.progress.unchanged += 1
            for passage in passages:
                chunk = self._target.tenant.caches.chunk(passage.id, passage.metadata)
                titled = PromptPassage(passage.text, passage.title)
                self._add(group, chunk, passage=titled, settled=self._settled)
        return True

    def _add_fresh(self, group: FileGroup, file: CorpusFile) -> None:
        read = read_in(file)
        problems = list(read.problems)
        documents = list(self._cut(read, problems))
        group.progress.problems += problems
        if documents or not problems:
            group.fresh.append(ReadFile(file, documents, whole=not problems))
        for document in documents:
            texts = {part.id: part.text for part in document.parts}
            for chunk in self._target.tenant.caches.chunks(document):
                titled = PromptPassage(texts[chunk.id], document.title)
                self._add(group, chunk, passage=titled, settled=False)

    def _cut(self, read: FileDocuments, problems: list[ReadingProblem]) -> Iterator[Document]:
        target = self._target
        for draft in read.drafts:
            try:
                document = cut_draft(
                    draft, draft.id, tokens=target.rules.chunk_tokens, count=target.tenant.model.counted
                )
                for part in document.parts:
                    target.tenant.model.ids(part.text)
            except (DocumentError, TokenizerError) as error:
                problems.append(ReadingProblem(draft.id, str(error)))
            else:
                yield document

    def _add(self, group: FileGroup, chunk: DomainChunk, *, passage: PromptPassage, settled: bool) -> None:
        if chunk in self.seen or (self._shard and not self._shard.holds(chunk.id)):
            return
        self.seen[chunk] = False
        prefix = self._standing.capture_prefix.prefix
        group.progress.chunks += 1
        if chunk in self._standing.stored:
            group.progress.present += 1
        elif (ids := self._target.tenant.model.titled(passage.text, passage.title, prefix=prefix)) is None:
            group.progress.unsupported += 1
        elif settled:
            group.progress.over_budget += 1
        else:
            self.seen[chunk] = True
            group.chunks[chunk] = ids
            group.waiting += 1
            group.tokens += len(ids.all)


def signature(file: CorpusFile, rules: CollectionRules) -> str:
    """What tells whether a file must be read and cut again."""
    return f"{file.signature} {rules.chunk_tokens}"
