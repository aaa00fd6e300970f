"""What the service answers, as types. What it says besides is left alone, so that newer services stay readable."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, Final, Self, cast

import msgspec

Metadata = dict[str, Any]  # JSON
SHOWN: Final = 5  # sources of a printed answer; the others are counted


def as_json(answer: msgspec.Struct | tuple[msgspec.Struct, ...]) -> object:
    """What was answered, as JSON has it: objects and lists."""
    return cast(object, msgspec.json.decode(msgspec.json.encode(answer)))


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one answer. What is neither reused nor recomputed of the prompt was fresh text."""

    prompt_tokens: int
    completion_tokens: int
    reused_tokens: int
    recomputed_tokens: int


class Source(msgspec.Struct, frozen=True):
    """A passage that an answer rests on, or that a search found. A document of the request has no `chunk_id`."""

    chunk_id: str
    document_id: str
    title: str
    score: float
    text: str
    metadata: Metadata
    page: int | None = None
    start: int | None = None
    end: int | None = None


class ChunkReport(msgspec.Struct, frozen=True):
    """Where a chunk's keys and values came from: the name of a tier, or `computed`, and then why."""

    chunk_id: str
    source: str
    tokens: int
    recomputed: int
    bytes: int
    miss_reason: str | None = None


class Relevance(msgspec.Struct, frozen=True):
    """How much the best passage has to do with the question, and what it takes to be found."""

    found: bool
    best: float
    floor: float


class Hits(tuple[Source, ...]):
    """The passages that a search found, best first. `note` says where none is more than chance brings.

    No `relevance` where nothing was looked for.
    """

    relevance: Relevance | None
    note: str

    def __new__(cls, hits: Iterable[Source] = (), *, relevance: Relevance | None = None, note: str = "") -> Self:
        made = super().__new__(cls, hits)
        made.relevance, made.note = relevance, note
        return made


class Report(msgspec.Struct, frozen=True):
    """How an answer came about. `dropped`: chunks that the model's window had no room for.

    `expected_ms` of each way (full, prefix, blend), where one was chosen for its time; `reason`: why no chunk was
    blended, where a policy would have.
    `notes`: sentences that whoever reads the answer should know. No `relevance` where nothing was searched.
    """

    policy: str
    ratio: float
    chunks: tuple[ChunkReport, ...]
    dropped: tuple[str, ...]
    timings_ms: dict[str, float]
    expected_ms: dict[str, float] = {}
    reason: str | None = None
    notes: tuple[str, ...] = ()
    relevance: Relevance | None = None


class _Printed(msgspec.Struct, frozen=True):
    """What is printed, and shown in a notebook, with what is to be known of it and with its best sources."""

    def _said(self) -> tuple[str, Sequence[str], Sequence[Source]]:
        raise NotImplementedError

    def __str__(self) -> str:
        words, notes, sources = self._said()
        return "\n".join([words, *notes, *(f"  {line}" for line in _lines(sources))])

    def _repr_html_(self) -> str:
        words, notes, sources = self._said()
        noted = "".join(f"<p><em>{escape(note)}</em></p>" for note in notes)
        lines = "".join(f"<li>{escape(line)}</li>" for line in _lines(sources))
        return f"<p>{escape(words)}</p>{noted}<ul>{lines}</ul>"


def _lines(sources: Sequence[Source]) -> Iterator[str]:
    for each in sorted(sources, key=lambda source: -source.score)[:SHOWN]:
        name = each.document_id if each.title in ("", each.document_id) else f"{each.title}, {each.document_id}"
        yield f"{each.score:.2f}  {name}"
    if len(sources) > SHOWN:
        yield f"and {len(sources) - SHOWN} more"


class Answer(_Printed, frozen=True):
    """The answer to a question, and what it rests on. Printed, and in a notebook, it shows both."""

    id: str
    answer: str
    finish_reason: str
    sources: tuple[Source, ...]
    usage: Usage
    report: Report

    def _said(self) -> tuple[str, Sequence[str], Sequence[Source]]:
        return self.answer, self.report.notes, self.sources


class Retrieved(msgspec.Struct, frozen=True):
    """An event: what the answer will rest on."""

    id: str
    sources: tuple[Source, ...]


class Loaded(msgspec.Struct, frozen=True):
    """An event: where the chunks' caches come from."""

    chunks: tuple[ChunkReport, ...]


class Fused(msgspec.Struct, frozen=True):
    """An event: the prompt is in place, the first token follows."""

    usage: Usage
    report: Report


class Token(msgspec.Struct, frozen=True):
    """An event: some more of the answer."""

    text: str


QueryEvent = Retrieved | Loaded | Fused | Token | Answer


class TopToken(msgspec.Struct, frozen=True):
    """A token that could have stood there."""

    token: str
    logprob: float


class TokenLogprob(TopToken, frozen=True):
    """A token of the answer, and the likeliest in its place."""

    top_logprobs: tuple[TopToken, ...] = ()


