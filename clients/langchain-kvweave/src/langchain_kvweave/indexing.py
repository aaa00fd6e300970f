"""A document index whose documents have their KV computed in kvweave. Knows no other index."""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.indexing import DeleteResponse, DocumentIndex, UpsertResponse
from pydantic import Field, PrivateAttr

from kvweave_client import JobFailed, NotFound
from langchain_kvweave.connection import Connected
from langchain_kvweave.entries import Entries, document_at, document_found, entries, names_of

MOST_JOBS = 10_000  # that flush waits for; they are computed in their order


class KVWeaveSink(DocumentIndex, Connected):
    """Keeps the documents of another index in a collection of kvweave, so that their KV is there when they are read.

    `upsert` returns when the service has the documents safely; it computes them behind that. `flush` waits until all
    is computed, and raises what failed. With `wait` each upsert does so itself: `get` then finds what was put in.

    kvweave's own search stays off for the collection, as another index finds its documents. With `search` it is on,
    and the sink is a retriever of its own. This counts where the sink makes the collection; one that is there keeps
    its rule.
    """

    collection: str = Field(min_length=1)
    search: bool = False
    wait: bool = False
    wait_timeout: float | None = Field(default=None, gt=0)
    k: int = Field(default=4, ge=1)

    _is_made: bool = PrivateAttr(default=False)
    _jobs: deque[str] = PrivateAttr(default_factory=lambda: deque[str](maxlen=MOST_JOBS))

    def upsert(self, items: Sequence[Document], /, **kwargs: object) -> UpsertResponse:
        """Put documents in, or others in place of those of their ids. What has no text is `failed`, and not kept."""
        _refuse(kwargs)
        given = entries(items, collection=self.collection)
        client = self.asked()
        self._make()
        for request in given.requests():
            self._jobs.append(client.put_documents(request, collection=self.collection).job_id)
        if given.blank:
            self.delete(list(given.blank))
        if self.wait:
            self.flush()
        return _upserted(given)

    async def aupsert(self, items: Sequence[Document], /, **kwargs: object) -> UpsertResponse:
        """The asynchronous `upsert`."""
        _refuse(kwargs)
        given = entries(items, collection=self.collection)
        client = await self.aasked()
        await self._amake()
        for request in given.requests():
            accepted = await client.put_documents(request, collection=self.collection)
            self._jobs.append(accepted.job_id)
        if given.blank:
            await self.adelete(list(given.blank))
        if self.wait:
            await self.aflush()
        return _upserted(given)

    def flush(self) -> None:
        """Wait until all that this object put in is computed. Raises JobFailed where something could not be, and
        TimedOut where one request's documents take longer than `wait_timeout` seconds."""
        client = self.asked()
        while self._jobs:
            job = self._jobs[0]
            with suppress(NotFound), self._leaving(job):  # long over, and forgotten
                client.wait(job, timeout_s=self.wait_timeout)

    async def aflush(self) -> None:
        """The asynchronous `flush`."""
        client = await self.aasked()
        while self._jobs:
            job = self._jobs[0]
            with suppress(NotFound), self._leaving(job):
                await client.wait(job, timeout_s=self.wait_timeout)

    def delete(self, ids: list[str] | None = None, **kwargs: object) -> DeleteResponse:
        """End documents, and the caches of chunks that nothing else holds. Ids that are not there are no failure."""
        _refuse(kwargs)
        client = self.asked()
        gone: list[str] = []
        for each, name in names_of(_named(ids), self.collection).items():
            with suppress(NotFound):
                client.delete_document(name)
                gone.append(each)
        return _deleted(gone)

    async def adelete(self, ids: list[str] | None = None, **kwargs: object) -> DeleteResponse:
        """The asynchronous `delete`."""
        _refuse(kwargs)
        client = await self.aasked()
        gone: list[str] = []
        for each, name in names_of(_named(ids), self.collection).items():
            with suppress(NotFound):
                await client.delete_document(name)
                gone.append(each)
        return _deleted(gone)

    def get(self, ids: Sequence[str], /, **kwargs: object) -> list[Document]:
        """The documents that are there and computed, as they were put in."""
        _refuse(kwargs)
        client = self.asked()
        found: list[Document] = []
        for each, name in names_of(ids, self.collection).items():
            with suppress(NotFound):
                found += [document_at(each, chunk) for chunk in client.chunks(name)]
        return found

    async def aget(self, ids: Sequence[str], /, **kwargs: object) -> list[Document]:
        """The asynchronous `get`."""
        _refuse(kwargs)
        client = await self.aasked()
        found: list[Document] = []
        for each, name in names_of(ids, self.collection).items():
            with suppress(NotFound):
                found += [document_at(each, chunk) async for chunk in client.chunks(name)]
        return found

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        self._check_search()
        hits = self.asked().search(query, collection=self.collection, top_k=self.k)
        return [document_found(hit, self.collection) for hit in hits]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        self._check_search()
        client = await self.aasked()
        hits = await client.search(query, collection=self.collection, top_k=self.k)
        return [document_found(hit, self.collection) for hit in hits]

    def _check_search(self) -> None:
        if not self.search:
            raise ValueError(
                f"kvweave's own search is off for {self.collection!r}, as another index finds its documents: "
                "search there, or make the sink with search=True"
            )

    def _make(self) -> None:
        """Makes the collection, where it is not there yet."""
        if self._is_made:
            return
        client = self.asked()
        try:
            client.collection(self.collection)
        except NotFound:
            client.put_collection(self.collection, search=self.search)
        self._is_made = True

    async def _amake(self) -> None:
        if self._is_made:
            return
        client = await self.aasked()
        try:
            await client.collection(self.collection)
        except NotFound:
            await client.put_collection(self.collection, search=self.search)
        self._is_made = True

    @contextmanager
    def _leaving(self, job: str) -> Generator[None]:
        """Forgets a job that is over, however it ended; one that goes on is waited for again."""
        try:
            yield
        except (JobFailed, NotFound):
            self._over(job)
            raise
        self._over(job)

    def _over(self, job: str) -> None:
        with suppress(ValueError):  # another thread was sooner
            self._jobs.remove(job)


def _refuse(options: Mapping[str, object]) -> None:
    if options:
        raise TypeError(f"the sink has no option {sorted(options)[0]!r}: its fields say what it does")


def _named(ids: list[str] | None) -> list[str]:
    if ids is None:
        raise ValueError("name the ids to delete; kvweave_client deletes a whole collection by delete_collection")
    return ids


def _upserted(given: Entries) -> UpsertResponse:
    return UpsertResponse(succeeded=given.kept, failed=list(given.blank))


def _deleted(gone: list[str]) -> DeleteResponse:
    return DeleteResponse(num_deleted=len(gone), succeeded=gone, failed=[], num_failed=0)
