"""Every endpoint: the request that its arguments make, and the type that its answer has. Sends nothing.

Both clients are made of these functions, so that they cannot differ.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, Unpack

from kvweave_client import answers, chatting, pages
from kvweave_client.errors import Problem, RequestError, error_of
from kvweave_client.events import ServerEvent
from kvweave_client.options import (
    ChatOptions,
    Choice,
    DocumentFields,
    Json,
    Message,
    NewDocument,
    QueryOptions,
    RerankOptions,
    Rules,
    SearchOptions,
)
from kvweave_client.requests import (
    EVENTS,
    JSON,
    NOTHING,
    Cursor,
    Listing,
    Operation,
    Page,
    Request,
    Streaming,
    encoded,
    of,
    path,
    with_query,
)
from kvweave_client.uploads import File, Multipart, Progress

_T = TypeVar("_T")

PAGE = 200  # entries

Question = str | Sequence[Message]  # or a chat whose last message is one


def health() -> Operation[answers.Health]:
    """Whether the service lives."""
    return Operation(Request("GET", "/healthz"), of(answers.Health))


def ready() -> Operation[answers.Health]:
    """Whether the service is ready to answer; raises Unavailable with the reason, and at once, where it is not."""
    return Operation(Request("GET", "/readyz", persists=False), of(answers.Health))


def stats() -> Operation[answers.Stats]:
    """Counts of what there is, and what it saved."""
    return Operation(Request("GET", path("stats")), of(answers.Stats))


def search(query: str, **options: Unpack[SearchOptions]) -> Operation[answers.Hits]:
    """The passages that fit best, best first, with how much the best has to do with the query."""
    request = Request("POST", path("search"), encoded({"query": query, **options}))
    return Operation(request, lambda raw: _hits(of(pages.SearchAnswer)(raw)))


def _hits(answer: pages.SearchAnswer) -> answers.Hits:
    return answers.Hits(answer.hits, relevance=answer.relevance, note=answer.note)


def rerank(query: str, **options: Unpack[RerankOptions]) -> Operation[tuple[answers.Ranked, ...]]:
    """Texts or chunks by how well they answer, best first."""
    request = Request("POST", path("rerank"), encoded({"query": query, **options}))
    return Operation(request, lambda raw: of(pages.Results)(raw).entries)


def query(question: Question, **options: Unpack[QueryOptions]) -> Operation[answers.Answer]:
    """The answer to a question from the documents, or to a chat whose last message is one."""
    return Operation(_asked(question, options), of(answers.Answer))


def stream_query(question: Question, **options: Unpack[QueryOptions]) -> Streaming[answers.QueryEvent]:
    """Events of the answer to a `query` while it comes about; the last one is the whole Answer."""
    return Streaming(_asked(question, options, stream=True), _query_event, lambda event: event.name == "done")


def chat(messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Operation[answers.ChatAnswer]:
    """The answer to a chat. Text of known chunks in the messages is recognised, and its KV reused."""
    return Operation(chatting.request(messages, options), chatting.answer)


def stream_chat(messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Streaming[answers.ChatEvent]:
    """Parts of the answer to a `chat` while it comes about; the last one is the whole ChatAnswer."""
    reader = chatting.Reader()
    return Streaming(chatting.request(messages, options, stream=True), reader.hear, chatting.ends)


def models() -> Operation[tuple[answers.Model, ...]]:
    """The model that answers."""
    return Operation(Request("GET", path("models")), lambda raw: of(pages.Models)(raw).entries)


def put_documents(documents: Sequence[NewDocument], *, collection: str = "default") -> Operation[answers.Accepted]:
    """Put documents in. They are safe when this returns, and serve when the job is done.

    One that is there already, just so, is left alone; another of its id is replaced.
    """
    body = encoded({"documents": list(documents), "collection": collection})
    return Operation(Request("POST", path("documents"), body), of(answers.Accepted))


def upload_files(
    files: Sequence[str | Path | File],
    *,
    collection: str = "default",
    metadata: Json | None = None,
    progress: Progress | None = None,
) -> Operation[answers.Accepted]:
    """Put files in: text, pages, PDF, office files, tables, code and more, as the suffix of a name says.

    `progress` is told the bytes that have gone out, and those in all.
    """
    if isinstance(files, str | Path | File) or not files:
        raise RequestError(f"upload_files takes a list of files, got {files!r}")
    fields = [("collection", collection)]
    if metadata:
        fields.append(("metadata", encoded(metadata).decode()))
    opened = [file if isinstance(file, File) else File.at(file) for file in files]
    return Operation(
        Request("POST", path("documents"), Multipart(opened, fields, progress=progress)), of(answers.Accepted)
    )


def documents(*, collection: str | None = None, filter: Json | None = None) -> Listing[answers.Document]:
    """The documents that serve, in the order of their ids."""
    fits = encoded(filter).decode() if filter is not None else None
    return _listing(path("documents"), of(pages.Documents), collection=collection, filter=fits)


def document(document_id: str) -> Operation[answers.Document]:
    """One document that serves."""
    return Operation(Request("GET", path("documents", document_id)), of(answers.Document))


def put_document(document_id: str, **fields: Unpack[DocumentFields]) -> Operation[answers.Accepted]:
    """Make this the whole of the document. What was there serves until the new version is ready."""
    return Operation(Request("PUT", path("documents", document_id), encoded(dict(fields))), of(answers.Accepted))


def patch_document(document_id: str, metadata: Json) -> Operation[answers.Document]:
    """Lay metadata over what is there; None takes a field away. Nothing is computed again."""
    body = encoded({"metadata": metadata})
    return Operation(Request("PATCH", path("documents", document_id), body, repeats=False), of(answers.Document))


def delete_document(document_id: str) -> Operation[answers.Deleted]:
    """End the document, and the caches of chunks that nothing else holds.

    Raises NotFound where there is none: also where a try whose answer was lost ended it, and then the error says so.
    """
    return Operation(Request("DELETE", path("documents", document_id)), of(answers.Deleted))


def chunks(document_id: str) -> Listing[answers.DocumentChunk]:
    """The chunks of a document in its order, and what is stored of each."""
    return _listing(path("documents", document_id, "chunks"), of(pages.Chunks))


def collections() -> Operation[tuple[answers.Collection, ...]]:
    """The collections, in the order of their names."""
    return Operation(Request("GET", path("collections")), lambda raw: of(pages.Collections)(raw).entries)


def collection(name: str) -> Operation[answers.Collection]:
    """One collection: its rules, and how many documents serve."""
    return Operation(Request("GET", path("collections", name)), of(answers.Collection))


def put_collection(name: str, **rules: Unpack[Rules]) -> Operation[answers.Collection]:
    """Make a collection, or give it other rules: they hold for documents that come from now on."""
    return Operation(Request("PUT", path("collections", name), encoded(dict(rules))), of(answers.Collection))


def delete_collection(name: str) -> Operation[answers.CollectionDeleted]:
    """Delete a collection with all its documents. NotFound as with `delete_document`."""
    return Operation(Request("DELETE", path("collections", name)), of(answers.CollectionDeleted))


def jobs() -> Listing[answers.Job]:
    """The jobs, newest first."""
    return _listing(path("jobs"), of(pages.Jobs))


def job(job_id: str) -> Operation[answers.Job]:
    """One job: how far it is."""
    return Operation(Request("GET", with_query(path("jobs", job_id), limit=1)), of(answers.Job))


def job_items(job_id: str) -> Listing[answers.JobItem]:
    """The documents and files of a job, one by one."""
    return _listing(path("jobs", job_id), of(pages.Items))


def cancel_job(job_id: str) -> Operation[answers.Job]:
    """End what of a job is not ready. What is ready stays."""
    return Operation(Request("DELETE", path("jobs", job_id)), of(answers.Job))


def follow_job(job_id: str) -> Streaming[answers.Job]:
    """The job whenever it changes, until it is over."""
    request = Request("GET", path("jobs", job_id, "events"), accepts=EVENTS)
    return Streaming(request, _job_event, lambda event: event.name == "done")


def lookup(**choice: Unpack[Choice]) -> Listing[answers.ChunkState]:
    """What is stored of documents, chunks or a collection, chunk by chunk. Unknown ids are left out."""

    def page(after: Cursor | None) -> Operation[Page[answers.ChunkState]]:
        body = encoded({**choice, "after": after or 0})
        return Operation(Request("POST", path("cache", "lookup"), body), of(pages.States))

    return Listing(page)


def prefetch(**choice: Unpack[Choice]) -> Operation[answers.Touched]:
    """Ask that the caches of these chunks be near. `blobs`: fetches that began."""
    return _touching("prefetch", choice)


def pin(**choice: Unpack[Choice]) -> Operation[answers.Touched]:
    """Keep the caches of these chunks from eviction."""
    return _touching("pin", choice)


def unpin(**choice: Unpack[Choice]) -> Operation[answers.Touched]:
    """Take the pins of these chunks back."""
    return _touching("unpin", choice)


def evict(**choice: Unpack[Choice]) -> Operation[answers.Touched]:
    """Forget what is stored of these chunks. It is computed again when it is needed."""
    return _touching("evict", choice)


def end_session(name: str) -> Operation[None]:
    """Keep nothing of a conversation of this key, of which turns have this `session`."""
    return Operation(Request("DELETE", path("sessions", name), accepts=NOTHING), lambda _: None)


def blend_switch() -> Operation[answers.BlendSwitch]:
    """Whether requests reuse caches. For operators."""
    return Operation(Request("GET", path("admin", "blend")), of(answers.BlendSwitch))


def put_blend_switch(enabled: bool, *, share: float | None = None) -> Operation[answers.BlendSwitch]:  # noqa: FBT001
    """Switch reuse off for all, or let a share of the requests do it. For operators."""
    body = encoded({"enabled": enabled, "share": share})
    return Operation(Request("PUT", path("admin", "blend"), body), of(answers.BlendSwitch))


def _asked(question: Question, options: QueryOptions, *, stream: bool = False) -> Request:
    asked: Json = {"question": question} if isinstance(question, str) else {"messages": list(question)}
    body = encoded({**asked, **options, **({"stream": True} if stream else {})})
    return Request("POST", path("query"), body, repeats=False, accepts=EVENTS if stream else JSON)


def _listing(address: str, read: Callable[[bytes], Page[_T]], **query: object) -> Listing[_T]:
    def page(after: Cursor | None) -> Operation[Page[_T]]:
        return Operation(Request("GET", with_query(address, **query, after=after, limit=PAGE)), read)

    return Listing(page)


def _touching(what: str, choice: Choice) -> Operation[answers.Touched]:
    return Operation(Request("POST", path("cache", what), encoded(dict(choice))), of(answers.Touched))


_QUERY_EVENTS: dict[str, type[answers.QueryEvent]] = {
    "retrieved": answers.Retrieved,
    "loaded": answers.Loaded,
    "fused": answers.Fused,
    "token": answers.Token,
    "done": answers.Answer,
}


def _query_event(event: ServerEvent) -> answers.QueryEvent | None:
    """The event as its type; None for events that a later service adds. Raises what the service reports."""
    if event.name == "error":
        raise error_of(of(Problem)(event.data.encode()))
    kind = _QUERY_EVENTS.get(event.name)
    return None if kind is None else of(kind)(event.data.encode())


def _job_event(event: ServerEvent) -> answers.Job | None:
    return of(answers.Job)(event.data.encode()) if event.name in ("progress", "done") else None