class ChatAnswer(_Printed, frozen=True):
    """The answer to a chat. Printed, and in a notebook, it shows its sources, too."""

    id: str
    model: str
    text: str
    finish_reason: str
    usage: Usage
    sources: tuple[Source, ...]
    report: Report
    logprobs: tuple[TokenLogprob, ...] = ()

    def _said(self) -> tuple[str, Sequence[str], Sequence[Source]]:
        return self.text, self.report.notes, self.sources


class ChatDelta(msgspec.Struct, frozen=True):
    """Some more of the answer to a chat."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


ChatEvent = ChatDelta | ChatAnswer


class Accepted(msgspec.Struct, frozen=True):
    """What was put in is safe, and is computed in this job. `files`: those whose documents are not known yet.

    `refused`: files that were left out, each with the reason, and what of others could not be read.
    """

    job_id: str
    documents: tuple[str, ...]
    files: tuple[str, ...]
    refused: tuple[str, ...] = ()


class Document(msgspec.Struct, frozen=True):
    """A document that serves. Times are seconds since 1970."""

    id: str
    collection: str
    title: str
    metadata: Metadata
    chunks: int
    created: float
    updated: float


class DocumentChunk(msgspec.Struct, frozen=True):
    """A chunk where it stands. `state`: stored, pending, over budget, unsupported or absent."""

    chunk_id: str
    place: int
    name: str
    text: str
    metadata: Metadata
    state: str
    bytes: int
    tier: str
    page: int | None = None
    start: int | None = None
    end: int | None = None


class Deleted(msgspec.Struct, frozen=True):
    """What a deletion did. `chunks_kept`: others hold them. `done`: every tier answers that the rest are gone."""

    id: str
    chunks_removed: tuple[str, ...]
    chunks_kept: tuple[str, ...]
    done: bool


class Job(msgspec.Struct, frozen=True):
    """What became of what was put in. `status`: running, done, failed or cancelled. `uploads`: how many by state.

    `search_waits`: what search by vectors waits for, of all documents; empty where it does not.
    """

    id: str
    status: str
    uploads: dict[str, int]
    chunks: int
    stored: int
    over_budget: int
    unsupported: int
    created: float
    updated: float
    change: str = ""
    search_waits: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing of the job waits or is computed any more."""
        return self.status != "running"


class JobItem(msgspec.Struct, frozen=True):
    """One document of a job, or a file. `detail` says what failed."""

    document: str
    collection: str
    file: str
    state: str
    chunks: int
    stored: int
    over_budget: int
    unsupported: int
    detail: str


class Filler(msgspec.Struct, frozen=True):
    """A passage that a collection's chunks are captured behind."""

    document_id: str
    chunk_id: str
    title: str


class Collection(msgspec.Struct, frozen=True):
    """How a collection's documents are cut and captured, and how many serve."""

    name: str
    chunk_tokens: int
    embedder: str
    documents: int
    system: str | None = None
    search: bool = True
    in_context: bool = True
    floor: float | None = None
    on_empty: str = "answer"
    filler: tuple[Filler, ...] = ()


class CollectionDeleted(msgspec.Struct, frozen=True):
    """What went with a collection that was deleted."""

    name: str
    documents: int
    chunks_removed: int
    chunks_kept: int
    done: bool


class Ranked(msgspec.Struct, frozen=True):
    """A text or a chunk that was ranked. `index`: its place in the request."""

    index: int
    score: float
    chunk_id: str | None = None


class ChunkState(msgspec.Struct, frozen=True):
    """What is stored of a chunk: stored, pending, over budget, unsupported or absent; and where."""

    chunk_id: str
    state: str
    bytes: int
    tier: str


class Touched(msgspec.Struct, frozen=True):
    """How many `chunks` were meant and `blobs` of them concerned; `unknown` ids name nothing that may be seen."""

    chunks: int
    blobs: int
    unknown: tuple[str, ...]


class TierUsage(msgspec.Struct, frozen=True):
    """What one tier of the store holds."""

    tier: str
    blobs: int
    bytes: int
    budget: int | None = None


class Served(msgspec.Struct, frozen=True):
    """What requests met since the service began. `sources`: chunks by where their caches came from."""

    requests: int
    sources: dict[str, int]
    hit_rates: dict[str, float]
    prompt_tokens: int
    tokens_saved: int


class Stats(msgspec.Struct, frozen=True):
    """Counts of the service. `served` is None for a key with a filter, `store` for all but operators."""

    documents: int
    chunks: int
    served: Served | None = None
    store: tuple[TierUsage, ...] | None = None
    bytes_per_token: float | None = None


class Model(msgspec.Struct, frozen=True):
    """The model that answers. `max_model_len`: tokens of prompt and answer; `search`: how it is searched by default.

    `search_waits`: what search by vectors waits for; empty where it does not.
    """

    id: str
    max_model_len: int
    search: str = ""
    search_waits: str = ""


class BlendSwitch(msgspec.Struct, frozen=True):
    """Whether requests reuse caches at all, and which share of them does."""

    enabled: bool
    share: float | None = None


class Health(msgspec.Struct, frozen=True):
    """Whether the service lives: `ok`, or `ready`. `search_waits`: as in `Model`, of all tenants together."""

    status: str
    search_waits: str = ""
