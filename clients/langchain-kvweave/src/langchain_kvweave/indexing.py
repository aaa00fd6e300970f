"""A document index whose documents have their KV computed in kvweave. Knows no other index."""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.indexing import DeleteResponse, DocumentIndex, UpsertResponse
from pydantic import Field, PrivateAttr

from kvweave_client import JobFailed, NotFound, batches, operations
from kvweave_client.following import collection_made
from kvweave_client.plans import Plan, ask, wait_for
from kvweave_client.plans import entries as entries_of
from langchain_kvweave.connection import Connected
from langchain_kvweave.entries import entries, names_of

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
        return self.followed(self._upserted(items, kwargs))

    async def aupsert(self, items: Sequence[Document], /, **kwargs: object) -> UpsertResponse:
        """The asynchronous `upsert`."""
        return await self.afollowed(self._upserted(items, kwargs))

    def flush(self) -> None:
        """Wait until all that this object put in is computed. Raises JobFailed where something could not be, and
        TimedOut where one request's documents take longer than `wait_timeout` seconds."""
        self.followed(self._flushed())

    async def aflush(self) -> None:
        """The asynchronous `flush`."""
        await self.afollowed(self._flushed())

    def delete(self, ids: list[str] | None = None, **kwargs: object) -> DeleteResponse:
        """End documents, and the caches of chunks that nothing else holds. Ids that are not there are no failure."""
        return self.followed(self._deleted(_named(ids, kwargs)))

    async def adelete(self, ids: list[str] | None = None, **kwargs: object) -> DeleteResponse:
        """The asynchronous `delete`."""
        return await self.afollowed(self._deleted(_named(ids, kwargs)))

    def get(self, ids: Sequence[str], /, **kwargs: object) -> list[Document]:
        """The documents that are there and computed, as they were put in."""
        return self.followed(self._held(ids, kwargs))

    async def aget(self, ids: Sequence[str], /, **kwargs: object) -> list[Document]:
        """The asynchronous `get`."""
        return await self.afollowed(self._held(ids, kwargs))

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return self.followed(self._found(query))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return await self.afollowed(self._found(query))

    def _upserted(self, items: Sequence[Document], options: Mapping[str, object]) -> Plan[UpsertResponse]:
        _refuse(options)
        given = entries(items, collection=self.collection)
        if not self._is_made:
            yield from collection_made(self.collection, search=self.search)
            self._is_made = True
        for request in batches(given.documents):
            accepted = yield from ask(operations.put_documents(request, collection=self.collection))
            self._jobs.append(accepted.job_id)
        yield from self._deleted(given.blank)
        if self.wait:
            yield from self._flushed()
        blank = set(given.blank)
        return UpsertResponse(succeeded=[each for each in given.ids if each not in blank], failed=list(given.blank))

    def _flushed(self) -> Plan[None]:
        while self._jobs:
            job = self._jobs[0]
            try:
                with suppress(NotFound):  # long over, and forgotten
                    yield from wait_for(job, timeout_s=self.wait_timeout)
            except JobFailed:
                self._over(job)
                raise
            self._over(job)

    def _deleted(self, ids: Sequence[str]) -> Plan[DeleteResponse]:
        gone: list[str] = []
        for each, name in names_of(ids, self.collection).items():
            with suppress(NotFound):
                yield from ask(operations.delete_document(name))
                gone.append(each)
        return DeleteResponse(num_deleted=len(gone), succeeded=gone, failed=[], num_failed=0)

    def _held(self, ids: Sequence[str], options: Mapping[str, object]) -> Plan[list[Document]]:
        _refuse(options)
        found: list[Document] = []
        for each, name in names_of(ids, self.collection).items():
            with suppress(NotFound):
                chunks = yield from entries_of(operations.chunks(name))
                found += [Document(chunk.text, id=each, metadata=chunk.metadata) for chunk in chunks]
        return found

    def _found(self, query: str) -> Plan[list[Document]]:
        if not self.search:
            raise ValueError(
                f"kvweave's own search is off for {self.collection!r}, as another index finds its documents: "
                "search there, or make the sink with search=True"
            )
        hits = yield from ask(operations.search(query, collection=self.collection, top_k=self.k))
        ids = [hit.document_id.removeprefix(f"{self.collection}/") for hit in hits]
        return [Document(hit.text, id=each, metadata=hit.metadata) for hit, each in zip(hits, ids, strict=True)]

    def _over(self, job: str) -> None:
        with suppress(ValueError):  # another thread was sooner
            self._jobs.remove(job)


def _refuse(options: Mapping[str, object]) -> None:
    if options:
        raise TypeError(f"the sink has no option {sorted(options)[0]!r}: its fields say what it does")


def _named(ids: list[str] | None, options: Mapping[str, object]) -> list[str]:
    _refuse(options)
    if ids is None:
        raise ValueError("name the ids to delete; kvweave_client deletes a whole collection by delete_collection")
    return ids
